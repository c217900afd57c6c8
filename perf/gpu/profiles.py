#!/usr/bin/env python3
"""Cases of profilers: what torch.profiler, jax.profiler, Triton's proton and NVTX see of a program's GPU work. Kernels'
names, their counts and the operator that each belongs to are compared, each name by itself, so that check.py lists
what differs by name ("kernels: NAME"); times are only shown.

    profiles.py [ROUNDS]   natively and remotely by turns: GPU time by key_averages, and what profiling costs
"""

import collections
import functools
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from suite import Absent, digest, suite, torch_for_repeating
from workloads import resnet_parts

ROOT = Path(__file__).resolve().parent.parent.parent

# What a CUPTI's own buffers cost the program: how many it asks for is a matter of the library, not of the program.
BUFFER_REQUEST = "Activity Buffer Request"


def flat(out):
    """{"kernels": {"gemm": 2}} as {"kernels": 1, "kernels: gemm": 2}: a line for each name, and how many there are."""
    lines = {}
    for key, value in out.items():
        if isinstance(value, dict):
            lines[key] = f"{len(value)} names"
            lines |= {f"{key}: {name}": repr(n) for name, n in sorted(value.items())}
        else:
            lines[key] = value
    return lines


def case(function):
    @functools.wraps(function)
    def flattened():
        result = function()
        return (flat(result[0]), *result[1:]) if isinstance(result, tuple) else flat(result)

    return suite("profiles")(flattened)


def counts(names):
    return dict(collections.Counter(names))


def gpu_events(trace):
    """The events of the GPU's rows in a Chrome trace of PyTorch's."""
    return [e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in (
        "kernel", "gpu_memcpy", "gpu_memset")]


def exported(p):
    with tempfile.TemporaryDirectory() as folder:
        p.export_chrome_trace(f"{folder}/trace.json")
        return json.loads(Path(f"{folder}/trace.json").read_text())


def seen(p):
    """What a profile says of the GPU's work: names with counts, and for each operator the kernels that it launched."""
    trace = exported(p)
    events = trace["traceEvents"]
    gpu = gpu_events(trace)
    assert gpu, "no event of the GPU is in the trace"
    operators = {e["args"]["External id"]: e["name"] for e in events
                 if e.get("cat") == "cpu_op" and "External id" in e.get("args", {})}
    calls = {e["args"]["correlation"]: e for e in events
             if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})}
    without_call = [e["name"] for e in gpu if e["args"].get("correlation") not in calls]
    early = [e["name"] for e in gpu if e["args"].get("correlation") in calls
             and e["ts"] + 1e-3 < calls[e["args"]["correlation"]]["ts"]]
    details = ("grid", "block", "shared memory", "registers per thread")
    shapes = counts(f"{e['name'][:60]} {[e['args'].get(d) for d in details]}" for e in gpu if e["cat"] == "kernel")
    copies = counts(f"{e['name']} {e['args'].get('bytes')}" for e in gpu if e["cat"] != "kernel")
    out = {
        "kernels": counts(e["name"] for e in gpu if e["cat"] == "kernel"),
        "copies": copies,
        "launches": shapes,
        "operators": counts(f"{operators.get(e['args'].get('External id'), '-')}: {e['name'][:80]}" for e in gpu),
        "calls": counts(e["name"] for e in calls.values() if "Launch" in e["name"] or "Memcpy" in e["name"]),
        "without a call": counts(without_call),
        "before their call": counts(early),
        "streams": repr(len({e["args"].get("stream") for e in gpu})),
    }
    total = sum(e["dur"] for e in gpu)
    return out, {"GPU ms": round(total / 1000, 3), "events": len(gpu)}


def both():
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU, ProfilerActivity.CUDA]


@case
def profile_resnet():
    torch = torch_for_repeating()
    _, _, step = resnet_parts(batch=16)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=both(), record_shapes=True, profile_memory=True) as p:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    out, info = seen(p)
    averages = p.key_averages()
    out["averages"] = {e.key: e.count for e in averages
                       if (e.self_device_time_total > 0 or e.key.startswith("aten::")) and e.key != BUFFER_REQUEST}
    out["has memory"] = repr(any(e.self_device_memory_usage > 0 for e in averages))
    info["GPU ms by key_averages"] = round(sum(e.self_device_time_total for e in averages) / 1000, 3)
    info[BUFFER_REQUEST] = sum(e.count for e in averages if e.key == BUFFER_REQUEST)
    return out, info


@case
def profile_gpt2():
    """Training in bf16 and generating, with stacks and modules."""
    torch = torch_for_repeating()
    gpt2 = sys.modules["__main__"].gpt2  # cases.py is what runs

    model = gpt2(torch)
    tokens = torch.randint(0, 50257, (2, 128), generator=torch.Generator().manual_seed(3)).cuda()

    def train():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(tokens, labels=tokens).loss.backward()

    def make():
        with torch.no_grad():
            model.generate(tokens[:, :8], attention_mask=torch.ones_like(tokens[:, :8]), max_new_tokens=4,
                           do_sample=False, pad_token_id=50256)

    for _ in range(2):
        train()
        make()
    torch.cuda.synchronize()
    out, info = {}, {}
    for name, body in (("train", train), ("generate", make)):
        with torch.profiler.profile(activities=both(), with_stack=True, with_modules=True, record_shapes=True) as p:
            body()
            torch.cuda.synchronize()
        what, times = seen(p)
        out |= {f"{name}: {k}": v for k, v in what.items()}
        info |= {f"{name}: {k}": v for k, v in times.items()}
        out[f"{name}: stacks"] = repr(any("gpt2" in str(e.stack) or "cases.py" in str(e.stack) or "profiles.py" in str(
            e.stack) for e in p.events()))
    return out, info


@case
def profile_schedule():
    """A schedule that repeats, and profiles after it: each has its own steps alone."""
    torch = torch_for_repeating()
    a = torch.randn(256, 256, device="cuda")
    found = []

    def ready(p):
        found.append(counts(e["name"] for e in gpu_events(exported(p))))

    with torch.profiler.profile(activities=both(), on_trace_ready=ready,
                                schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)) as p:
        for i in range(9):
            for _ in range(i + 1):
                a = torch.relu(a @ a) / 256
            torch.cuda.synchronize()
            p.step()
    for i in range(3):
        with torch.profiler.profile(activities=both()) as p:
            for _ in range(i + 1):
                b = torch.sigmoid(a)
            torch.cuda.synchronize()
        found.append(counts(e["name"] for e in gpu_events(exported(p))))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        b = torch.tanh(b).cpu()
    found.append(counts(e["name"] for e in gpu_events(exported(p))))
    return {str(i): f for i, f in enumerate(found)}


@case
def profile_graphs():
    """Kernels of CUDA graphs, several streams and threads."""
    torch = torch_for_repeating()
    import threading

    net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128)).cuda()
    x = torch.randn(64, 128, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        net(x)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=both()) as p:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
    out, info = seen(p)

    def work(i):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            y = torch.full((64, 64), float(i), device="cuda")
            for _ in range(20):
                y = torch.sin(y)
        stream.synchronize()

    with torch.profiler.profile(activities=both()) as p:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        torch.cuda.synchronize()
    more, _ = seen(p)
    # Which thread first fills the cache of memory is not the same each time.
    out |= {f"threads: {k}": v for k, v in more.items() if k in ("kernels", "launches", "without a call", "streams")}
    return out, info


def graph_of_nothing(torch):
    """A function whose backward pass launches nothing: the graph of it is empty, and its events still come and go."""
    sample = torch.zeros(10, device="cuda").requires_grad_(True)
    graphed = torch.cuda.graphs.make_graphed_callables(lambda x: x + 1, sample_args=(sample,))
    return repr(graphed(torch.zeros(10, device="cuda")).sum().item())


def graph_of_kernels(torch):
    """A graph with kernels, a copy and a memset, and what it reads."""
    x = torch.arange(4096, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.copy_(x)
        z = torch.sin(y) + torch.zeros(4096, device="cuda")
        y.copy_(z)
    return graph, x, y


def of_launches(trace):
    """The GPU's work of each launch of a graph, in the launches' order: names with counts, and whether its nodes are of
    the graph that the records name; for all launches together: graphs and nodes."""
    events = trace["traceEvents"]
    launches = sorted((e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
                       and "GraphLaunch" in e["name"]), key=lambda e: e["ts"])
    gpu = gpu_events(trace)
    out, graphs, nodes = {"launches of graphs": repr(len(launches))}, set(), set()
    for i, launch in enumerate(launches):
        work = [e for e in gpu if e["args"].get("correlation") == launch["args"]["correlation"]]
        out[f"launch {i}"] = counts(e["name"] for e in work)
        ids = [(e["args"].get("graph id"), e["args"].get("graph node id")) for e in work]
        graphs |= {g for g, _ in ids}
        nodes |= {n for _, n in ids}
        # a PyTorch that does not show them has None on both sides
        out[f"launch {i}: nodes of its graph"] = repr(sum(bool(g and n) and n >> 32 == g for g, n in ids))
    of = {e["args"]["correlation"] for e in launches}
    out["in no graph"] = counts(e["name"] for e in gpu if e["args"].get("correlation") not in of)
    return out | {"graphs": repr(len(graphs)), "nodes": repr(len(nodes))}


def profile_of(torch, *graphs):
    with torch.profiler.profile(activities=both()) as p:
        for graph in graphs:
            graph.replay()
            graph.replay()
        torch.cuda.synchronize()
    return of_launches(exported(p))


@case
def graph_before_profile():
    """Graphs that were instantiated before anybody called CUPTI; one of them is empty."""
    torch = torch_for_repeating()
    total = graph_of_nothing(torch)
    graph, x, y = graph_of_kernels(torch)
    graph.replay()
    torch.cuda.synchronize()
    return {"sum": total, **profile_of(torch, graph), "result": digest(x, y)}


@case
def graph_after_profile():
    """Graphs made after a profile, and a second profile of them and of one that was there before the first. PyTorch's
    own test of the profiler makes the empty one; over scuda the capture was once invalidated."""
    torch = torch_for_repeating()
    torch.cuda.init()
    early, _, _ = graph_of_kernels(torch)
    torch.profiler._utils._init_for_cuda_graphs()
    out = {"sum": graph_of_nothing(torch)}
    with torch.profiler.profile(activities=both()) as p:
        graph_of_nothing(torch)
    out["kernels"] = counts(e["name"] for e in gpu_events(exported(p)))
    late, x, y = graph_of_kernels(torch)
    for i in range(2):
        out |= {f"profile {i}: {k}": v for k, v in profile_of(torch, early, late).items()}
    return out | {"result": digest(x, y)}


class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        import torch

        return torch.full((32,), float(i))


@case
def profile_loader():
    """A profile while forked workers of a DataLoader run, with pinned memory."""
    torch = torch_for_repeating()
    from torch.utils.data import DataLoader

    w = torch.randn(32, 32, device="cuda")
    total = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=both()) as p:
        for batch in DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True):
            total += (batch.cuda(non_blocking=True) @ w).abs().sum()
        torch.cuda.synchronize()
    out, info = seen(p)
    return {k: out[k] for k in ("kernels", "copies", "without a call", "before their call")} | {
        "total": digest(total)}, info


@case
def profile_triton():
    torch = torch_for_repeating()
    try:
        import triton_case
    except ImportError as e:
        raise Absent(str(e)) from None
    triton_case.run(torch, digest)
    with torch.profiler.profile(activities=both()) as p:
        triton_case.run(torch, digest)
        torch.cuda.synchronize()
    out, info = seen(p)
    return {k: out[k] for k in ("kernels", "launches", "without a call", "before their call")}, info


@case
def profile_jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # else XLA times several forms of a kernel and takes the fastest, which is not always the same one
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 " + os.environ.get("XLA_FLAGS", "")
    import jax
    import jax.numpy as jnp

    @jax.jit
    def f(x, w):
        return jnp.tanh(x @ w).sum(), jnp.sort(x, axis=0)

    x, w = jnp.ones((256, 256)), jnp.ones((256, 256)) * 0.01
    jax.block_until_ready(f(x, w))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=False):
            for _ in range(3):
                jax.block_until_ready(f(x, w))
        files = glob.glob(f"{folder}/plugins/profile/*/*.trace.json.gz")
        assert files, "no trace was written"
        with gzip.open(files[0]) as file:
            trace = json.load(file)
    rows = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e.get("name") == "process_name"}
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e.get("name") == "thread_name"}
    gpu = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "GPU" in rows.get(e["pid"], "")
           and lines.get((e["pid"], e["tid"]), "").startswith("Stream")]
    assert gpu, (sorted(rows.values()), sorted(lines.values()))
    return {"kernels": counts(e["name"] for e in gpu), "rows": repr(sorted(set(rows.values()))),
            "details": counts(f"{e['name']} {e.get('args', {}).get('kernel_details', '')}" for e in gpu)}, {
                "GPU us": round(sum(e["dur"] for e in gpu), 1)}


@case
def profile_proton():
    torch = torch_for_repeating()
    if os.environ.get("SCUDA_SIDE") == "remote":
        os.environ.setdefault("TRITON_CUPTI_LIB_PATH", os.environ["LD_LIBRARY_PATH"].split(":")[0])
    try:
        import triton.profiler as proton
    except ImportError as e:
        raise Absent(str(e)) from None
    import triton_case

    triton_case.run(torch, digest)
    with tempfile.TemporaryDirectory() as folder:
        proton.start(f"{folder}/profile", context="shadow")
        for i in range(2):
            with proton.scope(f"round {i}"):
                triton_case.run(torch, digest)
        torch.cuda.synchronize()
        proton.finalize()
        tree = json.loads(Path(f"{folder}/profile.hatchet").read_text())
    found = {}

    def walk(node, path):
        name = node["frame"]["name"]
        metrics = node.get("metrics", {})
        if metrics.get("count"):
            found[f"{path}/{name}"] = metrics["count"]
            assert metrics.get("time (ns)", 0) > 0, node
        for child in node.get("children", []):
            walk(child, f"{path}/{name}" if name != "ROOT" else "")

    walk(tree[0], "")
    return {"tree": found}


@case
def profile_nvtx():
    """Ranges, and PyTorch's own mark for each operator; what the profile shows of them."""
    torch = torch_for_repeating()
    x = torch.randn(128, 128, device="cuda")
    torch.cuda.nvtx.range_push("ours")
    torch.cuda.nvtx.mark("a mark")
    number = torch.cuda.nvtx.range_start("anywhere")
    with torch.profiler.profile(activities=both()) as p:
        with torch.autograd.profiler.record_function("block"):
            y = torch.relu(x @ x)
        torch.cuda.synchronize()
    torch.cuda.nvtx.range_end(number)
    torch.cuda.nvtx.range_pop()
    with torch.autograd.profiler.emit_nvtx():
        z = torch.relu(y @ x).sum().item()
    trace = exported(p)
    marks = counts(f"{e.get('cat')} {e['name']}" for e in trace["traceEvents"]
                   if e.get("cat") in ("user_annotation", "gpu_user_annotation"))
    return {"sum": repr(z), "kernels": counts(e["name"] for e in gpu_events(trace)), "annotations": marks}


def measure():
    """For each line that it reads: a step, a step while it is profiled, and GPU times by key_averages."""
    import torch

    _, _, step = resnet_parts(batch=16)

    def timed(n):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(n):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - t) / n * 1000

    timed(5)
    print("ready", flush=True)
    for _ in sys.stdin:
        r = {"a step, ms": timed(10)}
        with torch.profiler.profile(activities=both()) as p:
            r["a step while profiled, ms"] = timed(10)
        r["GPU time by key_averages, ms"] = sum(e.self_device_time_total for e in p.key_averages()) / 1000
        r["overhead, ms"] = r["a step while profiled, ms"] - r["a step, ms"]
        print(json.dumps(r), flush=True)


def main():
    from statistics import median

    from check import RUN, start_server

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as work:
        server, address = start_server(f"{work}/server", dict(os.environ))
        env = dict(os.environ, SCUDA_SERVER=address)
        sides = {side: subprocess.Popen([RUN, side, sys.executable, __file__, "measure"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env) for side in ("native", "remote")}
        for p in sides.values():
            assert p.stdout.readline().strip() == "ready"
        rows = collections.defaultdict(lambda: collections.defaultdict(list))
        for _ in range(rounds):
            for side, p in sides.items():
                p.stdin.write("\n")
                p.stdin.flush()
                for name, value in json.loads(p.stdout.readline()).items():
                    rows[name][side].append(value)
        for p in sides.values():
            p.stdin.close()
            p.wait(60)
        server.terminate()
        server.wait(10)
    print(f"ResNet-50 training, batch 16, {rounds} rounds by turns, medians")
    for name, by_side in rows.items():
        native, remote = median(by_side["native"]), median(by_side["remote"])
        print(f"{name:<32} {native:9.3f} {remote:9.3f}  ratio {remote / native:.3f}")


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
