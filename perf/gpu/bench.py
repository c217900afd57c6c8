#!/usr/bin/env python3
"""Figures: each workload runs in a native and in a remote process, which measure by turns; prints native, remote and
ratio (medians over the rounds) and what is asked for.

    bench.py [--rounds N] [--list] [--before BUILD] [--tls] [WORKLOAD...]

With --before an older build of scuda (a folder like build/) measures by turns with this one, with --tls a server that
demands TLS; each has a column, and the ratio to it.

Workloads are the functions of workloads.py, and, once each, "loading" (what the shim costs a program that does not
use CUDA), "trips" (round trips counted), "again" (modules uploaded by a second run) and "links" (a server that a
proxy makes 1 ms and 10 ms more distant). Writes all values to $OUT/bench.json; `go run ./perf/bench/table` makes the
table of docs/performance.md from it.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from check import RUN, start_server  # noqa: E402
from workloads import WORK  # noqa: E402

TRAINING, GENERATING = "ResNet-50 training b64, 10 steps", "GPT-2 generating 64 tokens"
RATIOS = {  # to native, at most
    TRAINING: 1.02, "ResNet-50 inference b1, 50 times": 1.1, "GPT-2 training bf16, 10 steps": 1.05,
    GENERATING: 1.1, "1000 small operations": 1.1,
    "CUDA graph (60 kernels) replayed 100 times": 1.02, "compiled module, 100 times": 1.2,
    "Triton kernel, 100 times": 1.2, "JAX jit, 100 times": 1.2,
    "JAX training of a small network, 100 steps": 1.2,
    "first tensor, from torch.cuda.is_available() on": 0.35,
    f"{TRAINING}, 1 ms further": 1.05, f"{TRAINING}, 10 ms further": 1.25,
}
ABSOLUTE = {  # at most, remote
    "loading the shim adds": 1e-3, "threads of a program that loads the shim (count)": 1,
    "bytes of modules that a second run uploads (count)": 0,
    "round trips in a ResNet-50 training step (count)": 0, "round trips for a generated token (count)": 2,
    "CPU of the server while training (cores)": 1.2,
}
# remote less native, at most
BEYOND = {"CPU of the program while training (cores)": 0.3, "resident memory of the program (MiB)": 40}
# of the program itself while it generates: a bool() of something on the GPU, twice a token (natively counted as copies
# to the host)
WAITS = 2 * 64
TRIPS = 1.2  # times a round trip is what an answer may take
EXTRAS = ["loading", "trips", "again", "links"]
FRESH = {"first"}  # workloads that measure a process from its start


def show(value, name):
    if value is None:
        return "-"
    if name.endswith(")"):
        unit = name.rpartition("(")[2][:-1]
        return f"{value:.2f}".rstrip("0").rstrip(".") + ("" if unit == "count" else f" {unit}")
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.1f} ns"


class Turn:
    """A workload's process that measures when it is told to."""

    def __init__(self, side, name, env, timeout):
        self.timeout, self.errors = timeout, tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen([RUN, side, sys.executable, str(HERE / "workloads.py"), name, "--by-turns"],
                                        env=env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True)

    def measure(self):
        late = threading.Timer(self.timeout, self.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write("measure\n")
                self.process.stdin.flush()
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            late.cancel()
        self.process.wait()
        self.errors.seek(0)
        raise RuntimeError(f"exit {self.process.returncode}: {self.errors.read().strip()[-1500:]}")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Bench:
    def __init__(self, env, timeout, rounds, measure):
        self.env, self.timeout, self.n, self.measure = env, timeout, rounds, measure
        self.trip, self.trips_then = measure(), {}  # of plain TCP: at first, and about the time of each measure
        self.reported = set()
        self.values = {}  # name -> side -> values
        self.failed = 0

    def note(self, side, results):
        for k, v in results.items():
            self.values.setdefault(k, {}).setdefault(side, []).append(v)

    def median(self, name, side):
        v = self.values.get(name, {}).get(side)
        return statistics.median(v) if v else None

    def run(self, side, name, **env):
        """The results of a workload's process, or None after a failure, which is counted."""
        try:
            p = subprocess.run([RUN, side, sys.executable, str(HERE / "workloads.py"), name],
                               env=dict(self.env, **env), capture_output=True, text=True,
                               errors="replace", timeout=self.timeout)
            lines = [line for line in p.stdout.splitlines() if line.startswith("{")]
            if p.returncode or not lines:
                raise RuntimeError(f"exit {p.returncode}: {(p.stderr.strip() or p.stdout.strip())[-1500:]}")
            return json.loads(lines[-1])
        except (RuntimeError, subprocess.TimeoutExpired, ValueError) as e:
            self.failed += 1
            print(f"{name}, {side}: {e}", flush=True)
            return None

    def rounds(self, names, places):
        before = self.trip
        for name in names:
            known = set(self.values)
            self.turns(self.n, name, places)
            after = self.measure()
            if before and after:
                self.trips_then.update((new, (before + after) / 2) for new in set(self.values) - known)
            before = after
            self.report()

    def turns(self, n, name, places, note=True):
        """n rounds in which a process at each place (name -> side and environment) measures once; what they gave, by
        place."""
        got = {place: [] for place in places}
        running = {}
        try:
            for _ in range(n):
                for place, (side, env) in places.items():
                    if place not in running or name in FRESH:
                        self.end(running.pop(place, None))
                        running[place] = Turn(side, name, dict(self.env, **env), self.timeout)
                    try:
                        result = running[place].measure()
                    except (RuntimeError, subprocess.TimeoutExpired, ValueError) as e:
                        self.failed += 1
                        print(f"{name}, {place}: {e}", flush=True)
                        return got
                    got[place].append(result)
                    if note:
                        self.note(place, result)
        finally:
            for turn in running.values():
                self.end(turn)
        return got

    @staticmethod
    def end(turn):
        if turn:
            turn.end()

    def traced(self, name, **env):
        """Counts of a run by kind: "answer" are round trips, "module" uploads of modules; None after a failure."""
        folder = tempfile.mkdtemp(prefix="scuda-trace-")
        try:
            if self.run("remote", name, SCUDA_TRACE=f"{folder}/t", **env) is None:
                return None
            counts = {}
            for f in Path(folder).iterdir():
                for c in json.loads(f.read_text())["counts"]:
                    kind = counts.setdefault(c["kind"], {"n": 0, "bytes": 0, "ops": {}})
                    kind["n"] += c["n"]
                    kind["bytes"] += c["bytes"]
                    kind["ops"][c["op"]] = kind["ops"].get(c["op"], 0) + c["n"]
            return counts
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def trips(self):
        """Round trips of one step: what more steps have more of."""
        for name, what, few, many in (("resnet", "round trips in a ResNet-50 training step (count)", 2, 12),
                                      ("generate", "round trips for a generated token (count)", 8, 40)):
            self.run("remote", name, STEPS="1")  # from now on the server has the modules
            one, two = self.traced(name, STEPS=str(few)), self.traced(name, STEPS=str(many))
            if one is None or two is None:
                continue
            answers = [c.get("answer", {"n": 0, "ops": {}}) for c in (one, two)]
            self.note("remote", {what: (answers[1]["n"] - answers[0]["n"]) / (many - few)})
            more = {op: n - answers[0]["ops"].get(op, 0)
                    for op, n in answers[1]["ops"].items() if n != answers[0]["ops"].get(op, 0)}
            print(f"{what}: of {many - few} more, by operation: {more}", flush=True)

    def again(self):
        """Modules are uploaded once; after the first of these runs the server knows them."""
        if self.traced("first") is None or (second := self.traced("first")) is None:
            return
        self.note(
            "remote", {"bytes of modules that a second run uploads (count)": second.get(
                "module", {"bytes": 0})["bytes"]})

    def links(self):
        with proxy(self.env, 1) as one, proxy(self.env, 10) as ten:
            places = {"native": ("native", {}), ", 1 ms further": ("remote", {"SCUDA_SERVER": one}),
                      ", 10 ms further": ("remote", {"SCUDA_SERVER": ten})}
            for name, work in ((TRAINING, "resnet_link"), (GENERATING, "generate")):
                got = self.turns(self.n, work, places, note=False)
                for further in list(places)[1:]:
                    self.values[name + further] = {side: [r[name] for r in got[place]]
                                                   for side, place in (("native", "native"), ("remote", further))}

    def loading(self):
        """What the shim costs a program that never uses CUDA: time, threads."""

        def median_run(env):
            values = []
            for _ in range(101):
                t = time.perf_counter()
                subprocess.run(["/bin/true"], env=env, check=True)
                values.append(time.perf_counter() - t)
            return statistics.median(values)

        build = self.env.get("BUILD", str(ROOT / "build"))
        plain = dict(self.env)
        plain.pop("LD_PRELOAD", None)
        shim = dict(plain, LD_PRELOAD=f"{build}/lib/libscuda.so", SCUDA_SERVER="127.0.0.1:1")
        threads = subprocess.run(["/bin/sh", "-c", "ls /proc/$$/task | wc -l"],
                                 env=shim, capture_output=True, text=True, check=True)
        self.note(
            "remote", {"loading the shim adds": median_run(shim) - median_run(plain),
                       "threads of a program that loads the shim (count)": float(threads.stdout)})

    def asked(self, name, native, trip):
        """The most that is asked for, in the measure's own unit, and how it came about."""
        if name in RATIOS:
            return native and RATIOS[name] * native, f"≤ {RATIOS[name]} ×"
        if name in ABSOLUTE:
            return ABSOLUTE[name], f"≤ {show(ABSOLUTE[name], name)}"
        if name in BEYOND:
            return native is not None and native + BEYOND[name], f"≤ native + {BEYOND[name]:g}"
        if name.startswith("1000 item()") and trip and native:
            return native + 1000 * TRIPS * trip, f"≤ native + 1000 × {TRIPS} round trips"
        if name.startswith(GENERATING) and native:
            more = 1e-3 * float(name.split(",")[1].split()[0])
            return TRIPS * (
                native + WAITS * (more + (trip or 0))), f"≤ {TRIPS} × (native + {WAITS} synchronisations × round trip)"
        return None, ""

    def report(self):
        """Prints what is new, and writes all that there is."""
        rows = list(self.rows())
        for r in rows:
            if r["name"] not in self.reported:
                self.reported.add(r["name"])
                mark = "" if r["met"] is None else "met" if r["met"] else "MISSED"
                ratio = f"{r['ratio']:.2f}" if r["ratio"] else "-"
                native, remote = show(r["native"], r["name"]), show(r["remote"], r["name"])
                also = "".join(f"  {other} {show(v, r['name'])}" + (f" ({r['remote'] / v:.3f} ×)" if v else "")
                               for other, v in r["others"].items())
                print(f"{r['name']:<60} {native:>10} {remote:>10} {ratio:>6}  {r['asked']} {mark}{also}", flush=True)
        if os.environ.get("OUT"):
            Path(os.environ["OUT"], "bench.json").write_text(
                json.dumps({"rounds": self.n, "round trip": self.trip, "rows": rows}, indent=1))

    def rows(self):
        for name, sides in self.values.items():
            native, remote = self.median(name, "native"), self.median(name, "remote")
            trip = self.trips_then.get(name, self.trip)
            limit, asked = self.asked(name, native, trip)
            others = {place: self.median(name, place) for place in sides if place not in ("native", "remote")}
            yield {"name": name, "round trip": trip, "native": native, "remote": remote, "others": others,
                   "ratio": remote / native if native and remote else None, "asked": asked,
                   "met": None if limit is None or limit is False or remote is None else remote <= limit,
                   "values": sides}


@contextlib.contextmanager
def proxy(env, milliseconds):
    build = env.get("BUILD", str(ROOT / "build"))
    p = subprocess.Popen([f"{build}/scuda", "bench", "proxy", "--round-trip", f"{milliseconds}ms", env["SCUDA_SERVER"]],
                         stdout=subprocess.PIPE, text=True)
    try:
        yield p.stdout.readline().split()[-1]
    finally:
        p.terminate()
        p.wait(10)


def round_trip(build):
    """Of plain TCP on this machine."""
    p = subprocess.run([f"{build}/scuda-bench", "tcp", "1"], capture_output=True, text=True,
                       timeout=60, env=dict(os.environ, LD_LIBRARY_PATH=f"{build}/lib", SCUDA_SERVER=""))
    return json.loads(p.stdout)["a round trip over plain TCP"] if p.returncode == 0 else None


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--timeout", type=float, default=150)
    ap.add_argument("--native-only", action="store_true")
    ap.add_argument("--before", metavar="BUILD", help="an older build that measures by turns with this one")
    ap.add_argument("--tls", action="store_true", help="measure by turns with a server that demands TLS")
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    everything = [n for n in WORK if not n.endswith("_link") and n != "generate"] + EXTRAS
    if a.list:
        print("\n".join(everything))
        return 0
    if unknown := set(a.workloads) - set(everything):
        sys.exit(f"bench.py: no workload {' '.join(sorted(unknown))}; --list shows them")
    chosen = a.workloads or everything

    build = os.environ.get("BUILD", str(ROOT / "build"))
    work = tempfile.mkdtemp(prefix="scuda-bench-")
    env = dict(os.environ, PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
               TORCHINDUCTOR_CACHE_DIR=f"{work}/inductor", TRITON_CACHE_DIR=f"{work}/triton")
    subprocess.run([RUN, "facts"], check=False)
    places, servers = {"native": ("native", {})}, []

    def serve(name, **more):
        """Starts a server, at which a place of this name measures."""
        server, address = start_server(f"{work}/{name}", dict(env, **more))
        servers.append(server)
        if "SCUDA_TLS" in more:  # who names a fingerprint wants TLS, from any server
            more["SCUDA_FINGERPRINT"] = re.search(r"^fingerprint (\S+)$", Path(work, name, "out").read_text(), re.M)[1]
        places[name] = ("remote", dict(more, SCUDA_SERVER=address, BENCH_SERVER=str(server.pid)))

    if not a.native_only:
        if "SCUDA_SERVER" in env:
            places["remote"] = ("remote", {})
        else:
            serve("remote")
            env |= places["remote"][1]
        if a.before:
            serve("before", BUILD=str(Path(a.before).resolve()))
        if a.tls:
            serve("tls", SCUDA_TLS="always", SCUDA_STATE_DIR=f"{work}/state")
    bench = Bench(env, a.timeout, a.rounds, lambda: round_trip(build) if "remote" in places else None)
    print(f"{'':<60} {'native':>10} {'remote':>10} {'ratio':>6}  asked", flush=True)
    try:
        bench.rounds([n for n in chosen if n in WORK], places)
        for extra in EXTRAS:
            if extra in chosen and "remote" in places:
                getattr(bench, extra)()
                bench.report()
    finally:
        for server in servers:
            server.terminate()
            server.wait(10)
        shutil.rmtree(work, ignore_errors=True)

    if bench.trip:
        print(f"a round trip over plain TCP, at first: {show(bench.trip, '')}")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
