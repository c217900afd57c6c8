#!/usr/bin/env python3
"""Runs the correctness cases natively and through scuda and compares them; prints a table and writes JSON lines to
$OUT.

    check.py [-j N] [--repeat N] [--timeout S] [--suite NAME]... [--native-only | --remote-only] [--list] [CASE...]

Cases: the functions of cases.py and the files that it imports (suites pr1, frameworks, libraries, nvml, profiles);
"c:NAME" for the C programs of e2e/programs; "written:cuda" and "written:nvml" (which bytes of their buffers all
functions write, e2e/programs/answers.c); "cu:static" and "cu:shared" (nvcc); "cuda:NAME" for the CUDA C++ programs of
cuda/; "smi:..." (nvidia-smi) and "go:nvml" (Go bindings; build/gonvml, or built where there is Go), both of suite nvml.
"torch_" means all that begin so. A case whose native run does not repeat itself bit for bit (it is run again when it
differs) is reported as "varies", not as equal.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUN = str(HERE / "run.sh")
sys.path.insert(0, str(HERE))

PROGRAMS = [
    "query", "compute", "copies", "streams", "graph", "graph_nodes", "graph_changes", "graph_captured", "captures",
    "graph_found", "graph_edits", "graph_updates", "bodies", "settings", "flags", "ordering", "threads", "fork",
    "errors", "limits", "misuse", "faults", "fault", "vmm", "occupancy", "mapped", "managed", "managed_gpus",
    "mapped_runs",
    "managed_advice", "managed_named", "print", "clusters", "linker", "userobject", "callbacks", "host", "crowd",
    "flood", "per_thread", "boxes", "batches", "arrays", "textures", "sharing", "ipc", "texrefs", "peers", "lives",
    "workspaces", "rarely", "holdup", "ipc_order", "capture_ends", "capacities", "object_lives", "cupti_graphs"]
ALONE = {
    "c:limits", "out_of_memory",  # ask for more memory than there is: others get none meanwhile, natively too
    "c:managed_named",  # natively a copy from an array lacks its last KiB now and then, where others use the GPU
    "torch_shared_order",  # natively as well, what nobody waited for is not there yet, where others use the GPU
}
REMOTE_PROGRAMS = ["handles", "upload_seen", "elsewhere", "names"]  # natively undefined, or there
SMI = {
    "smi:plain": [],
    "smi:list": ["-L"],
    "smi:query": ["--query-gpu=index,name,uuid,serial,driver_version,pci.bus_id,memory.total,compute_cap,vbios_version,"
                  "compute_mode,ecc.mode.current", "--format=csv"],
    "smi:live": ["--query-gpu=memory.used,utilization.gpu,temperature.gpu,power.draw,clocks.sm", "--format=csv"],
    "smi:whole": ["-q"],
    "smi:xml": ["-q", "-x"],
    "smi:apps": ["--query-compute-apps=pid,name,used_memory", "--format=csv"],
    "smi:topology": ["topo", "-m"],
    "smi:dmon": ["dmon", "-c", "1"],
    "smi:pmon": ["pmon", "-c", "1"],
    "smi:mig": ["mig", "-lgi"],
    "smi:wrong": ["--no-such-option"],
    "smi:no_device": ["-i", "99"],
}
def absent_attributes():
    """The attributes that say 0 to clients (lines "absent" of the API description)."""
    api = ROOT / "api"
    numbers = json.loads((api / "facts" / "cuda-driver-api.json").read_text())["enums"]["CUdevice_attribute_enum"]
    lines = (line.split() for line in (api / "cuda.semantics").read_text().splitlines() if line.startswith("absent "))
    return {numbers["CU_DEVICE_ATTRIBUTE_" + name] for line in lines for name in line[2:]}




class Case:
    def __init__(self, name, command, parse, natively=True, suite="pr1", any_exit=False, make=None):
        self.name, self.command, self.parse, self.natively = name, command, parse, natively
        self.suite, self.any_exit = suite, any_exit
        self.make = make  # the command that builds it


def parse_case(stdout):
    lines = [l for l in stdout.splitlines() if l.startswith('{"case"')]
    if not lines:
        raise ValueError("no result line")
    r = json.loads(lines[-1])
    return r["out"], r["info"]


def parse_lines(stdout):
    return {str(i): line for i, line in enumerate(stdout.splitlines())}, {}


def parse_go(stdout):
    """Lines "name: answer", each name without "nvml"; what the driver tells root alone is left out."""
    from management import ROOT_ONLY

    found = dict(line.split(": ", 1) for line in stdout.splitlines() if ": " in line)
    return {name: answer for name, answer in found.items() if f"nvml{name}" not in ROOT_ONLY}, {}


def parse_query(stdout):
    out, absent = {}, absent_attributes()
    for line in stdout.splitlines():
        m = re.match(r"attribute (\d+)", line)
        if not m:
            out[line.split(":")[0]] = line
        elif int(m[1]) not in absent:
            out[m[0]] = line
    return out, {}


def parse_written(stdout):
    """The functions that succeed, with the bytes that they write; those that are not supported aside."""
    lacks = set()
    for library in ("cuda", "nvml"):
        words = (line.split() for line in (ROOT / f"api/{library}.semantics").read_text().splitlines())
        lacks |= {w[0] for w in words if len(w) > 1 and w[1].split(":")[0] in ("unsupported", "missing")}
    rows = [line.split("#")[0].split() for line in (ROOT / "testdata/answers/allowed.written").read_text().splitlines()]
    allowed = [r[0] for r in rows if r[1:] in (["right"], ["right", "real"])]
    rows = (line.split("\t") for line in stdout.splitlines())
    return {name: text for name, _, text in rows
            if text.split(" ")[0] == "0" and re.sub("_pt[sd][sz]$", "", name) not in lacks
            and not any(fnmatch.fnmatch(name, a) for a in allowed)}, {}


def parse_shape(stdout):
    """nvidia-smi's table: numbers that change by themselves and the processes are left out."""
    out = {}
    for i, line in enumerate(stdout.splitlines()):
        if "Processes:" in line:
            break
        if i > 0:
            out[str(i)] = re.sub(r"\s+", " ", re.sub(r"\d+(MiB /|W /|C|%)|P\d", r"#\1", line))
    return out, {}


def parse_live(stdout):
    """Values that change by themselves: only their form counts."""
    out, info = parse_lines(stdout)
    return {k: re.sub(r"[\d.]+", "#", v) for k, v in out.items()}, info


# Of nvidia-smi -q: what goes on or off, up or down by itself.
MOVING = re.compile(r"(Active|Not Active|P\d+|\d+(\.\d+)?)( (W|C|MHz|MiB|KB/s|%|us|mV|J|ms))?$|^\w{3} \w{3} .*\d{4}$")


def parse_whole(stdout):
    """nvidia-smi -q: the tree of keys, with values where they stay; processes have a case of their own."""
    out, path, seen = {}, [], {}
    skipping = None
    for line in stdout.splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if not text or text.startswith("="):
            continue
        if skipping is not None and depth > skipping:
            continue
        skipping = depth if text.startswith("Processes") else None
        key, _, value = (part.strip() for part in text.partition(" :" if " :" in text else ": "))
        path = [p for p in path if p[0] < depth] + [(depth, key)]
        name = "/".join(p[1] for p in path)
        seen[name] = seen.get(name, 0) + 1
        out[f"{name}#{seen[name]}"] = "" if skipping is not None else MOVING.sub("~", value)
    return out, {}


def parse_xml(stdout):
    out, seen, skipping = {}, {}, False
    for line in stdout.splitlines():
        text = line.strip()
        if text.startswith("<processes>"):
            skipping = True
        if not skipping:
            tag = re.match(r"<[^>]*>?", text)
            key = re.sub(r' id="[^"]*"', "", tag[0]) if tag else text
            seen[key] = seen.get(key, 0) + 1
            m = re.match(r"<([\w.]+)[^>]*>(.*)</\1>$", text)
            out[f"{key}#{seen[key]}"] = MOVING.sub("~", m[2]) if m else ""
        if text.startswith("</processes>"):
            skipping = False
    return out, {}


def parse_header(stdout):
    """The lines that head a table whose rows come and go."""
    lines = stdout.splitlines()  # long tables repeat their head
    head = dict.fromkeys(line for i, line in enumerate(lines) if line.startswith("#") or i == 0)
    return {str(i): line for i, line in enumerate(head)}, {"lines": len(lines)}


def parse_dmon(stdout):
    """One row a device: columns, with what is a number and what is not there."""
    return {str(i): line if line.startswith("#") else re.sub(r"\d+", "~", re.sub(r"\s+", " ", line))
            for i, line in enumerate(stdout.splitlines())}, {}


SMI_PARSE = {"smi:plain": parse_shape, "smi:live": parse_live, "smi:whole": parse_whole,
             "smi:xml": parse_xml, "smi:apps": parse_header, "smi:dmon": parse_dmon,
             "smi:pmon": parse_header}


def nvcc_flags(source):
    """What a source wants beside the usual, from its first line: "// nvcc: FLAGS"."""
    first = source.read_text().splitlines()[0]
    return first.removeprefix("// nvcc:").split() if first.startswith("// nvcc:") else []


def programs(folder):
    """The cases that are C and CUDA programs, to be built in a folder."""
    cases = []
    places = ("/usr/local/cuda/include", "/usr/local/cuda-13.0/include")
    include = next((p for p in places if Path(p, "cuda.h").exists()), str(ROOT / "shim/include"))
    libcuda = next(
        (str(p) for p in (Path("/usr/local/nvidia/lib64"), Path("/usr/lib/x86_64-linux-gnu"), ROOT / "build/lib")
         if (p / "libcuda.so.1").exists()), None)
    for name in PROGRAMS + REMOTE_PROGRAMS:
        target = f"{folder}/{name}"
        make = ["gcc", "-O1", "-Wno-unused", "-o", target, str(ROOT / f"e2e/programs/{name}.c"), "-I",
                include, "-L", libcuda or ".", "-l:libcuda.so.1", "-lm", "-lpthread", "-ldl"]
        parse = parse_query if name == "query" else parse_lines
        cases.append(Case(f"c:{name}", [target, str(ROOT / "testdata/kernels")], parse, name in PROGRAMS, make=make))
    answers = f"{folder}/answers"
    for i, library in enumerate(("cuda", "nvml")):
        make = ["gcc", "-O1", "-w", "-o", answers, str(ROOT / "e2e/programs/answers.c"), "-I",
                str(ROOT / "shim/include"), "-L", libcuda or ".", "-l:libcuda.so.1", "-lpthread", "-ldl"]
        command = [answers, str(ROOT / f"testdata/answers/{library}.calls"), "-w", "-j", "4", ":right"]
        cases.append(Case(f"written:{library}", command, parse_written, make=None if i else make))
    if shutil.which("nvcc"):
        for kind in ("static", "shared"):
            make = ["nvcc", "-O2", "-arch=sm_90", "-cudart", kind,
                    "-o", f"{folder}/{kind}", str(HERE / "vector_add.cu")]
            cases.append(Case(f"cu:{kind}", [f"{folder}/{kind}"], parse_lines, make=make))
        for source in sorted((HERE / "cuda").glob("*.cu")):
            target = f"{folder}/cuda-{source.stem}"
            make = ["nvcc", "-O2", "-std=c++17", "-arch=sm_90", "-o", target, str(source), *nvcc_flags(source)]
            cases.append(Case(f"cuda:{source.stem}", [target], parse_lines, make=make))
    return cases


def go_programs(folder):
    """The program on NVIDIA's Go bindings of NVML: what make built, or built now."""
    built = ROOT / "build/gonvml"
    if built.exists():
        return [Case("go:nvml", [str(built)], parse_go, suite="nvml")]
    if not shutil.which("go"):
        return []
    target = f"{folder}/gonvml"
    return [Case("go:nvml", [target], parse_go, suite="nvml",
                 make=["go", "build", "-C", str(ROOT), "-o", target, "./e2e/programs/gonvml"])]


def build(cases):
    running = [(c.name, subprocess.Popen(c.make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
               for c in cases if c.make]
    for name, p in running:
        text, _ = p.communicate()
        if p.returncode:
            print(f"building {name} failed:\n{text}", flush=True)


def run(side, case, timeout, env):
    begin = time.monotonic()
    r = {"side": side, "case": case.name, "out": None, "info": {}, "error": None}
    try:
        p = subprocess.run([RUN, side, *case.command], capture_output=True,
                           text=True, errors="replace", timeout=timeout, env=env, cwd=HERE)
        if case.any_exit:
            r["out"], info = case.parse(p.stdout)
            r["out"]["exit status"] = repr(p.returncode)
        elif p.returncode:
            tail = "\n".join((p.stderr.strip() or p.stdout.strip()).splitlines()[-12:])
            r["error"] = f"exit {p.returncode}: {tail}"
        elif side == "remote" and "scuda:" in p.stderr:
            r["info"]["stderr"] = p.stderr[-2000:]
        if not p.returncode and not case.any_exit:
            r["out"], info = case.parse(p.stdout)
            r["info"].update(info)
            driver = r["info"].get("driver")
            if side == "remote" and driver and not all(
                "/build/lib/" in d or d.startswith(env.get("BUILD", "/build")) for d in driver):
                r["error"] = f"used the real driver: {driver}"
    except subprocess.TimeoutExpired as e:
        tail = (e.stderr or b"").decode(errors="replace")[-1500:] if isinstance(
            e.stderr, bytes) else str(e.stderr or "")[-1500:]
        r["error"] = f"no end within {timeout} s\n{tail}"
    except ValueError as e:
        r["error"] = str(e)
    r["seconds"] = round(time.monotonic() - begin, 2)
    return r


def compare(case, timeout, env, sides):
    native = run("native", case, timeout, env) if "native" in sides and case.natively else None
    remote = run("remote", case, timeout, env) if "remote" in sides else None
    verdict, notes = "equal", []
    for r in (native, remote):
        if r and r["error"]:
            verdict = "FAILED"
            notes.append(f"{r['side']}: {r['error']}")
    if verdict == "equal" and native and remote and native["out"] != remote["out"]:
        again = run("native", case, timeout, env)
        keys = sorted(set(native["out"]) | set(remote["out"]))
        differ = [k for k in keys if native["out"].get(k) != remote["out"].get(k)]
        unstable = {k for k in keys if (again["out"] or {}).get(k) != native["out"].get(k)}
        real = [k for k in differ if k not in unstable]
        verdict = "DIFFERS" if real else "varies"
        shown = real[:40] or differ[:4]
        for k in shown:
            notes.append(f"{k}: native {native['out'].get(k)!r}, remote {remote['out'].get(k)!r}")
        if len(shown) < len(real or differ):
            notes.append(f"and {len(real or differ) - len(shown)} more, which stand in $OUT")
    elif verdict == "equal" and not (native and remote):
        verdict = "ran"
    if verdict in ("equal", "ran") and "absent" in (remote or native)["out"]:
        verdict = "absent"
        notes.append((remote or native)["out"]["absent"])
    return {"case": case.name, "verdict": verdict, "native": native, "remote": remote, "notes": notes}


def compared(cases, at_once, compare_one):
    """The results of cases as they come; of those that bear no other beside them last, and one by one."""
    for jobs, alone in ((at_once, False), (1, True)):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for f in concurrent.futures.as_completed(
                [pool.submit(compare_one, c) for c in cases if (c.name in ALONE) == alone]):
                yield f.result()


def start_server(folder, env):
    p = subprocess.Popen([RUN, "serve", folder], env=env, stdin=subprocess.DEVNULL)
    address = Path(folder, "address")
    deadline = time.monotonic() + 40
    while not address.exists():
        if p.poll() is not None or time.monotonic() > deadline:
            sys.exit("check.py: the server did not start")
        time.sleep(0.05)
    return p, address.read_text().strip()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("cases", nargs="*", help="names or prefixes; a leading - leaves out (after --)")
    ap.add_argument("--suite", action="append", default=[],
                    choices=["pr1", "frameworks", "libraries", "nvml", "profiles"],
                    help="only cases of this suite; may be repeated")
    ap.add_argument("-j", type=int, default=4, help="cases at once")
    ap.add_argument("--repeat", type=int, default=1, help="how often each case is run and compared")
    ap.add_argument("--timeout", type=float, default=180)
    ap.add_argument("--native-only", action="store_true")
    ap.add_argument("--remote-only", action="store_true")
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    from cases import CASES
    from suite import SUITES

    work = tempfile.mkdtemp(prefix="scuda-check-")
    everything = programs(work) + go_programs(work)
    everything += [Case(n, [sys.executable, str(HERE / "cases.py"), n], parse_case, suite=SUITES[n]) for n in CASES]
    smi = shutil.which("nvidia-smi")
    if smi:  # a copy, since the remote side does not see the driver's folder
        shutil.copy(smi, f"{work}/nvidia-smi")
        os.environ["SMI"] = f"{work}/nvidia-smi"
        for name, arguments in SMI.items():
            everything.append(
                Case(name, [f"{work}/nvidia-smi", *arguments],
                     SMI_PARSE.get(name, parse_lines), suite="nvml", any_exit=True))
    leave_out = {w[1:] for w in a.cases if w.startswith("-")}
    wanted = [w for w in a.cases if not w.startswith("-")]
    chosen = [c for c in everything if (c.suite in a.suite or not a.suite) and c.name not in leave_out
              and (not wanted or any(c.name == w or (w.endswith((":", "_")) and c.name.startswith(w)) for w in wanted))]
    if a.list:
        print("\n".join(f"{c.suite:<12} {c.name}" for c in everything))
        return 0
    if not chosen:
        sys.exit("check.py: no such case; --list shows them")

    build(chosen)
    sides = ["native"] if a.native_only else ["remote"] if a.remote_only else ["native", "remote"]
    env = dict(os.environ, PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false",
               TORCHINDUCTOR_CACHE_DIR=f"{work}/inductor", TRITON_CACHE_DIR=f"{work}/triton", HF_HUB_OFFLINE="1")
    server = None
    if "remote" in sides and "SCUDA_SERVER" not in env:
        env.setdefault("SCUDA_WARM", str(2 * a.j))  # cases follow each other faster than workers start
        server, env["SCUDA_SERVER"] = start_server(f"{work}/server", env)
    out = open(Path(os.environ.get("OUT", work)) / "check.jsonl", "a")
    results = []
    try:
        for r in compared(chosen * a.repeat, a.j, lambda c: compare(c, a.timeout, env, sides)):
            results.append(r)
            out.write(json.dumps(r) + "\n")
            out.flush()
            seconds = "  ".join(f"{s} {r[s]['seconds']:6.1f} s"
                                if r[s] else f"{s}        -" for s in ("native", "remote"))
            print(f"{r['case']:<20} {r['verdict']:<8} {seconds}", flush=True)
            for note in r["notes"]:
                print("    " + note.replace("\n", "\n    "), flush=True)
    finally:
        if server:
            server.terminate()
            server.wait(10)
            if os.environ.get("OUT"):
                shutil.copy(f"{work}/server/log", Path(os.environ["OUT"]) / "server.log")
    bad = [r["case"] for r in results if r["verdict"] in ("FAILED", "DIFFERS")]
    what = "cases" if a.repeat == 1 else f"runs of {len(chosen)} cases"
    print(f"{len(results) - len(bad)} of {len(results)} {what} right"
          + (f"; not: {' '.join(sorted(bad))}" if bad else ""))
    shutil.rmtree(work, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
