"""Correctness cases of NVML: every getter of one device, field values, performance metrics, events, and whose
processes are shown."""

import ctypes
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from suite import Absent, suite

case = suite("nvml")

API = Path(__file__).resolve().parent.parent.parent / "api"
# What changes by itself between two calls; of these only the status is compared.
MOVING = re.compile(r"Power|Temperature|Utilization|Clock|Throughput|Energy|Sample|Process|MemoryInfo|BAR1|Violation|"
                    r"PerformanceState|Fan|Pstates|Throttle|MemoryUsage|Accounting|ReplayCounter|"
                    r"PerformanceModes|Thermal|LastBBX|PerfModes|NvLinkErrorCounter")


def describe():
    facts = json.loads((API / "facts/nvml-api.json").read_text())
    for part, more in json.loads((API / "facts/nvml-later.json").read_text()).items():
        facts[part] = facts[part] + more if isinstance(more, list) else facts[part] | more
    versioned = set()
    for line in (API / "nvml.semantics").read_text().splitlines():
        words = line.split("#")[0].split()
        if "versioned" in words[2:]:
            versioned.add(words[0])
    return facts, versioned


def library():
    lib = ctypes.CDLL("libnvidia-ml.so.1")
    if lib.nvmlInit_v2():
        raise RuntimeError("nvmlInit_v2 fails")
    device = ctypes.c_void_p()
    if lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        raise RuntimeError("no device 0")
    return lib, device


def version_of(facts, name):
    """The version that a structure's typedef is, such as 2 for nvmlX_v2_t."""
    while True:
        m = re.search(r"_v(\d+)_t$", name)
        if m:
            return int(m[1])
        to = facts["typedefs"].get(name, "")
        if not to.startswith("nvml") or to == name:
            return 1
        name = to


def base_type(facts, name):
    while facts["typedefs"].get(name, "").startswith("nvml"):
        name = facts["typedefs"][name]
    return facts["typedefs"].get(name, name)


# What the driver tells root alone. A server that is root has workers that are ordinary users, and answers as to them.
ROOT_ONLY = ("nvmlSystemGetNvlinkBwMode",)


@case
def nvml_getters():
    """Every nvmlDeviceGet… and nvmlSystemGet… that takes the device at most, small numbers, and one place for its
    result."""
    facts, versioned = describe()
    lib, device = library()
    out = {}
    for name, function in sorted(facts["functions"].items()):
        params = [p["type"] for p in function["params"]]
        if not re.match(r"nvml(Device|System)Get", name) or not hasattr(lib, name) or name in ROOT_ONLY:
            continue
        inputs, target = params[:-1], params[-1] if params else ""
        if not target.endswith("*") or target.startswith("const") or "**" in target:
            continue
        target = target.rstrip("* ")
        if target in ("nvmlDevice_t", "nvmlUnit_t", "void", "char") or any(
            t not in ("nvmlDevice_t", "unsigned int", "int") and base_type(
                facts, t).split()[0] != "enum" for t in inputs):
            continue
        for number in (0, 1) if any(t != "nvmlDevice_t" for t in inputs) else (0,):
            buffer = (ctypes.c_uint8 * 65536)()
            size, _ = facts["sizes"].get(target, (8, 8))
            if name in versioned:
                ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint32))[0] = version_of(facts, target) << 24 | size
            r = getattr(lib, name)(*(device if t == "nvmlDevice_t" else ctypes.c_uint(number) for t in inputs), buffer)
            key = name + (f"({number})" if len(inputs) > 1 else "")
            out[key] = f"{r}" if r or MOVING.search(name) else f"{r} {bytes(buffer[: min(size, 512)]).hex()}"
    assert len(out) > 100, len(out)
    return out


@case
def nvml_texts():
    facts, _ = describe()
    lib, device = library()
    out = {}
    for name, function in sorted(facts["functions"].items()):
        params = [p["type"] for p in function["params"]]
        if params not in (["nvmlDevice_t", "char *", "unsigned int"],
                          ["char *", "unsigned int"]) or not hasattr(lib, name):
            continue
        for length in (0, 3, 96):
            text = ctypes.create_string_buffer(256)
            r = getattr(lib, name)(*([device] if len(params) == 3 else []), text, length)
            out[f"{name}({length})"] = f"{r} {text.value!r}"
    lib.nvmlErrorString.restype = ctypes.c_char_p
    for code in (*range(0, 33), 999, 1000):
        out[f"error {code}"] = repr(lib.nvmlErrorString(code))
    return out


class FieldValue(ctypes.Structure):
    _fields_ = [("field", ctypes.c_uint), ("scope", ctypes.c_uint),
                ("timestamp", ctypes.c_longlong), ("latency", ctypes.c_longlong),
                ("type", ctypes.c_int), ("result", ctypes.c_int), ("value", ctypes.c_uint64)]


@case
def nvml_fields():
    lib, device = library()
    values = (FieldValue * 260)()
    for i, v in enumerate(values):
        v.field = i + 1
    r = lib.nvmlDeviceGetFieldValues(device, len(values), values)
    return {"result": repr(r), **{str(v.field): f"result {v.result}, type {v.type}" for v in values}}


class Metric(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("result", ctypes.c_int), ("value", ctypes.c_double),
                ("short", ctypes.c_char_p), ("long", ctypes.c_char_p), ("unit", ctypes.c_char_p)]


class Metrics(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint), ("first", ctypes.c_void_p),
                ("second", ctypes.c_void_p), ("metrics", Metric * 210)]


@case
def nvml_metrics():
    """GPU performance metrics: two samples and what happened between them."""
    import time

    lib, device = library()
    support = (ctypes.c_uint * 2)(1 << 24 | 8, 0)
    out = {"support": repr((lib.nvmlGpmQueryDeviceSupport(device, support), support[1]))}
    samples = [ctypes.c_void_p(), ctypes.c_void_p()]
    for s in samples:
        assert lib.nvmlGpmSampleAlloc(ctypes.byref(s)) == 0
        out[f"sample {len(out)}"] = repr(lib.nvmlGpmSampleGet(device, s))
        time.sleep(0.2)
    m = Metrics(version=1, count=100, first=samples[0], second=samples[1])
    for i in range(100):
        m.metrics[i].id = i + 1
    out["get"] = repr(lib.nvmlGpmMetricsGet(ctypes.byref(m)))
    for i in range(100):
        x = m.metrics[i]
        out[f"metric {x.id}"] = repr((x.result, x.short, x.long, x.unit)) if x.result == 0 else repr(x.result)
    out["other version"] = repr(lib.nvmlGpmMetricsGet(ctypes.byref(Metrics(version=77, count=1))))
    for s in samples:
        out[f"free {len(out)}"] = repr(lib.nvmlGpmSampleFree(s))
    return out


@case
def nvml_events():
    lib, device = library()
    events, types = ctypes.c_void_p(), ctypes.c_ulonglong()
    out = {"create": repr(lib.nvmlEventSetCreate(ctypes.byref(events)))}
    out["types"] = repr((lib.nvmlDeviceGetSupportedEventTypes(device, ctypes.byref(types)), types.value))
    out["register"] = repr(lib.nvmlDeviceRegisterEvents(device, ctypes.c_ulonglong(8), events))  # critical XID errors
    data = (ctypes.c_uint64 * 8)()
    out["wait"] = repr(lib.nvmlEventSetWait_v2(events, data, 120))
    out["wait v1"] = repr(lib.nvmlEventSetWait(events, data, 10))
    out["free"] = repr(lib.nvmlEventSetFree(events))
    return out


@case
def nvml_system_events():
    """Events of the system: GPUs that come and go; none does."""
    lib, _ = library()

    class Request(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("set", ctypes.c_void_p)]

    class Register(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("types", ctypes.c_ulonglong), ("set", ctypes.c_void_p)]

    class Wait(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("timeout", ctypes.c_uint), ("set", ctypes.c_void_p),
                    ("data", ctypes.c_void_p), ("size", ctypes.c_uint), ("events", ctypes.c_uint)]

    def versioned(structure, *values):
        return structure(1 << 24 | ctypes.sizeof(structure), *values)

    events = versioned(Request, None)
    out = {"create": repr((lib.nvmlSystemEventSetCreate(ctypes.byref(events)), bool(events.set)))}
    for types in (1, 2, 3):
        out[f"register {types}"] = repr(
            lib.nvmlSystemRegisterEvents(ctypes.byref(versioned(Register, types, events.set))))
    data = (ctypes.c_uint64 * 8)()
    for timeout in (0, 120):
        wait = versioned(Wait, timeout, events.set, ctypes.addressof(data), 4, 0)
        out[f"wait {timeout}"] = repr((lib.nvmlSystemEventSetWait(ctypes.byref(wait)), wait.events))
    out["free"] = repr(lib.nvmlSystemEventSetFree(ctypes.byref(events)))
    return out


@case
def nvml_pynvml():
    """The functions of pynvml that take a device only."""
    try:
        import pynvml
    except ImportError as e:
        raise Absent(str(e)) from e
    import inspect

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    out = {"count": repr(pynvml.nvmlDeviceGetCount()), "driver": repr(pynvml.nvmlSystemGetDriverVersion()),
           "cuda": repr(pynvml.nvmlSystemGetCudaDriverVersion())}
    for name in sorted(dir(pynvml)):
        f = getattr(pynvml, name)
        if not name.startswith("nvmlDeviceGet") or not inspect.isfunction(f):
            continue
        required = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty]
        if len(required) != 1 or required[0].name not in ("handle", "device"):
            continue
        try:
            value = f(device)
            # a structure prints with its address
            out[name] = type(value).__name__ if MOVING.search(name) or not isinstance(
                value, (int, str, bytes, float, list)) else repr(value)
        except pynvml.NVMLError as e:
            out[name] = str(e)
        except (TypeError, AttributeError, ValueError) as e:  # pynvml's own
            out[name] = type(e).__name__
    pynvml.nvmlShutdown()
    return out


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong),
                ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]


@case
def nvml_processes():
    """A process that uses the GPU finds itself in every list, by its own pid."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(256 << 20)) == 0
    lib, device = library()
    out, info, pid = {}, {"pid": os.getpid()}, os.getpid()
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
                 "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
        count, list_ = ctypes.c_uint(256), (Process * 256)()
        r = getattr(lib, name)(device, ctypes.byref(count), list_)
        mine = [p for p in list_[: count.value if r == 0 else 0] if p.pid == pid]
        out[name] = repr((r, len(mine), [p.memory >= 256 << 20 for p in mine]))
        info[name] = [(p.pid, p.memory) for p in list_[: count.value if r == 0 else 0]]
    text = ctypes.create_string_buffer(256)
    out["name"] = repr(
        (lib.nvmlSystemGetProcessName(pid, text, 256),
         os.path.basename(text.value.decode(errors="replace").split()[0]) if text.value else ""))
    smi = os.environ.get("SMI") or shutil.which("nvidia-smi")
    if smi:
        for form in (["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                     ["pmon", "-c", "1"], [], ["-q", "-d", "PIDS"]):
            p = subprocess.run([smi, *form], capture_output=True, text=True, timeout=60)
            rows = [line for line in p.stdout.splitlines() if re.search(rf"\b{pid}\b", line)]
            out["nvidia-smi " + " ".join(form)] = repr(
                (p.returncode, len(rows),
                 [re.sub(r"\d+" if "pmon" not in form else r"\d+|(?<= )-(?= )", "#", re.sub(r"\s+", " ", r))
                  for r in rows]))
    return out, info


@case
def nvml_utilization():
    """A process that keeps the GPU busy sees what it uses of it, by its own pid, in NVML's list and in the columns sm
    and mem of nvidia-smi pmon."""
    import threading
    import time

    import torch

    stop = threading.Event()

    def busy():
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        while not stop.is_set():
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()

    thread = threading.Thread(target=busy)
    thread.start()
    lib, device = library()
    smi, pid = os.environ.get("SMI") or shutil.which("nvidia-smi"), os.getpid()
    seen, listed, rows, deadline = False, False, [], time.monotonic() + 20
    while not (seen and listed) and time.monotonic() < deadline:
        time.sleep(1)
        count, samples = ctypes.c_uint(200), (ctypes.c_uint64 * 800)()  # of 32 bytes: pid, time, sm, mem, enc, dec
        r = lib.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(count), ctypes.c_ulonglong(0))
        mine = [samples[4 * i + 2] & 0xFFFFFFFF for i in range(count.value if r == 0 else 0)
                if samples[4 * i] & 0xFFFFFFFF == pid]
        listed = listed or any(mine)
        if not smi:
            seen = True
            continue
        text = subprocess.run([smi, "pmon", "-c", "1"], capture_output=True, text=True, timeout=60).stdout
        rows = [line.split() for line in text.splitlines() if line.split()[1:2] == [str(pid)]]
        seen = any(r[3].isdigit() and int(r[3]) > 0 and r[4].isdigit() for r in rows)
    stop.set()
    thread.join()
    return {"listed": repr(listed), "sm and mem": repr(seen)}, {"rows": rows}
