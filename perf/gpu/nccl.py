#!/usr/bin/env python3
"""NCCL between servers: programs of one rank a GPU, natively, and over as many servers as there are ranks, each with
one GPU of this machine. Compares what they computed bit for bit, and their times, by turns; prints a table and writes
$OUT/nccl.json.

    nccl.py [--ranks N] [--native-only | --remote-only] [--isolation HOW] [--env NAME=VALUE]...
            [--rounds N] [--timeout S] [CASE...]

Cases are the functions of ranks.py and jax_ranks.py. Those that begin with "lost" run over servers alone: their last
rank is killed. --env sets a variable for the native programs and for the servers, as the NCCL of the latter is theirs.
Both sides have the same NCCL: the one of PyTorch's wheel, which JAX finds as well.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from check import ROOT, RUN  # noqa: E402

LOST = ("lost", "lost_of_part")
CASES = ["collectives", "parts", "ddp_resnet", "ddp_gpt2", "fsdp", "tensor_parallel", "pipeline", "bandwidth",
         "jax_shard_map", "jax_training", *LOST]
TIMED = ["ddp_resnet", "ddp_gpt2", "fsdp", "tensor_parallel", "pipeline", "bandwidth", "jax_training"]


def wheel_library():
    import nvidia.nccl

    return str(Path(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2"))


def serve(work, number, env, isolation):
    """One server with one GPU: the process, and its address."""
    folder = Path(work, f"server{number}")
    folder.mkdir()
    out, log = open(folder / "out", "w"), open(folder / "log", "w")
    scuda = Path(os.environ.get("BUILD", ROOT / "build"), "scuda")
    p = subprocess.Popen(
        [scuda, "-l", "127.0.0.1:0", "--gpu", "real", "--cache-dir", folder / "cache", "--state-dir", folder / "state",
         "--admin", "none", "--fabric", "trusted", "--profiles", "nccl", "--isolation", isolation,
         "--nccl", wheel_library(), "--log", os.environ.get("SCUDA_SERVER_LOG", "info")],
        stdout=out, stderr=log, env=dict(env, CUDA_VISIBLE_DEVICES=str(number)))
    deadline = time.monotonic() + 60
    while "listening on " not in (text := (folder / "out").read_text()):
        if p.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"nccl.py: server {number} did not start:\n{(folder / 'log').read_text()}")
        time.sleep(0.05)
    return p, text.split("listening on ")[1].split()[0]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Side:
    """The ranks of a case on one side."""

    def __init__(self, side, case, ranks, env, addresses, work):
        self.case, self.ranks, port = case, [], free_port()
        script = HERE / ("jax_ranks.py" if case.startswith("jax_") else "ranks.py")
        for rank in range(ranks):
            e = dict(env, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES="0" if side == "remote" else str(rank))
            if side == "remote":
                e["SCUDA_SERVER"] = addresses[rank]
            if case in LOST:
                e["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # else PyTorch ends the process
            out, err = (Path(work, f"{case}.{side}.{rank}.{kind}") for kind in ("out", "err"))
            with open(out, "w") as o, open(err, "w") as x:
                self.ranks.append((subprocess.Popen([RUN, side, sys.executable, script, case], stdin=subprocess.PIPE,
                                                    stdout=o, stderr=x, env=e, cwd=HERE), out, err))
        self.watched = self.ranks[:-1] if case in LOST else self.ranks
        self.failed = False

    def told(self):
        """How many turns the slowest rank has had; the first line says that it is ready for them."""
        return min(out.read_text(errors="replace").count("turn over") for _, out, _ in self.ranks)

    def until(self, condition, deadline):
        """Waits for a condition; one that is not met, or a rank that fails, ends all of them."""
        while not self.failed and not condition():
            if any(p.poll() for p, _, _ in self.watched) or time.monotonic() > deadline:
                self.failed = True
                time.sleep(2)  # what the others say
            time.sleep(0.002)

    def turn(self, number, deadline):
        for p, _, _ in self.ranks:
            if p.poll() is None:
                p.stdin.write(b"\n")
                p.stdin.flush()
        self.until(lambda: self.told() > number, deadline)

    def end(self, deadline):
        """What rank 0 printed, or the end of what a rank that failed said."""
        for p, _, _ in self.ranks:
            p.stdin.close()
        self.until(lambda: all(p.poll() is not None for p, _, _ in self.watched), deadline)
        for p, _, _ in self.ranks:
            if p.poll() is None:
                p.kill()
            p.wait()
        if self.failed or any(p.returncode for p, _, _ in self.watched):
            said = [f"rank {i}, status {p.returncode}: " + err.read_text(errors="replace")[-1500:]
                    for i, (p, _, err) in enumerate(self.ranks) if p.returncode]
            return {"error": "\n".join(said)}
        # what NCCL says with NCCL_DEBUG may stand around it
        r = json.loads(next(line for line in self.ranks[0][1].read_text().splitlines() if line.startswith('{"exact"')))
        if self.case in LOST:
            r["exact"]["a remote error"] = "ncclRemoteError" in self.ranks[0][2].read_text(errors="replace")
        return r


def run(case, sides, a, env, addresses, work):
    """The results by side. What is timed runs by turns, as a machine's speed drifts; the rest one after the other."""
    results = {}
    for at_once in [sides] if case in TIMED else [[side] for side in sides]:
        deadline = time.monotonic() + a.timeout
        groups = {side: Side(side, case, a.ranks, env, addresses, work) for side in at_once}
        if case in TIMED:
            for g in groups.values():
                g.until(lambda g=g: g.told() > 0, deadline)
            for number in range(1, a.rounds + 1):
                for g in groups.values():
                    g.turn(number, deadline)
        results |= {side: g.end(deadline) for side, g in groups.items()}
    return results


def compare(case, sides):
    native, remote = sides.get("native"), sides.get("remote")
    for side, r in sides.items():
        if "error" in r:
            print(f"{case}: {side} FAILED\n  " + r["error"].replace("\n", "\n  "), flush=True)
            return False
    exact = case not in LOST or remote["exact"]["a remote error"]
    for name in (native or remote)["exact"]:
        values = [str(r["exact"].get(name)) for r in (native, remote) if r]
        equal = len(set(values)) == 1
        exact = exact and equal
        print(f"{case:<16} {name:<34} {'equal' if equal else 'DIFFERS'}  {values[0][:60]}"
              + ("" if equal else f" / {values[-1][:60]}"))
    for name in (native or remote)["times"]:
        lists = [r["times"].get(name) for r in (native, remote) if r]
        values = [statistics.median(v) for v in lists]
        ratio = ""
        if len(values) == 2:
            turns = sorted(b / a for a, b in zip(*lists))
            ratio = f"  ratio {values[1] / values[0]:.3f}"
            if len(turns) > 1:
                ratio += f", of turns {turns[0]:.3f} to {turns[-1]:.3f}, median {statistics.median(turns):.3f}"
        print(f"{case:<16} {name:<34} " + "  ".join(f"{v:10.3f}" for v in values) + ratio, flush=True)
    return exact


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="*", help="; ".join(CASES))
    ap.add_argument("--ranks", type=int, default=2)
    ap.add_argument("--native-only", action="store_true")
    ap.add_argument("--remote-only", action="store_true")
    ap.add_argument("--isolation", default="auto")
    ap.add_argument("--env", action="append", default=[])
    ap.add_argument("--rounds", type=int, default=8, help="how many turns each side of a timed case has")
    ap.add_argument("--timeout", type=float, default=120)
    a = ap.parse_args()
    sides = ["native"] if a.native_only else ["remote"] if a.remote_only else ["native", "remote"]
    set_by_us = dict(pair.split("=", 1) for pair in a.env)
    env = dict(os.environ, **set_by_us)
    work = tempfile.mkdtemp(prefix="scuda-nccl-")
    servers = [serve(work, i, env, a.isolation) for i in range(a.ranks)] if "remote" in sides else []
    addresses = [address for _, address in servers]
    results, right = {}, True
    try:
        for case in a.cases or CASES:
            began = time.monotonic()
            of_case = [s for s in sides if case not in LOST or s == "remote"]
            if not of_case:
                continue
            results[case] = run(case, of_case, a, env, addresses, work)
            right = compare(case, results[case]) and right
            print(f"{case:<16} took {time.monotonic() - began:.0f} s", flush=True)
    finally:
        for p, _ in servers:
            p.terminate()
        for p, _ in servers:
            p.wait(30)
        if out := os.environ.get("OUT"):
            Path(out, "nccl.json").write_text(json.dumps({"env": set_by_us, "results": results}, indent=1))
            for f in [*Path(work).glob("server*/log"), *Path(work).glob("*.err"), *Path(work).glob("*.out")]:
                shutil.copy(f, Path(out, f"{f.parent.name}-{f.name}" if f.name == "log" else f.name))
        shutil.rmtree(work, ignore_errors=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
