"""Correctness cases of PyTorch: allocators, unified memory and the memory of the host."""

import os

from frameworks import generator
from suite import digest, first_line, suite, torch_for_repeating

case = suite("frameworks")


def allocate_and_free(torch):
    """A pattern of allocations; gives a digest of what was computed in them."""
    g = generator(torch, 17)
    kept, parts = [], []
    for k in range(60):
        t = torch.full(((k * 7919) % 4_000_000 + 1,), k, dtype=torch.float32, device="cuda")
        kept.append(t)
        if k % 3 == 2:
            kept.pop(0)
    big = torch.randn(1000, 1000, generator=g).cuda()
    for _ in range(4):
        big = torch.cat([big, torch.tanh(big)])[:3000]
        parts.append(big.sum().item())
    return digest(*kept, big, repr(parts))


STATISTICS = ("allocation.all.current", "allocation.all.peak", "allocated_bytes.all.peak",
              "requested_bytes.all.peak", "num_alloc_retries", "num_ooms")


@case
def torch_memory_stats():
    torch = torch_for_repeating()
    out = {"values": allocate_and_free(torch)}
    stats = torch.cuda.memory_stats()
    out.update(
        {k: repr(stats[k])
         for k in (*STATISTICS, "segment.all.current", "reserved_bytes.all.current", "reserved_bytes.all.peak")})
    out["allocated"] = repr(
        (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()))
    out["segments"] = repr(
        sorted((s["total_size"], s["segment_type"], len(s["blocks"])) for s in torch.cuda.memory_snapshot()))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    out["afterwards"] = repr(
        (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()))
    free, total = torch.cuda.mem_get_info()
    out["total"] = repr((total, 0 < free < total))
    torch.cuda.set_per_process_memory_fraction(0.001)
    try:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        out["over the fraction"] = "allocated"
    except torch.OutOfMemoryError as e:
        out["over the fraction"] = str(e).split(". GPU")[0]
    return out


@case
def torch_expandable_segments():
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    torch = torch_for_repeating()
    out = {"values": allocate_and_free(torch)}
    stats = torch.cuda.memory_stats()
    out.update({k: repr(stats[k]) for k in STATISTICS})
    out["expandable"] = repr(all(s.get("is_expandable") for s in torch.cuda.memory_snapshot()))
    torch.cuda.empty_cache()
    out["again"] = allocate_and_free(torch)
    x = torch.zeros(0, device="cuda")
    for k in range(1, 30):  # one tensor that grows: its segment is extended in place
        x = torch.cat([x, torch.full((1 << 20,), float(k), device="cuda")])
    out["grown"] = digest(x)
    return out


@case
def torch_malloc_async():
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"
    torch = torch_for_repeating()
    out = {"backend": torch.cuda.get_allocator_backend(), "values": allocate_and_free(torch)}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = torch.arange(1 << 20, device="cuda") * 3
        y.record_stream(torch.cuda.current_stream())
    side.synchronize()
    out["side stream"] = digest(y)
    del y
    torch.cuda.empty_cache()
    out["again"] = allocate_and_free(torch)
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1000, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        (torch.tanh(x) + 1).sum()
    warm.synchronize()
    with torch.cuda.graph(graph):
        z = torch.tanh(x) + 1
    x.copy_(torch.linspace(-2, 2, 1000))
    graph.replay()
    out["graph"] = digest(z)
    return out


MANAGED_ALLOCATOR = r"""
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
extern int cudaMallocManaged(void **p, size_t bytes, unsigned flags), cudaFree(void *p);  // PyTorch's own
void *managed_alloc(ssize_t bytes, int device, void *stream) {
  void *p = NULL;
  return cudaMallocManaged(&p, (size_t)bytes, 1) ? NULL : p;
}
void managed_free(void *p, ssize_t bytes, int device, void *stream) { cudaFree(p); }
"""


@case
def torch_capture_without_memory():
    """Captures that fail for want of memory under cudaMallocAsync, with right ones behind them; a capture that
    another thread allocates beside."""
    import threading

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"
    torch = torch_for_repeating()
    out = {}

    def right():
        graph, static = torch.cuda.CUDAGraph(), torch.full((100,), 2.0, device="cuda")
        with torch.cuda.graph(graph):
            result = static * 3 + 1
        static.fill_(5)
        graph.replay()
        torch.cuda.synchronize()
        return float(result.sum())

    def allocate():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1024))
        except RuntimeError:
            pass

    def beside(mode):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(), capture_error_mode=mode):
                torch.zeros(2000, device="cuda") + 1
                other = threading.Thread(target=allocate)
                other.start()
                other.join()
        except RuntimeError as e:
            return first_line(e)
        return "right"

    out["before"] = right()
    for i in range(3):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.zeros(2**40, device="cuda")
            out[f"capture {i}"] = "no error"
        except RuntimeError as e:
            out[f"capture {i}"] = first_line(e)[:60]
        out[f"behind {i}"] = right()
    for mode in ("thread_local", "relaxed"):
        out[mode] = beside(mode)
        out[f"behind {mode}"] = right()
    return out


@case
def torch_managed():
    """Every tensor lies in unified memory; the CPU reads and writes it in place between kernels."""
    import ctypes
    import subprocess
    import tempfile

    import numpy

    torch = torch_for_repeating()
    with tempfile.TemporaryDirectory() as folder:
        library, runtime = f"{folder}/managed.so", next(
            l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l)
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, "-xc", "-", "-xnone", runtime],
                       input=MANAGED_ALLOCATOR, text=True, check=True)
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator(library, "managed_alloc", "managed_free"))
        g = generator(torch, 31)
        x, w = torch.randn(1000, 512, generator=g).cuda(), torch.randn(512, 512, generator=g).cuda().requires_grad_()
        there = numpy.ctypeslib.as_array((ctypes.c_float * x.numel()).from_address(x.data_ptr())).reshape(1000, 512)
        parts = []
        for k in range(10):
            loss = torch.tanh(x @ w).square().mean()
            loss.backward()
            torch.cuda.synchronize()
            parts.append(float(there[k, k]))
            there[k] += k  # by the CPU, in place
            with torch.no_grad():
                w -= 0.1 * w.grad
                w.grad = None
                x.mul_(1.5)
        torch.cuda.synchronize()
        return {"rows": digest(there.copy(), repr(parts)),
                "weights": digest(w), "sorted": digest(x.flatten().sort().values)}


@case
def torch_pinned_twice():
    """A copy to pinned memory behind a long kernel, and one from there whose conversion was never launched before:
    the driver holds that launch up."""
    torch = torch_for_repeating()
    out = {}
    for kind in (torch.float64, torch.int16, torch.complex64, torch.bool):
        a = torch.arange(1000, device="cuda", dtype=torch.float32)
        b = torch.zeros(1000, pin_memory=True)
        c = torch.zeros(1000, device="cuda", dtype=kind)
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        b.copy_(a, non_blocking=True)
        c.copy_(b, non_blocking=True)
        torch.cuda.synchronize()
        out[str(kind)] = digest(b, c)
    return out


@case
def torch_host_memory():
    torch = torch_for_repeating()
    out = {}
    shared = torch.randn(1 << 18, generator=generator(torch, 23))
    runtime = torch.cuda.cudart()
    torch.cuda.init()
    out["registered"] = repr(int(runtime.cudaHostRegister(shared.data_ptr(), shared.numel() * 4, 0)))
    d = shared.cuda(non_blocking=True)
    torch.cuda.synchronize()
    out["pinned"] = repr(shared.is_pinned())
    out["copied"] = digest(d)
    back = torch.empty_like(shared, pin_memory=True)
    back.copy_(d * 2, non_blocking=True)
    torch.cuda.synchronize()
    out["back"] = digest(back)
    out["unregistered"] = repr(int(runtime.cudaHostUnregister(shared.data_ptr())))
    strided = torch.randn(300, 400, generator=generator(torch, 24)).cuda()
    out["strided"] = digest(strided[::3, 5:300:7].cpu(), strided.t().cpu(), strided.t().contiguous()[10:20])
    return out
