#!/usr/bin/env python3
"""Runs the launches of a bundle on the GPU and compares with the results the bundle holds (see sim/ptx/ptxtest).

    ptx_check.py [--level N] [--image FATBIN] FILE.bundle...

libcuda.so.1 is found as any program finds it; SCUDA_LIBCUDA names another one.

The driver's compiler translates at optimization level N, 0 unless told: what it makes of random programs at level 4
is not always what PTX says, it takes minutes there, and for some it crashes. An image is loaded in place of the
bundles' modules. Prints each difference and one line a file; exits 1 where there was one. With a trace in the bundle
the instructions whose results differ are named. Needs nothing but Python.
"""

import argparse
import base64
import ctypes
import gzip
import json
import math
import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

cuda = ctypes.CDLL(os.environ.get("SCUDA_LIBCUDA", "libcuda.so.1"))
u64, u32, ptr = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p
cuda.cuLaunchKernel.argtypes = [ptr] + [u32] * 7 + [ptr, ptr, ptr]
cuda.cuMemcpyHtoD_v2.argtypes = [u64, ptr, ctypes.c_size_t]
cuda.cuMemcpyDtoH_v2.argtypes = [ptr, u64, ctypes.c_size_t]
cuda.cuModuleGetFunction.argtypes = [ptr, ptr, ctypes.c_char_p]
cuda.cuFuncSetAttribute.argtypes = [ptr, ctypes.c_int, ctypes.c_int]
cuda.cuModuleLoadDataEx.argtypes = [ptr, ctypes.c_char_p, u32, ptr, ptr]
cuda.cuCtxSetCurrent.argtypes = [ptr]


class CudaError(Exception):
    pass


def check(result, what):
    if result:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(result, ctypes.byref(name))
        raise CudaError(f"{what}: {(name.value or b'?').decode()} ({result})")


def start():
    check(cuda.cuInit(0), "cuInit")
    context = ptr()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    return context


def load(context, image, level):
    """Loads a module in any thread; returns it or the error with the compiler's log."""
    cuda.cuCtxSetCurrent(context)
    module, log = ptr(), ctypes.create_string_buffer(8192)
    options = (ctypes.c_int * 3)(5, 6, 7)  # CU_JIT_ERROR_LOG_BUFFER, its size, CU_JIT_OPTIMIZATION_LEVEL
    values = (ptr * 3)(ctypes.cast(log, ptr), ptr(len(log)), ptr(level))
    result = cuda.cuModuleLoadDataEx(ctypes.byref(module), image, 3, options, values)
    if result:
        return CudaError(f"cuModuleLoadDataEx gives {result}: {log.value.decode(errors='replace').strip()}")
    return module


class Arena:
    """One allocation from which each launch takes its buffers."""

    def __init__(self, size):
        self.base, self.size, self.used = u64(), size, 0
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.base), ctypes.c_size_t(size)), "cuMemAlloc")

    def take(self, n):
        at = (self.used + 255) & ~255
        self.used = at + n
        if self.used > self.size:
            raise CudaError(f"a launch needs more than {self.size} bytes")
        return self.base.value + at


def content(bundle, a):
    if a.get("input"):
        return base64.b64decode(bundle["inputs"][a["input"]])
    data = base64.b64decode(a.get("in") or "")
    return data + bytes([a.get("fill", 0)]) * (a["size"] - len(data))


def launch(bundle, modules, l, arena):
    """Runs a launch; returns each buffer's bytes afterwards (None for values)."""
    function = ptr()
    check(cuda.cuModuleGetFunction(ctypes.byref(function), modules[l["module"]], l["kernel"].encode()), l["kernel"])
    shared = l.get("shared", 0)
    if shared > 48 << 10:
        check(cuda.cuFuncSetAttribute(function, 8, shared), "cuFuncSetAttribute")
    arena.used = 0
    places, values = [], []
    for a in l["args"]:
        if a.get("value"):
            raw = base64.b64decode(a["value"])
            places.append(None)
        else:
            addr = arena.take(a["size"])
            data = content(bundle, a)
            check(cuda.cuMemcpyHtoD_v2(addr, data, len(data)), "cuMemcpyHtoD")
            places.append(addr)
            raw = struct.pack("<Q", addr)
        values.append(ctypes.create_string_buffer(raw, len(raw)))
    params = (ptr * max(len(values), 1))(*[ctypes.cast(v, ptr) for v in values])
    check(cuda.cuLaunchKernel(function, *l["grid"], *l["block"], shared, None, params, None), "cuLaunchKernel")
    check(cuda.cuCtxSynchronize(), f"{l['name']}: cuCtxSynchronize")
    results = []
    for a, addr in zip(l["args"], places):
        if addr is None:
            results.append(None)
            continue
        out = ctypes.create_string_buffer(a["size"])
        check(cuda.cuMemcpyDtoH_v2(out, addr, a["size"]), "cuMemcpyDtoH")
        results.append(out.raw)
    return results


def order(bits):
    return -(bits & 0x7FFFFFFF) if bits >> 31 else bits


def difference(a, got):
    """The first place where a buffer is not as wanted, or None."""
    want = base64.b64decode(a["want"])
    if got == want:
        return None
    kind = a.get("type", "")
    if not kind:
        size = 8 if len(want) % 8 == 0 else 1
        for i in range(0, len(want), size):
            if got[i : i + size] != want[i : i + size]:
                return f"word {i // size}: GPU {got[i:i+size][::-1].hex()}, simulation {want[i:i+size][::-1].hex()}"
    letter, size = {"f32": ("f", 4), "f16": ("e", 2)}[kind]
    count = 0
    text = None
    for i in range(0, len(want), size):
        x, y = struct.unpack_from("<" + letter, got, i)[0], struct.unpack_from("<" + letter, want, i)[0]
        if x == y or math.isnan(x) and math.isnan(y) or abs(x - y) <= a.get("tol", 0) * max(1, abs(y)):
            continue
        if kind == "f32" and abs(
            order(struct.unpack_from("<I", got, i)[0]) - order(
                struct.unpack_from("<I", want, i)[0])) <= a.get("ulp", 0):
            continue
        count += 1
        text = text or f"{kind} {i // size}: GPU {x!r}, simulation {y!r}"
    return text and f"{text} ({count} of {len(want) // size} differ)"


def traced(l, a, got):
    """Names the instructions whose results differ, the first 20 of them."""
    want = base64.b64decode(a["want"])
    threads = l["block"][0]
    found = []
    for k, step in enumerate(l["steps"]):
        gpu, simulation = ([data[at : at + 8][::-1].hex() for at in range(k * threads * 8, (k + 1) * threads * 8, 8)]
                           for data in (got, want))
        places = [t for t in range(threads) if gpu[t] != simulation[t]]
        if places:
            first = places[0]
            found.append(f"step {k} `{step}` in {len(places)} threads; thread {first}: GPU {gpu[first]}, "
                         f"simulation {simulation[first]}")
    return "\n    ".join(found[:20])


def alone(text, kernel):
    """A module's text with one of its kernels only."""
    head, *entries = text.split(".visible .entry ")
    return head + "".join(".visible .entry " + e for e in entries if e.startswith(kernel + "("))


def run(path, module, first, only, level, image):
    """Runs the launches of one module from the first on, with only its kernel if so asked; returns the place after
    the last, and how many differed, were refused or failed."""
    context = start()
    arena = Arena(256 << 20)
    with gzip.open(path, "rt") as f:
        bundle = json.load(f)
    launches = [l for l in bundle["launches"] if l["module"] == module]
    text = bundle["modules"][module]
    last = first + 1 if only else len(launches)
    if image:
        with open(image, "rb") as f:
            loaded = load(context, f.read(), level)
    else:
        loaded = load(context, (alone(text, launches[first]["kernel"]) if only else text).encode(), level)
    if isinstance(loaded, CudaError):
        print(f"{path}: module {module}: {loaded}")
        return last, 0, last - first, 0
    bad = 0
    for place, l in enumerate(launches[first:last], first):
        try:
            results = launch(bundle, {module: loaded}, l, arena)
        except CudaError as e:  # the context is lost, and perhaps the process
            print(f"FAILED {e}")
            return place + 1, bad, 0, 1
        found = []
        for i, (a, got) in enumerate(zip(l["args"], results)):
            if not a.get("want"):
                continue
            d = traced(l, a, got) if l.get("steps") and i == len(l["args"]) - 1 else difference(a, got)
            if d:
                found.append(f"argument {i}: {d}")
        if found:
            bad += 1
            print(f"DIFFERENT {l['name']}: " + "; ".join(found))
    return last, bad, 0, 0


def whole(path, module, launches, level, image):
    """Runs a module's launches in as many processes as it takes: a launch that fails ends its own, and a compiler
    that crashes too."""
    done, total, text, only = 0, [0, 0, 0], [], False
    while done < launches:
        child = subprocess.run(
            [sys.executable, __file__, "--level", str(level), "--image", image, "--part",
             str(module), str(done), str(int(only)), path], stdout=subprocess.PIPE, text=True)
        *lines, answer = child.stdout.splitlines() or [""]
        if child.returncode and not only:
            only = True  # finds the kernel
            continue
        if child.returncode:
            lines = [f"{path}: module {module}: the process for launch {done} ended with {child.returncode}; "
                     f"{child.stdout}"]
            answer = json.dumps([done + 1, 0, 1, 0])
        text += lines
        done, *counts = json.loads(answer)
        total = [a + b for a, b in zip(total, counts)]
    return text, total


def compare(path, level, image):
    begin = time.monotonic()
    with gzip.open(path, "rt") as f:
        bundle = json.load(f)
    launches = [0] * len(bundle["modules"])
    for l in bundle["launches"]:
        launches[l["module"]] += 1
    total = [0, 0, 0]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for text, counts in pool.map(lambda m: whole(path, m, launches[m], level, image), range(len(launches))):
            if text:
                print("\n".join(text), flush=True)
            total = [a + b for a, b in zip(total, counts)]
    print(f"{path}: {sum(launches)} launches at level {level}, {total[0]} different, {total[1]} refused, "
          f"{total[2]} failed; {time.monotonic() - begin:.1f} s", flush=True)
    return sum(total)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", type=int, default=0)
    parser.add_argument("--image", default="")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)  # module, first launch, whether alone
    parser.add_argument("bundles", nargs="+")
    args = parser.parse_args()
    if args.part:
        module, first, only = map(int, args.part)
        print(json.dumps(run(args.bundles[0], module, first, only, args.level, args.image)), flush=True)
        os._exit(0)
    sys.exit(1 if sum([compare(b, args.level, args.image) for b in args.bundles]) else 0)


if __name__ == "__main__":
    main()
