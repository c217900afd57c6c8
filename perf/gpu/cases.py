"""The correctness cases: each computes something on the GPU and returns digests that must be the same natively and
through scuda.

Run as `cases.py NAME`; prints one JSON line {"case", "out", "info"}. What stands in "out" is compared, "info" is only
shown.
"""

import json
import os
import sys
import threading
import time
import warnings

from suite import CASES, Absent, digest, suite, torch_for_repeating

case = suite("pr1")


def random_bytes(torch, n, seed):
    g = torch.Generator().manual_seed(seed)
    words = (n + 7) // 8
    return torch.randint(-(2**62), 2**62, (words,), dtype=torch.int64, generator=g).view(torch.uint8)[:n].clone()


SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 64, 100, 255, 256, 257, 1000, 4095, 4096, 4097, 32768, 65535, 65536, 65537,
         1 << 17, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20, (16 << 20) + 5, 64 << 20]


@case
def tensors():
    torch = torch_for_repeating()
    out = {}
    for n in SIZES:
        a = random_bytes(torch, n, n)
        d = a.cuda()
        assert torch.equal(d.cpu(), a), n
        p = torch.empty(n, dtype=torch.uint8, pin_memory=True)
        p.copy_(a)
        e = torch.empty(n, dtype=torch.uint8, device="cuda")
        e.copy_(p, non_blocking=True)
        q = torch.empty(n, dtype=torch.uint8, pin_memory=True)
        q.copy_(e, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(q, a), n
        f = e.clone()
        f[: n // 2] += 3
        out[str(n)] = digest(f, q)
    # Values that only the GPU makes: its random numbers, fills, views with strides, several types.
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out[str(dtype)] = digest(torch.randn(1000, 77, device="cuda", dtype=dtype).t()[3:50:2].contiguous().float())
    out["arange"] = digest(torch.arange(1 << 20, device="cuda").flip(0)[::3].contiguous())
    out["full"] = digest(torch.full((123, 457), 2.5, device="cuda"))
    return out


@case
def tensors_large():
    torch = torch_for_repeating()
    out = {}
    for n in (256 << 20, (1 << 30) + 3, 2 << 30):
        block = random_bytes(torch, 16 << 20, n & 0xFFFF)
        a = block.repeat((n + len(block) - 1) // len(block))[:n].clone()
        a[-1] = 77
        d = a.cuda()
        back = d.cpu()
        assert torch.equal(back, a), n
        out[str(n)] = digest(d.view(-1)[: n // 8 * 8].view(torch.int64).sum(), back[-4096:])
        del a, d, back
    p = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    p.copy_(random_bytes(torch, 1 << 20, 1).repeat(1024))
    d = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    d.copy_(p, non_blocking=True)
    d += 1
    p.copy_(d, non_blocking=True)
    torch.cuda.synchronize()
    out["pinned 1 GiB"] = digest(p[: 1 << 20], p[-(1 << 20):])
    return out


def resnet(torch, dtype):
    import torchvision

    torch.manual_seed(1)
    return torchvision.models.resnet50(weights=None).to("cuda", dtype=dtype)


def resnet_train(dtype_name):
    torch = torch_for_repeating()
    dtype = getattr(torch, dtype_name)
    model = resnet(torch, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for step in range(4):
        g = torch.Generator().manual_seed(step)
        x = torch.randn(16, 3, 224, 224, generator=g).to("cuda", dtype=dtype)
        y = torch.randint(0, 1000, (16,), generator=g).cuda()
        loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": [repr(v) for v in losses], "weights": digest(*model.state_dict().values())}


def resnet_infer(dtype_name):
    torch = torch_for_repeating()
    dtype = getattr(torch, dtype_name)
    model = resnet(torch, dtype).eval()
    x = torch.randn(32, 3, 224, 224, generator=torch.Generator().manual_seed(9)).to("cuda", dtype=dtype)
    with torch.no_grad():
        y = model(x)
        z = model(x.to(memory_format=torch.channels_last))
    return {"logits": digest(y), "channels_last": digest(z), "first": repr(y[0, :3].tolist())}


@case
def resnet_train_fp32():
    return resnet_train("float32")


@case
def resnet_train_fp16():
    return resnet_train("float16")


@case
def resnet_infer_fp32():
    return resnet_infer("float32")


@case
def resnet_infer_fp16():
    return resnet_infer("float16")


def gpt2(torch):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    return GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)).cuda()


@case
def gpt2_train():
    torch = torch_for_repeating()
    model = gpt2(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for step in range(4):
        tokens = torch.randint(0, 50257, (4, 256), generator=torch.Generator().manual_seed(step)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": [repr(v) for v in losses], "weights": digest(*model.state_dict().values())}


@case
def gpt2_generate():
    torch = torch_for_repeating()
    model = gpt2(torch).eval()
    prompt = torch.randint(0, 50257, (2, 16), generator=torch.Generator().manual_seed(5)).cuda()
    with torch.no_grad():
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt),
                                max_new_tokens=48, do_sample=False, pad_token_id=50256)
    return {"tokens": digest(tokens), "tail": repr(tokens[0, -6:].tolist())}


@case
def cuda_graph():
    torch = torch_for_repeating()
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    x = torch.zeros(64, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x) + x
        x.copy_(torch.tanh(y))
    x.copy_(torch.randn(64, 256, generator=torch.Generator().manual_seed(3)))
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    out = {"replayed": digest(x, y)}

    step = torch.cuda.make_graphed_callables(model, (torch.randn(64, 256, device="cuda", requires_grad=True),))
    z = torch.randn(64, 256, generator=torch.Generator().manual_seed(4)).cuda().requires_grad_()
    step(z).square().mean().backward()
    out["graphed callable"] = digest(z.grad, *[p.grad for p in model.parameters()])
    return out


@case
def streams():
    torch = torch_for_repeating()
    out, info = {}, {}
    ss = [torch.cuda.Stream(priority=-(i % 2)) for i in range(6)]
    base = torch.randn(512, 512, generator=torch.Generator().manual_seed(1)).cuda()
    torch.cuda.synchronize()
    results = []
    for i, s in enumerate(ss):
        with torch.cuda.stream(s):
            v = base
            for _ in range(10):
                v = torch.tanh(v @ base / 16 + i)
            results.append(v)
    for s in ss:
        torch.cuda.current_stream().wait_stream(s)
    out["six streams"] = digest(torch.stack(results).sum(0))

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    out["not finished at once"] = repr(end.query())
    end.synchronize()
    info["ms"] = begin.elapsed_time(end)
    out["took some ms"] = repr(5 < info["ms"] < 100)
    out["finished"] = repr(end.query())

    # An event of one stream holds another back.
    a = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with torch.cuda.stream(ss[0]):
        torch.cuda._sleep(20_000_000)
        a += 1
        done.record()
    ss[1].wait_event(done)
    with torch.cuda.stream(ss[1]):
        b = a * 2
    ss[1].synchronize()
    out["event order"] = digest(b)
    return out, info


@case
def threads():
    torch = torch_for_repeating()
    torch.zeros(1, device="cuda")
    results = [None] * 8
    errors = []

    def work(i):
        try:
            s = torch.cuda.Stream()
            with torch.cuda.stream(s):
                v = torch.randn(256, 256, generator=torch.Generator().manual_seed(i)).cuda()
                for k in range(200):
                    v = torch.sin(v + k) @ v / 16
                    if k % 20 == 0:
                        v = v + float(v[0, 0])
                s.synchronize()
            results[i] = digest(v)
        except BaseException as e:  # shown by the main thread
            errors.append(repr(e))

    ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert not errors, errors

    # A launches, B synchronises: B's wait covers A's launch.
    flag = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    launched = threading.Event()

    def launch():
        torch.cuda._sleep(50_000_000)
        flag.add_(41)
        launched.set()

    t = threading.Thread(target=launch)
    t.start()
    launched.wait()
    torch.cuda.synchronize()
    q = torch.zeros(1, pin_memory=True)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        q.copy_(flag, non_blocking=True)
        other.synchronize()
    t.join()
    return {"threads": results, "seen by B": repr(q.item())}


class Noise:
    """A data set that a forked worker computes."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        import torch

        return torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(i)), i


@case
def dataloader():
    torch = torch_for_repeating()
    out = {}
    before = torch.utils.data.DataLoader(Noise(64), batch_size=8, num_workers=4, multiprocessing_context="fork")
    out["before init"] = digest(*[x for x, _ in before])
    torch.zeros(1, device="cuda")
    loader = torch.utils.data.DataLoader(Noise(256), batch_size=16, num_workers=4,
                                         pin_memory=True, multiprocessing_context="fork", persistent_workers=True)
    for epoch in range(2):
        total = torch.zeros(3, 64, 64, device="cuda")
        for x, i in loader:
            assert x.is_pinned()
            total += x.to("cuda", non_blocking=True).sum(0) * i.to("cuda", non_blocking=True).sum()
        out[f"epoch {epoch}"] = digest(total)
    # A child of a process that uses CUDA is refused, as natively, and does not hang.
    import multiprocessing

    def child(pipe):
        try:
            torch.zeros(1).cuda()
            pipe.send("worked")
        except BaseException as e:
            pipe.send(f"{type(e).__name__}: {str(e)[:60]}")

    here, there = multiprocessing.get_context("fork").Pipe()
    p = multiprocessing.get_context("fork").Process(target=child, args=(there,))
    p.start()
    out["forked child"] = here.recv() if here.poll(30) else "hangs"
    p.join(5)
    return out


@case
def fft():
    torch = torch_for_repeating()
    out = {}
    for shape in ((1000,), (64, 1024), (17, 31, 33), (1 << 20,)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).cuda()
        f = torch.fft.fftn(x)
        out[str(shape)] = digest(torch.view_as_real(f), torch.fft.ifftn(f).real, torch.view_as_real(torch.fft.rfft(x)))
    x = torch.randn(512, 512, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).cuda()
    out["float64"] = digest(torch.view_as_real(torch.fft.fft2(x)))
    return out


@case
def linalg():
    torch = torch_for_repeating()
    g = torch.Generator().manual_seed(3)
    out = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        a = torch.randn(777, 513, generator=g).to("cuda", dtype)
        b = torch.randn(513, 331, generator=g).to("cuda", dtype)
        out[f"matmul {dtype}"] = digest((a @ b).float())
    a = torch.randn(200, 200, generator=g).cuda()
    spd = a @ a.t() + 200 * torch.eye(200, device="cuda")
    out["cholesky"] = digest(torch.linalg.cholesky(spd))
    out["solve"] = digest(torch.linalg.solve(spd, a))
    out["svd"] = digest(torch.linalg.svdvals(a))
    out["sort"] = digest(torch.sort(torch.randn(1 << 20, generator=g).cuda())[0])
    w = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
    out["conv"] = digest(w(torch.randn(4, 8, 50, 50, generator=g).cuda()))
    out["sdpa"] = digest(
        torch.nn.functional.scaled_dot_product_attention(
            *[torch.randn(2, 4, 128, 64, generator=g).to("cuda", torch.bfloat16) for _ in range(3)], is_causal=True))
    return out


@case
def triton_kernel():
    torch = torch_for_repeating()
    import triton_case

    return triton_case.run(torch, digest)


@case
def torch_compile():
    torch = torch_for_repeating()

    def f(x, w):
        return torch.softmax(torch.nn.functional.gelu(x @ w), -1).sum(0) + x.mean()

    g = torch.Generator().manual_seed(3)
    x, w = torch.randn(256, 512, generator=g).cuda(), torch.randn(512, 1024, generator=g).cuda().requires_grad_()
    fast = torch.compile(f)
    y = fast(x, w)
    y.square().sum().backward()
    error = (y - f(x, w)).abs().max().item()
    assert error < 1e-3, error
    graphed = torch.compile(f, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            z = graphed(x, w).clone()
    return {"forward": digest(y), "backward": digest(w.grad), "cudagraphs": digest(z)}


@case
def cupy_raw():
    import cupy

    kernel = cupy.RawKernel(r"""
    extern "C" __global__ void mix(const float *a, const float *b, float *c, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) c[i] = sinf(a[i]) * b[i] + (float)(i % 7);
    }""", "mix")
    import numpy

    r = numpy.random.default_rng(0)
    a, b = (cupy.asarray(r.standard_normal(100_003, dtype=numpy.float32)) for _ in range(2))
    c = cupy.zeros_like(a)
    kernel(((len(a) + 255) // 256,), (256,), (a, b, c, numpy.int32(len(a))))
    m = cupy.asarray(r.standard_normal((300, 300), dtype=numpy.float32))
    return {"kernel": digest(c.get()), "matmul": digest((m @ m.T).get()),
            "sum": digest(c.sum().get()), "sort": digest(cupy.sort(c).get()),
            "elementwise": digest((cupy.exp(-a * a) + b).get())}


@case
def jax_jit():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
    import jax
    import jax.numpy as jnp
    import numpy

    assert jax.devices()[0].platform == "gpu", jax.devices()
    r = numpy.random.default_rng(0)
    w1, w2, x = (jnp.asarray(r.standard_normal(s, dtype=numpy.float32)) for s in ((256, 512), (512, 64), (128, 256)))

    @jax.jit
    def loss(w, x):
        return jnp.mean(jnp.square(jnp.tanh(x @ w[0]) @ w[1]))

    grad = jax.jit(jax.grad(loss))
    w = (w1, w2)
    for _ in range(10):
        w = jax.tree.map(lambda p, g: p - 0.01 * g, w, grad(w, x))
    return {"loss": digest(numpy.asarray(loss(w, x))),
            "weights": digest(*map(numpy.asarray, w)), "device": jax.devices()[0].device_kind}


@case
def out_of_memory():
    torch = torch_for_repeating()
    out = {}
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        out["allocated"] = "32 TiB"
    except torch.OutOfMemoryError as e:
        out["error"] = str(e).split(". GPU")[0]
    x = torch.ones(1000, device="cuda")
    out["afterwards"] = repr(x.sum().item())
    out["total"] = repr(torch.cuda.mem_get_info()[1])
    return out


@case
def device_assert():
    """An index out of range trips a device-side assertion: an error at the next synchronisation, sticky."""
    torch = torch_for_repeating()
    out = {}
    x = torch.ones(10, device="cuda")
    for attempt in ("first", "second"):
        try:
            x[torch.tensor([100], device="cuda")].sum().item()
            out[attempt] = "no error"
        except RuntimeError as e:
            out[attempt] = str(e).splitlines()[0]
    return out


@case
def properties():
    torch = torch_for_repeating()
    p = torch.cuda.get_device_properties(0)
    out = {k: str(getattr(p, k)) for k in sorted(dir(p)) if not k.startswith("_") and not callable(getattr(p, k))}
    out["capability"] = repr(torch.cuda.get_device_capability())
    out["count"] = repr(torch.cuda.device_count())
    out["arch"] = repr(torch.cuda.get_arch_list())
    return out


def used_driver():
    """The driver library that this process has loaded, as the kernel sees it."""
    with open("/proc/self/maps") as f:
        return sorted({line.split()[-1] for line in f if "libcuda.so" in line})


def main():
    name = sys.argv[1]
    warnings.simplefilter("ignore")
    begin = time.monotonic()
    try:
        result = CASES[name]()
    except Absent as e:
        result = {"absent": str(e)}
    out, info = result if isinstance(result, tuple) else (result, {})
    info["seconds"] = round(time.monotonic() - begin, 3)
    info["driver"] = used_driver()
    print(json.dumps({"case": name, "out": out, "info": info}), flush=True)


import allocators  # noqa: E402  (they register their cases)
import frameworks  # noqa: E402
import libraries  # noqa: E402
import management  # noqa: E402
import processes  # noqa: E402
import profiles  # noqa: E402

assert allocators and frameworks and libraries and management and processes and profiles

if __name__ == "__main__":
    main()
