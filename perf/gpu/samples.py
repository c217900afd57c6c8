#!/usr/bin/env python3
"""Builds and runs the console programs of NVIDIA's cuda-samples, natively and through scuda, and compares exit status
and verdicts.

    samples.py FOLDER [--build-only] [-j N] [--build-jobs N] [--shard I/N] [--budget S] [--timeout S]
               [--native-only | --remote-only] [PROGRAM...]

FOLDER is a checkout of the samples (nothing of it belongs to this project). Programs are built by nvcc alone, from
what each sample's CMakeLists.txt says, beside their sources; what is built already stays. Samples that need a window,
Vulkan, Direct3D, FreeImage or MPI are left out. Prints a table and writes $OUT/samples.jsonl; `--budget` stops
starting programs in time for the table.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

LEFT_OUT = re.compile(r"OpenGL|GLUT|Vulkan|EGL|D3D|NVSCI|FreeImage|find_package\(MPI")
NEEDS = {"cusolver": ["cusparse", "cublas", "cublasLt"], "cublas": ["cublasLt"]}  # what CMake's targets bring along
LIBRARIES = {"cuda_driver": "cuda", "socket": "", "OpenMP::OpenMP_CXX": "", "OpenMP::OpenMP_C": ""}
VERDICT = re.compile(r"pass|fail|error|success|correct|verif|match|waiv|support|result|abort|assert|differ|norm", re.I)
# Figures, addresses and what else changes from run to run.
NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


class Sample:
    def __init__(self, folder, name, sources, libraries, includes, commands, openmp, headers):
        self.folder, self.name, self.sources, self.libraries = folder, name, sources, libraries
        self.commands, self.openmp = commands, openmp
        self.includes, self.headers = includes, headers
        self.log = ""

    @property
    def program(self):
        return self.folder / self.name


def arguments(text, name):
    """The argument lists of a CMake command's calls, in order."""
    return [m[1].split() for m in re.finditer(rf"(?<![\w]){name}\s*\(([^)]*)\)", text)]


def expand(word, values):
    for _ in range(5):
        word, n = re.subn(r"\$\{(\w+)\}", lambda m: values.get(m[1], ""), word)
        if not n:
            break
    return word


def read(folder):
    """The programs of one sample."""
    text = re.sub(r"(?m)#.*$", "", (folder / "CMakeLists.txt").read_text(errors="replace"))
    if LEFT_OUT.search(text):
        return
    values = {"CMAKE_CURRENT_BINARY_DIR": str(folder), "CMAKE_CURRENT_SOURCE_DIR": str(folder),
              "CMAKE_CUDA_COMPILER": "nvcc", "CUDAToolkit_BIN_DIR": "",
              "GENCODE_FLAGS": "-arch=sm_90"}
    for words in arguments(text, "set"):
        if words and len(words) == 2 and words[0] not in values and not words[0].startswith("CMAKE_"):
            values[words[0]] = expand(words[1].strip('"'), values)
    libraries = {}
    for words in arguments(text, "target_link_libraries"):
        for w in words[1:]:
            if w in ("PUBLIC", "PRIVATE", "INTERFACE"):
                continue
            w = "nvJitLink" if "NVJITLINK" in w else w.removeprefix("CUDA::")
            w = LIBRARIES.get(w, w)
            if w and "$" not in w and "::" not in w:
                libraries.setdefault(expand(words[0], values), []).extend([w, *NEEDS.get(w, [])])
    includes = [expand(w, values) for name in ("include_directories", "target_include_directories")
                for words in arguments(text, name) for w in words
                if "CUDAToolkit" not in w and (folder / expand(w, values)).is_dir()]
    commands = []
    for m in re.finditer(r"COMMAND\s+\$\{CMAKE_CUDA_COMPILER\}(.*)", text):
        commands.append(["nvcc", *(a for w in m[1].split() if (a := expand(w.strip('"'), values)))])
    seen = set()
    for words in arguments(text, "add_executable"):
        name = expand(words[0], values)
        if name in seen:
            continue
        seen.add(name)
        sources = [expand(w, values) for w in words[1:]]
        yield Sample(folder, name, sources, libraries.get(name, []), includes, commands, "OpenMP" in text,
                     re.findall(r"\$\{CUDA_INCLUDE_DIR\}/(\S+) \$", text))


def build(sample, common, toolkit):
    if sample.program.exists():
        return True
    compile_ = ["nvcc", "-std=c++17", "-O2", "-arch=sm_90", "--extended-lambda", "-rdc=true",
                "-w", "-I", str(common), "-L", f"{toolkit}/lib64/stubs", "-Xcompiler", "-fPIC",
                "-Xlinker", f"-rpath={toolkit}/lib64"]
    for include in sample.includes:
        compile_ += ["-I", include]
    if sample.openmp:
        compile_ += ["-Xcompiler", "-fopenmp"]
    for header in sample.headers:  # which a program compiles with itself
        source, to = toolkit / "include" / header, sample.folder / Path(header).name
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, to)
    link = [f"-l{lib}" for lib in dict.fromkeys([*sample.libraries, "pthread", "rt", "dl"])]
    for command in [*sample.commands, [*compile_, "-o", str(sample.program) + ".new", *sample.sources, *link]]:
        p = subprocess.run(command, cwd=sample.folder, capture_output=True, text=True, errors="replace")
        if p.returncode:
            sample.log = shlex.join(command) + "\n" + (p.stdout + p.stderr)[-3000:]
            return False
    os.rename(str(sample.program) + ".new", sample.program)
    return True


def verdicts(text):
    """The lines that say how it went, without figures, in any order."""
    return sorted(NUMBER.sub("#", " ".join(line.split())) for line in text.splitlines() if VERDICT.search(line))


# Run inside, so that hiding the driver does not count as the program's time.
TIMED = ["bash", "-c", 'TIMEFORMAT="program took %R s"; time "$0" "$@"']
TOOK = re.compile(r"program took ([\d.]+) s\s*$")


def run(side, sample, args, timeout, env):
    begin = time.monotonic()
    try:
        p = subprocess.run([str(HERE / "run.sh"), side, *TIMED, str(sample.program), *args],
                           cwd=sample.folder, capture_output=True, text=True, errors="replace",
                           timeout=timeout, env=env, stdin=subprocess.DEVNULL)
        status, text, errors = p.returncode, p.stdout, p.stderr
    except subprocess.TimeoutExpired as e:
        def decode(b):
            return b.decode(errors="replace") if isinstance(b, bytes) else b or ""
        status, text, errors = "no end", decode(e.stdout), decode(e.stderr)
    took = TOOK.search(errors)
    seconds = float(took[1]) if took else time.monotonic() - begin
    return {"status": status, "seconds": round(seconds, 2), "verdicts": verdicts(text),
            "tail": (text[-1500:] + "\n" + TOOK.sub("", errors)[-1500:]).strip()}


def compare(sample, args, timeout, env, sides, deadline):
    row = {"program": sample.name, "args": args, "native": None, "remote": None}
    if time.monotonic() > deadline:
        return {**row, "verdict": "no time"}
    for side in sides:
        row[side] = run(side, sample, args, timeout, env)
    native, remote = row["native"], row["remote"]
    if not (native and remote):
        only = native or remote
        return {**row, "verdict": "ran" if only["status"] == 0 else f"status {only['status']}"}
    if native["status"] != 0:
        verdict = "equal" if remote["status"] == native["status"] else "native fails"
        return {**row, "verdict": verdict}
    if remote["status"] != 0:
        return {**row, "verdict": "FAILS"}
    if native["verdicts"] != remote["verdicts"]:
        again = run("native", sample, args, timeout, env)
        return {**row, "verdict": "DIFFERS" if again["verdicts"] == native["verdicts"] else "varies"}
    return {**row, "verdict": "equal"}


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=Path)
    ap.add_argument("programs", nargs="*")
    ap.add_argument("--build-only", action="store_true")
    ap.add_argument(
        "-j", type=int, default=3, help="programs at once (the seconds mean little when they share the GPU)")
    ap.add_argument("--build-jobs", type=int, default=os.cpu_count())
    ap.add_argument("--shard", default="1/1", help="I/N: the I-th of N parts")
    ap.add_argument("--budget", type=float, default=540, help="seconds after which no more programs are started")
    ap.add_argument("--timeout", type=float, default=90)
    ap.add_argument("--native-only", action="store_true")
    ap.add_argument("--remote-only", action="store_true")
    ap.add_argument("--list", action="store_true")
    return ap.parse_intermixed_args()


def choose(a):
    samples = [s for f in sorted((a.folder / "Samples").glob("[0-6]_*/*/CMakeLists.txt"))
               for s in read(f.parent.resolve())]
    if a.programs:
        samples = [s for s in samples if s.name in a.programs]
    part, parts = map(int, a.shard.split("/"))
    return samples[part - 1 :: parts]


def build_all(a, samples):
    nvcc = shutil.which("nvcc")
    if not nvcc:
        sys.exit("samples.py: no nvcc in PATH")
    toolkit = Path(nvcc).resolve().parent.parent
    with concurrent.futures.ThreadPoolExecutor(a.build_jobs) as pool:
        built = list(pool.map(lambda s: build(s, a.folder.resolve() / "Common", toolkit), samples))
    for s, ok in zip(samples, built):
        if not ok:
            print(f"building {s.name} failed:\n    " + s.log.replace("\n", "\n    "))
    return [s for s, ok in zip(samples, built) if ok]


def runs_of(sample, known):
    """The argument lists with which a program is run."""
    entry = known.get(sample.name, {})
    if entry.get("skip"):
        return []
    return [r.get("args", []) for r in entry["runs"]] if "runs" in entry else [entry.get("args", [])]


def table(rows):
    width = max(len(r["program"]) for r in rows)
    for r in rows:
        cells = [f"{r[s]['status']!s:>6} {r[s]['seconds']:7.2f} s"
                 if r[s] else f"{'-':>6} {'':9}" for s in ("native", "remote")]
        print(f"{r['program']:<{width}}  {cells[0]}  {cells[1]}  {r['verdict']}  {' '.join(r['args'])}".rstrip())
        if r["verdict"] in ("FAILS", "DIFFERS"):
            other = [v for v in r["remote"]["verdicts"] if v not in r["native"]["verdicts"]]
            for line in (other or r["remote"]["tail"].splitlines())[-6:]:
                print("    " + line[:200])


def main():
    a = options()
    deadline = time.monotonic() + a.budget
    samples = choose(a)
    if a.list:
        print("\n".join(f"{s.name}: {' '.join(s.sources)} {' '.join(s.libraries)}" for s in samples))
        return 0
    begin = time.monotonic()
    samples = build_all(a, samples)
    print(f"{len(samples)} programs are built, {time.monotonic() - begin:.0f} s", flush=True)
    if a.build_only:
        return 0
    sides = ["native"] if a.native_only else ["remote"] if a.remote_only else ["native", "remote"]
    config = a.folder / "test_args.json"
    known = json.loads(config.read_text()) if config.exists() else {}
    work = tempfile.mkdtemp(prefix="scuda-samples-")
    env, server = dict(os.environ), None
    if "remote" in sides and "SCUDA_SERVER" not in env:
        from check import start_server

        env["SCUDA_WARM"] = str(3 * a.j)  # programs follow each other faster than workers start
        server, env["SCUDA_SERVER"] = start_server(f"{work}/server", env)
    rows = []
    with open(Path(os.environ.get("OUT", work)) / "samples.jsonl",
              "a") as out, concurrent.futures.ThreadPoolExecutor(a.j) as pool:
        jobs = [pool.submit(compare, s, args, a.timeout, env, sides, deadline)
                for s in samples for args in runs_of(s, known)]
        for job in concurrent.futures.as_completed(jobs):
            rows.append(job.result())
            out.write(json.dumps(rows[-1]) + "\n")
            out.flush()
    if server:
        server.terminate()
        server.wait(10)
        if os.environ.get("OUT"):
            shutil.copy(f"{work}/server/log", Path(os.environ["OUT"]) / "samples-server.log")
    rows.sort(key=lambda r: r["program"])
    table(rows)
    passing = [r for r in rows if r["native"] and r["native"]["status"] == 0 and r["remote"]]
    right = [r for r in passing if r["verdict"] in ("equal", "varies")]
    if passing:
        seconds = [sum(r[s]["seconds"] for r in right) for s in ("native", "remote")]
        print(f"{len(right)} of {len(passing)} that pass natively pass remotely; {seconds[0]:.0f} s natively, "
              f"{seconds[1]:.0f} s remotely, ratio {seconds[1] / max(seconds[0], 0.01):.2f}")
    shutil.rmtree(work, ignore_errors=True)
    return 0 if len(right) == len(passing) else 1


if __name__ == "__main__":
    sys.exit(main())
