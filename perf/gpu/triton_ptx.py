#!/usr/bin/env python3
"""Compiles Triton kernels to PTX, runs them on the GPU and writes both into a bundle for the tests of the simulation.

    triton_ptx.py [FILE]       FILE is sim/testdata/triton.bundle in the end; default $OUT/triton.bundle

Needs triton (3.4 or newer). The kernels are a softmax and matrix products of several types; those for sm_80, and
those of fewer than four warps, use mma.sync, which the simulation knows (wgmma it refuses by name).
"""

import base64
import gzip
import json
import os
import random
import re
import struct
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ptx_check  # noqa: E402


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + i, mask=i < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * columns + i, e / tl.sum(e, 0), mask=i < columns)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BLOCK: tl.constexpr, ACC: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=ACC)
    for k0 in range(0, K, BLOCK):
        k = k0 + tl.arange(0, BLOCK)
        u = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0)
        v = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0)
        total = tl.dot(u, v, total, out_dtype=ACC)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


def compiled(kernel, signature, constants, capability, warps):
    names = list(signature) + list(constants)
    full = {**signature, **{k: "constexpr" for k in constants}}
    attributes = {(names.index(k),): [["tt.divisibility", 16]] for k in signature}
    source = ASTSource(kernel, full, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32),
                          options={"num_warps": warps, "num_stages": 2})


def pack(kind, values):
    if kind == "bf16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}" + {"fp16": "e", "fp32": "f", "i8": "b"}[kind], *values)


def b64(data):
    return base64.b64encode(data).decode()


def buffer(data):
    return {"size": len(data), "in": b64(data)}


def number(v):
    return {"value": b64(struct.pack("<i", v))}


def cases(rng):
    columns, rows = 781, 20
    x = pack("fp32", [rng.gauss(0, 1) for _ in range(rows * columns)])
    for capability in (80, 90):
        k = compiled(softmax_kernel, {"x": "*fp32", "y": "*fp32", "columns": "i32"}, {"BLOCK": 1024}, capability, 4)
        # 784 columns in memory: what divides by 16 was promised.
        args = [buffer(x + bytes(4 * rows * 784 - len(x))),
                {"size": 4 * rows * 784, "type": "f32", "tol": 1e-6}, number(784)]
        yield f"softmax sm_{capability}", k, [rows, 1, 1], 128, args
    m, n, kk = 96, 80, 112
    for kind, acc, out, capability, warps, tolerance in (
        ("fp16", tl.float32, "fp32", 80, 4, 1e-4), ("fp16", tl.float32, "fp32", 90, 2, 1e-4),
        ("bf16", tl.float32, "fp32", 80, 4, 1e-4),
        ("fp32", tl.float32, "fp32", 80, 4, 1e-3), ("i8", tl.int32, "i32", 80, 4, 0), ("i8", tl.int32, "i32", 90, 2, 0),
    ):
        signature = {"a": "*" + kind, "b": "*" + kind, "c": "*" + out, "M": "i32", "N": "i32", "K": "i32"}
        k = compiled(matmul_kernel, signature, {"BLOCK": 32, "ACC": acc}, capability, warps)
        value = (lambda: rng.randint(-128, 127)) if kind == "i8" else (lambda: rng.gauss(0, 1))
        a, b = pack(kind, [value() for _ in range(m * kk)]), pack(kind, [value() for _ in range(kk * n)])
        c = {"size": 4 * m * n}
        if tolerance:
            c.update(type="f32", tol=tolerance)
        grid = [-(-m // 32), -(-n // 32), 1]
        yield f"matmul {kind} sm_{capability} {warps} warps", k, grid, 32 * warps, [buffer(a),
            buffer(b), c, number(m), number(n), number(kk)]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.environ.get("OUT", "."), "triton.bundle")
    context = ptx_check.start()
    arena = ptx_check.Arena(64 << 20)
    bundle = {"modules": [], "launches": []}
    for name, kernel, grid, threads, args in cases(random.Random(1)):
        text = kernel.asm["ptx"]
        entry = re.search(r"\.entry\s+(\w+)\s*\(([^)]*)\)", text)
        # Behind the kernel's own parameters Triton has pointers to scratch memory, which these kernels do not use.
        for _ in range(entry[2].count(".param") - len(args)):
            args.append({"value": b64(bytes(8))})
        module = ptx_check.load(context, text)
        if isinstance(module, ptx_check.CudaError):
            sys.exit(f"{name}: {module}")
        l = {"name": name, "module": len(bundle["modules"]), "kernel": entry[1], "grid": grid, "block": [threads, 1, 1],
             "shared": kernel.metadata.shared, "args": args}
        bundle["modules"].append(text)
        bundle["launches"].append(l)
        results = ptx_check.launch(bundle, [None] * l["module"] + [module], l, arena)
        for a, got in zip(args, results):
            if got is not None and "in" not in a:
                a["want"] = b64(got)
        found = sorted(set(re.findall(r"\b(?:mma|wgmma|ldmatrix|cp\.async|mbarrier)[\w.:]*", text)))
        print(f"{name}: {len(text)} bytes of PTX, {kernel.metadata.shared} bytes shared, "
              f"{', '.join(found) or 'no matrix instructions'}")
    with gzip.open(path, "wt") as f:
        json.dump(bundle, f)
    print(path, os.path.getsize(path) >> 10, "KiB")


if __name__ == "__main__":
    main()
