#!/usr/bin/env python3
"""Figures: runs each workload natively and through scuda by turns, prints native, remote and ratio (medians over the rounds).

    bench.py [--rounds N] [--list] [WORKLOAD...]

Writes all values as JSON to $OUT/bench.json. A workload runs in a process of its own and prints one JSON object: name -> seconds
(names with "MiB" are MiB, names with "count" are numbers).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

LIMITS = {  # ratio to native asked for at this stage
    "resnet50 training b64, 10 steps": 1.15,
    "gpt2 training bf16, 10 steps": 1.25,
    "gpt2 generate, 64 tokens": 2,
    "1000 launches and a synchronisation": 2,
    "1000 small torch operations": 2,
}
CEILINGS = {  # absolute, remote
    "launch: in the call (bursts of 100)": 1e-6,
    "local: cuCtxGetCurrent": 50e-9,
    "local: cuDeviceGetAttribute": 50e-9,
    "local: cuCtxGetDevice": 50e-9,
    "local: cuFuncGetAttribute": 50e-9,
    "loading the shim adds": 1e-3,
    "thread count of a program that loads the shim": 1,
    "resident MiB added": 60,
}
WORK = {}


def workload(function):
    WORK[function.__name__] = function
    return function


def timed(torch, body, repeats, warm=2):
    for _ in range(warm):
        body()
    torch.cuda.synchronize()
    values = []
    for _ in range(repeats):
        t = time.perf_counter()
        body()
        torch.cuda.synchronize()
        values.append(time.perf_counter() - t)
    return statistics.median(values)


@workload
def resnet():
    import torch
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")

    def steps():
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    return {"resnet50 training b64, 10 steps": timed(torch, steps, 5)}


@workload
def gpt2():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 50257, (8, 512), device="cuda")

    def steps():
        for _ in range(10):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    training = timed(torch, steps, 5)
    model.eval()
    prompt = torch.randint(0, 50257, (1, 32), device="cuda")

    def generate():
        with torch.no_grad():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=50256)

    return {"gpt2 training bf16, 10 steps": training, "gpt2 generate, 64 tokens": timed(torch, generate, 5)}


@workload
def small():
    begin = time.perf_counter()
    import torch

    imported = time.perf_counter()
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    first = time.perf_counter() - imported

    def thousand():
        for _ in range(1000):
            x.add_(1)

    graph, y = torch.cuda.CUDAGraph(), torch.randn(512, 512, device="cuda")
    for _ in range(3):
        y @ y
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        z = y
        for _ in range(20):
            z = torch.tanh(z @ y / 25)

    def replay():
        for _ in range(100):
            graph.replay()

    return {"import torch": imported - begin, "first tensor of the process": first, "1000 small torch operations": timed(torch, thousand, 21),
            "CUDA graph (60 kernels) replayed 100 times": timed(torch, replay, 11), "item() of one number": timed(torch, lambda: x[0].item(), 51)}


@workload
def micro():
    os.execv(os.environ["MICRO"], ["micro"])


def loading(build):
    """What the shim costs a program that never uses CUDA: time, threads."""

    def median_run(env):
        values = []
        for _ in range(101):
            t = time.perf_counter()
            subprocess.run(["/bin/true"], env=env, check=True)
            values.append(time.perf_counter() - t)
        return statistics.median(values)

    plain = dict(os.environ)
    plain.pop("LD_PRELOAD", None)
    shim = dict(plain, LD_PRELOAD=f"{build}/lib/libscuda.so", SCUDA_SERVER="127.0.0.1:1")
    threads = subprocess.run(["/bin/sh", "-c", "ls /proc/$$/task | wc -l"], env=shim, capture_output=True, text=True, check=True)
    return {"loading the shim adds": median_run(shim) - median_run(plain), "thread count of a program that loads the shim": float(threads.stdout)}


def show(value, name):
    if value is None:
        return "-"
    if "MiB added" in name or "count" in name:
        return f"{value:.1f}"
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.1f} ns"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("workloads", nargs="*")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--timeout", type=float, default=150)
    ap.add_argument("--native-only", action="store_true")
    ap.add_argument("--child", help=argparse.SUPPRESS)
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    if a.child:
        print(json.dumps(WORK[a.child]()), flush=True)
        return 0
    if a.list:
        print("\n".join([*WORK, "loading"]))
        return 0
    from check import RUN, start_server

    build = os.environ.get("BUILD", str(ROOT / "build"))
    work = tempfile.mkdtemp(prefix="scuda-bench-")
    env = dict(os.environ, PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", MICRO=f"{work}/micro")
    include = next((p for p in ("/usr/local/cuda/include", "/usr/local/cuda-13.0/include") if Path(p, "cuda.h").exists()), str(ROOT / "shim/include"))
    lib = next((str(p) for p in (Path("/usr/local/nvidia/lib64"), ROOT / "build/lib") if (p / "libcuda.so.1").exists()), ".")
    subprocess.run(["gcc", "-O2", "-o", env["MICRO"], str(HERE / "micro.c"), "-I", include, "-L", lib, "-l:libcuda.so.1"], check=True)
    subprocess.run([RUN, "facts"], check=False)

    sides = ["native"] if a.native_only else ["native", "remote"]
    server = None
    if "remote" in sides and "SCUDA_SERVER" not in env:
        server, env["SCUDA_SERVER"] = start_server(f"{work}/server", env)
    values = {}  # name -> side -> list
    failed = 0
    try:
        for round_ in range(a.rounds):
            for name in a.workloads or list(WORK):
                if name not in WORK:
                    continue
                for side in sides:
                    try:
                        p = subprocess.run([RUN, side, sys.executable, str(HERE / "bench.py"), "--child", name], env=env, capture_output=True, text=True, errors="replace", timeout=a.timeout)
                        lines = [l for l in p.stdout.splitlines() if l.startswith("{")]
                        if p.returncode or not lines:
                            raise RuntimeError(f"exit {p.returncode}: {(p.stderr.strip() or p.stdout.strip())[-1500:]}")
                        for k, v in json.loads(lines[-1]).items():
                            values.setdefault(k, {}).setdefault(side, []).append(v)
                    except (RuntimeError, subprocess.TimeoutExpired, ValueError) as e:
                        failed += 1
                        print(f"{name}, {side}, round {round_ + 1}: {e}", flush=True)
    finally:
        if server:
            server.terminate()
            server.wait(10)
    if "remote" in sides and (not a.workloads or "loading" in a.workloads):
        for k, v in loading(build).items():
            values[k] = {"remote": [v]}

    print(f"{'':<46} {'native':>10} {'remote':>10} {'ratio':>7}  asked")
    rows = []
    for name, by_side in values.items():
        n, r = (statistics.median(by_side[s]) if s in by_side else None for s in ("native", "remote"))
        ratio = r / n if n and r else None
        asked, met = "", True
        if name in LIMITS:
            asked, met = f"≤ {LIMITS[name]} ×", ratio is not None and ratio <= LIMITS[name]
        elif name in CEILINGS:
            asked, met = f"≤ {show(CEILINGS[name], name)}", r is not None and r <= CEILINGS[name]
        mark = "" if not asked or len(sides) == 1 else "met" if met else "MISSED"
        print(f"{name:<46} {show(n, name):>10} {show(r, name):>10} {f'{ratio:.2f}' if ratio else '-':>7}  {asked} {mark}")
        rows.append({"name": name, "native": n, "remote": r, "ratio": ratio, "asked": asked, "met": met, "values": by_side})
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "bench.json").write_text(json.dumps(rows, indent=1))
    shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
