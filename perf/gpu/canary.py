#!/usr/bin/env python3
"""Looks in new GPU memory for what an ended process left there.

    run.sh native perf/gpu/canary.py [--gib 100] [--only WORD]...
    run.sh remote perf/gpu/canary.py [--gib 100] [--only WORD]...

One process fills memory with a word of its own (the canary), counts it, and ends. Another process takes all memory
that is free and counts the canary there. Each case has a canary of its own, so what an earlier case left is not
counted. A case prints one JSON line (to $OUT/canary.jsonl as well): `filled` and `looked` are bytes, `found` is bytes
of the canary. `control` cases say what one process sees of its own freed memory; they show what is found where nobody
clears. The status is 1 if a case other than those found anything, or looked at less than was filled.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
EVERYWHERE = ("malloc", "async", "vmm", "managed", "array")  # what may lie in any memory of the GPU
PIECE = 4 * GIB  # one array, one allocation of cuMemCreate
SHARED = 96 << 10
LOCAL = 4096  # bytes a thread, as in the kernels below

LOOP = """
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;
"""
REGISTERS = ".reg .u32 %r<9>; .reg .u64 %d<12>; .reg .pred %p<4>;"
PTX = f"""
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 pad[];
.visible .entry count(.param .u64 from, .param .u64 words, .param .u64 canary, .param .u64 out) {{
  {REGISTERS}
  ld.param.u64 %d1, [from]; ld.param.u64 %d2, [words]; ld.param.u64 %d3, [canary]; ld.param.u64 %d4, [out];
  {LOOP}
  mul.wide.u32 %d5, %r1, %r2; cvt.u64.u32 %d6, %r3; add.u64 %d5, %d5, %d6;
  mul.wide.u32 %d7, %r4, %r2;
  mov.u64 %d8, 0;
next:
  setp.ge.u64 %p1, %d5, %d2; @%p1 bra done;
  shl.b64 %d9, %d5, 3; add.u64 %d9, %d9, %d1;
  ld.global.u64 %d10, [%d9];
  setp.eq.u64 %p2, %d10, %d3; @%p2 add.u64 %d8, %d8, 1;
  add.u64 %d5, %d5, %d7; bra next;
done:
  setp.eq.u64 %p3, %d8, 0; @%p3 ret;
  atom.global.add.u64 %d11, [%d4], %d8;
  ret;
}}
"""
for where, space, bytes_ in (("shared", "shared", "%r5"), ("local", "local", str(LOCAL))):
    for verb in ("write", "read"):
        mine = "mov.u64 %d7, pad; mul.lo.u32 %r7, %r3, 8; mul.lo.u32 %r8, %r2, 8;"
        if where == "local":
            mine = "mov.u64 %d7, own; mov.u32 %r7, 0; mov.u32 %r8, 8;"
        plain = space if where == "local" else f"volatile.{space}"  # ptxas knows no volatile local memory
        step = f"st.{plain}.u64 [%d9], %d3;" if verb == "write" else ""
        step += f"ld.{plain}.u64 %d10, [%d9]; setp.eq.u64 %p2, %d10, %d3; @%p2 add.u64 %d8, %d8, 1;"
        PTX += f"""
.visible .entry {where}_{verb}(.param .u32 size, .param .u64 canary, .param .u64 out) {{
  {REGISTERS}
  {'.local .align 16 .b8 own[%d];' % LOCAL if where == 'local' else ''}
  ld.param.u32 %r5, [size]; ld.param.u64 %d3, [canary]; ld.param.u64 %d4, [out];
  {LOOP}
  {mine}
  mov.u64 %d8, 0;
next:
  setp.ge.u32 %p1, %r7, {bytes_}; @%p1 bra done;
  cvt.u64.u32 %d9, %r7; add.u64 %d9, %d9, %d7;
  {step}
  add.u32 %r7, %r7, %r8; bra next;
done:
  setp.eq.u64 %p3, %d8, 0; @%p3 ret;
  atom.global.add.u64 %d11, [%d4], %d8;
  ret;
}}
"""


class Failed(Exception):
    pass


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint)]


class Copy2D(ctypes.Structure):
    _fields_ = [(side + name, kind) for side in ("src", "dst") for name, kind in (
        ("XInBytes", ctypes.c_size_t), ("Y", ctypes.c_size_t), ("Type", ctypes.c_int), ("Host", ctypes.c_void_p),
        ("Device", ctypes.c_uint64), ("Array", ctypes.c_void_p), ("Pitch", ctypes.c_size_t))]
    _fields_ += [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]


class GPU:
    """The driver API, a context, and the kernels."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), ctypes.c_char_p(PTX.encode()))
        self.out = self.malloc(8)

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise Failed(f"{name}: {status}")

    def malloc(self, size):
        p = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(size))
        return p.value

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def launch(self, name, blocks, threads, shared, *arguments):
        f = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(f), self.module, name.encode())
        if shared > 48 << 10:
            self.call("cuFuncSetAttribute", f, 8, shared)
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self.call("cuMemsetD8_v2", ctypes.c_uint64(self.out), 0, ctypes.c_size_t(8))
        self.call("cuLaunchKernel", f, blocks, 1, 1, threads, 1, 1, shared, None, pointers, None)
        result = ctypes.c_uint64()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(result), ctypes.c_uint64(self.out), ctypes.c_size_t(8))
        return result.value

    def count(self, address, size, canary):
        """The bytes of the canary from an address."""
        word = ctypes.c_uint64(canary << 32 | canary)
        return 8 * self.launch("count", 1056 if size > 64 * MIB else 8, 512, 0, ctypes.c_uint64(address),
                               ctypes.c_uint64(size // 8), word, ctypes.c_uint64(self.out))

    def fill(self, address, size, canary):
        self.call("cuMemsetD32_v2", ctypes.c_uint64(address), canary, ctypes.c_size_t(size // 4))


class Linear:
    """Memory with an address, of one kind."""

    def __init__(self, gpu, kind):
        self.gpu, self.kind, self.pieces = gpu, kind, []

    def add(self, size):
        g, p = self.gpu, ctypes.c_uint64()
        handle, at = None, None
        if self.kind == "malloc":
            g.call("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(size))
        elif self.kind == "async":
            g.call("cuMemAllocAsync", ctypes.byref(p), ctypes.c_size_t(size), None)
            g.call("cuCtxSynchronize")
        elif self.kind == "managed":
            g.call("cuMemAllocManaged", ctypes.byref(p), ctypes.c_size_t(size), 1)
            g.call("cuMemPrefetchAsync", p, ctypes.c_size_t(size), 0, None)
        elif self.kind == "host":
            at = ctypes.c_void_p()
            g.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), 2)
            g.call("cuMemHostGetDevicePointer_v2", ctypes.byref(p), at, 0)
        elif self.kind == "vmm":
            size = -(-size // (2 * MIB)) * 2 * MIB
            prop = AllocationProp(1, 0, Location(1, 0), None)
            handle = ctypes.c_uint64()
            g.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))
            g.call("cuMemAddressReserve", ctypes.byref(p), ctypes.c_size_t(size), ctypes.c_size_t(0),
                   ctypes.c_uint64(0), ctypes.c_uint64(0))
            g.call("cuMemMap", p, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
            access = Access(Location(1, 0), 3)
            g.call("cuMemSetAccess", p, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        self.pieces.append((p.value, size, handle, at))
        return size

    def fill(self, canary):
        for address, size, *_ in self.pieces:
            self.gpu.fill(address, size, canary)

    def count(self, canary):
        return sum(self.gpu.count(address, size, canary) for address, size, *_ in self.pieces)

    def free(self):
        g = self.gpu
        for address, size, handle, at in self.pieces:
            p = ctypes.c_uint64(address)
            if self.kind == "async":
                g.call("cuMemFreeAsync", p, None)
            elif self.kind == "host":
                g.call("cuMemFreeHost", at)
            elif self.kind == "vmm":
                g.call("cuMemUnmap", p, ctypes.c_size_t(size))
                g.call("cuMemRelease", handle)
                g.call("cuMemAddressFree", p, ctypes.c_size_t(size))
            else:
                g.call("cuMemFree_v2", p)
        g.call("cuCtxSynchronize")
        self.pieces = []


class Arrays:
    """Arrays of rows of 1 MiB, filled and counted through a buffer."""
    ROW = MIB
    ROWS = 64

    def __init__(self, gpu, _):
        self.gpu, self.pieces = gpu, []
        self.buffer = gpu.malloc(self.ROW * self.ROWS)
        self.before = None  # bytes of the canary that lay in the buffer itself

    def add(self, size):
        rows = max(1, size // self.ROW)
        array = ctypes.c_void_p()
        shape = ArrayDescriptor(self.ROW // 16, rows, 3, 4)
        self.gpu.call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(shape))
        self.pieces.append((array, rows))
        return rows * self.ROW

    def each(self, array, rows, out):
        for y in range(0, rows, self.ROWS):
            c = Copy2D(width=self.ROW, height=min(self.ROWS, rows - y))
            a, b = ("src", "dst") if out else ("dst", "src")
            for name, value in ((a + "Type", 3), (a + "Array", array), (a + "Y", y), (b + "Type", 2),
                                (b + "Device", self.buffer), (b + "Pitch", self.ROW)):
                setattr(c, name, value)
            self.gpu.call("cuMemcpy2D_v2", ctypes.byref(c))
            yield c.height * self.ROW

    def fill(self, canary):
        self.before = 0
        self.gpu.fill(self.buffer, self.ROW * self.ROWS, canary)
        for array, rows in self.pieces:
            for _ in self.each(array, rows, False):
                pass

    def count(self, canary):
        if self.before is None:
            self.before = self.gpu.count(self.buffer, self.ROW * self.ROWS, canary)
        found = 0
        for array, rows in self.pieces:
            for size in self.each(array, rows, True):
                found += self.gpu.count(self.buffer, size, canary)
        return found + self.before

    def free(self):
        for array, _ in self.pieces:
            self.gpu.call("cuArrayDestroy", array)
        self.pieces = []


class OnChip:
    """Shared memory of every block, or the local memory of every thread."""

    def __init__(self, gpu, kind):
        self.gpu, self.kind, self.blocks = gpu, kind, 0

    def add(self, size):
        each = SHARED if self.kind == "shared" else 256 * LOCAL
        blocks = max(1, size // each)
        self.blocks += blocks
        return blocks * each

    def run(self, verb, canary):
        shared = SHARED if self.kind == "shared" else 0
        return self.gpu.launch(f"{self.kind}_{verb}", self.blocks, 256, shared, ctypes.c_uint32(shared),
                               ctypes.c_uint64(canary << 32 | canary), ctypes.c_uint64(self.gpu.out))

    def fill(self, canary):
        self.there = 8 * self.run("write", canary)  # another launch need not see it

    def count(self, canary):
        return 8 * self.run("read", canary)

    def free(self):
        pass


def memory(gpu, kind):
    return {"array": Arrays, "shared": OnChip, "local": OnChip}.get(kind, Linear)(gpu, kind)


def take(m, kind, want):
    """Takes `want` bytes in pieces, fewer where there is no more."""
    got, piece = 0, PIECE
    while got < want:
        try:
            got += m.add(min(piece, want - got))
        except Failed:
            piece //= 2
            if piece < 16 * MIB:
                break
    return got


def wait_free(gpu, least):
    """Waits until as much is free as before the first process began: a server ends a session a moment later. Returns
    what may be taken: where all is taken, no other process can start."""
    deadline = time.monotonic() + 10
    while gpu.free_bytes() < least and time.monotonic() < deadline:
        time.sleep(0.02)
    return max(0, gpu.free_bytes() - GIB)


def one(a):
    """A child: fills and ends, or looks."""
    gpu = GPU()
    if a.one == "measure":
        print(json.dumps({"free": gpu.free_bytes()}), flush=True)
        return
    if a.one == "look":
        free = wait_free(gpu, a.least)
        if a.kind in EVERYWHERE and free > a.bytes and not a.sample:
            a.bytes = free
    m = memory(gpu, a.kind)
    size = take(m, a.kind, a.bytes)
    if a.one == "look":
        print(json.dumps({"looked": size, "found": m.count(a.canary)}), flush=True)
        return
    m.fill(a.canary)
    r = {"filled": size, "there": m.there if isinstance(m, OnChip) else m.count(a.canary)}
    if a.end in ("free", "again"):
        m.free()
    if a.end == "again":
        m = memory(gpu, a.kind)
        r["looked"] = take(m, a.kind, a.bytes)
        r["found"] = m.count(a.canary)
    print(json.dumps(r), flush=True)
    if a.end == "free":
        sys.stdin.read()  # lives on until the other has looked
    if a.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)  # frees nothing by itself


def child(*arguments, **more):
    return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE,
                            stdin=subprocess.PIPE, text=True, **more)


def answer(p):
    line = p.stdout.readline()
    if not line:
        raise Failed(f"a process ended without an answer, status {p.wait()}")
    return json.loads(line)


def finish(p):
    p.stdin.close()
    p.wait()
    p.stdout.close()


# What fills, how it ends, what looks. The first is what is asked; the others are other ways to the same memory.
CASES = [
    ("malloc", "exit", "malloc"), ("malloc", "kill", "malloc"), ("malloc", "free", "malloc"),
    ("async", "exit", "malloc"), ("vmm", "exit", "malloc"), ("managed", "exit", "malloc"), ("array", "exit", "malloc"),
    ("malloc", "exit", "async"), ("malloc", "exit", "vmm"), ("malloc", "exit", "managed"), ("malloc", "exit", "array"),
    ("malloc", "exit", "local"), ("host", "exit", "host"), ("shared", "exit", "shared"), ("local", "exit", "local"),
    ("malloc", "again", "malloc"), ("async", "again", "async"), ("vmm", "again", "vmm"), ("shared", "again", "shared"),
]
LARGE = ("malloc exit malloc", "malloc kill malloc", "malloc free malloc", "malloc exit local")  # others a tenth


def run_case(case, a, least):
    kind, end, look = case
    canary = random.SystemRandom().randrange(1 << 31, 1 << 32)
    size = int(a.gib * GIB) if " ".join(case) in LARGE else int(a.gib * GIB / 10)
    if kind in ("host", "shared", "local"):
        size = min(size, int(a.gib * GIB / 25))
    size = -(-size // (2 * MIB)) * 2 * MIB
    begin = time.monotonic()
    filler = child("--one", "fill", "--kind", kind, "--end", end, "--bytes", size, "--canary", canary)
    r = {"case": f"{kind} {end} {look}", **answer(filler)}
    if end == "again":
        r["control"] = True
    else:
        if end != "free":
            finish(filler)
        looker = child("--one", "look", "--kind", look, "--bytes", size, "--canary", canary, "--least",
                       least - (2 * GIB if a.gib > 30 else 0), *["--sample"] * a.sample)
        r.update(answer(looker))
        finish(looker)
    if end in ("free", "again"):
        finish(filler)
    r["seconds"] = round(time.monotonic() - begin, 1)
    return r


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--gib", type=float, default=100, help="GiB to fill")
    ap.add_argument("--only", action="append", default=[], help="cases that have this word; may be repeated")
    ap.add_argument("--sample", action="store_true", help="look at no more than was filled (simulated GPUs are slow)")
    for name, kind in (("one", str), ("kind", str), ("end", str), ("bytes", int), ("canary", int), ("least", int)):
        ap.add_argument("--" + name, type=kind, help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.one:
        return one(a)
    p = child("--one", "measure")
    least = answer(p)["free"]
    finish(p)
    bad = 0
    with open(Path(os.environ.get("OUT", ".")) / "canary.jsonl", "a") as out:
        for case in CASES:
            if a.only and not set(a.only) & set(case):
                continue
            try:
                r = run_case(case, a, least)
            except Failed as e:
                r = {"case": " ".join(case), "error": str(e)}
            r["side"] = os.environ.get("SCUDA_SIDE", "native")
            wrong = "error" in r or not r["there"] or r["there"] > r["filled"] or (
                not r.get("control") and r["found"] > 0) or r["looked"] < r["filled"] * 0.9 and case[2] != "local"
            bad += bool(wrong)
            line = json.dumps(r)
            out.write(line + "\n")
            print(line, "<-- look here" if wrong else "", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
