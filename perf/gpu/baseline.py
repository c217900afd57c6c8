#!/usr/bin/env python3
"""Counts the system calls of torch.cuda.is_available() and tensor.to('cuda:0') on a GPU machine, natively and over
scuda, and writes the result.

    baseline.py [--out FILE] [--server HOST:PORT] [--repeat 3]

"base" is the same program without its last line (PyTorch is loaded). Counts vary a little from run to run (threads);
the median run is kept. `go run ./perf/bench/table` makes the table of docs/performance.md of the result.
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUILD", os.path.join(HERE, "..", "..", "build"))
PROGRAMS = {  # name: (base, program, what the first SCUDA published)
    "torch.cuda.is_available()": (
        "import torch", "import torch; assert torch.cuda.is_available()", {"read": 2141, "write": 93, "close": 1157}),
    "tensor.to('cuda:0')": ("import torch; t = torch.ones(4)", "import torch; t = torch.ones(4); t = t.to('cuda:0')",
                            {"read": 2253, "write": 231, "close": 1159}),
}


def count(where, program, environment):
    command = [os.path.join(HERE, "run.sh"), where, os.path.join(BUILD, "scuda"), "bench", "syscalls", "--json"]
    if where == "native":
        command.append("--native")
    done = subprocess.run(command + ["--", sys.executable, "-c", program],
                          env=environment, stdout=subprocess.PIPE, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])["run"]


def median(where, program, environment, repeat):
    runs = [count(where, program, environment) for _ in range(repeat)]
    return sorted(runs,
                  key=lambda r: sum(c["calls"] for c in r["calls"]
                                    if c["call"] in ("read", "write", "close")))[len(runs) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="-")
    parser.add_argument("--server")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    environment = dict(os.environ)
    if args.server:
        environment["SCUDA_SERVER"] = args.server
    import importlib.metadata
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                                  stdout=subprocess.PIPE, text=True).stdout.strip(),
        "kernel": platform.release().split("-")[0],
        "torch": importlib.metadata.version("torch"),
        "scuda": subprocess.run([os.path.join(BUILD, "scuda"), "version"],
                                stdout=subprocess.PIPE, text=True).stdout.split("\n")[0],
        "programs": [],
    }
    for name, (base, program, first) in PROGRAMS.items():
        row = {"name": name, "first": first}
        for where in ("native", "remote"):
            row[where] = {"base": median(where, base, environment, args.repeat),
                          "run": median(where, program, environment, args.repeat)}
        result["programs"].append(row)
    text = json.dumps(result, indent=1) + "\n"
    if args.out == "-":
        sys.stdout.write(text)
    else:
        with open(args.out, "w") as f:
            f.write(text)


if __name__ == "__main__":
    main()
