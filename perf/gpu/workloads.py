"""What bench.py measures: each workload runs in a process of its own and gives dictionaries, name -> seconds.

    workloads.py NAME             prepares, measures once and prints the dictionary
    workloads.py NAME --by-turns  does it for each line that it reads; so a native and a remote process take turns
    workloads.py NAME --at-once   (infer, train) says "ready", reads for how many seconds, and prints the nanoseconds of
                                  each operation that it carries out in that time: one of several clients at once

Names that end in "(MiB)", "(cores)" or "(count)" are that instead. With STEPS set a workload only warms up and takes
so many steps: for counting.
"""

import os
import resource
import statistics
import time
from pathlib import Path

WORK = {}


def workload(function):
    """Of a generator: what is before the first yield prepares, and each dictionary that it yields is measured anew."""
    WORK[function.__name__] = function
    return function


def timed(torch, body, repeats, warm=1):
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


def counted(torch, step):
    """The process whose calls are counted: everything before the steps is the same however many there are."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    for _ in range(int(os.environ["STEPS"])):
        step()
    torch.cuda.synchronize()


def descendants(pid):
    try:
        children = [int(c) for task in Path(f"/proc/{pid}/task").iterdir()
                    for c in Path(task, "children").read_text().split()]
    except OSError:
        return []
    return children + [d for c in children for d in descendants(c)]


def server_seconds():
    """CPU time of the server's processes so far; None where there is no server."""
    if "BENCH_SERVER" not in os.environ or os.environ.get("SCUDA_SIDE") != "remote":
        return None
    total = 0
    for pid in descendants(int(os.environ["BENCH_SERVER"])):
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(words[11]) + int(words[12])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


class Processor:
    """CPU used by this process and by the server while the block runs, in processors."""

    def __enter__(self):
        self.at, self.used, self.server = time.perf_counter(), self.own(), server_seconds()
        return self

    @staticmethod
    def own():
        u = resource.getrusage(resource.RUSAGE_SELF)
        return u.ru_utime + u.ru_stime

    def __exit__(self, *_):
        took = time.perf_counter() - self.at
        self.result = {"CPU of the program while training (cores)": (self.own() - self.used) / took}
        if self.server is not None:
            self.result["CPU of the server while training (cores)"] = (server_seconds() - self.server) / took


def resnet_parts(batch=64):
    import torch
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return torch, model, step


@workload
def resnet():
    torch, model, step = resnet_parts()
    if "STEPS" in os.environ:
        counted(torch, step)
        yield {}
        return
    one = torch.randn(1, 3, 224, 224, device="cuda")

    def steps():
        for _ in range(10):
            step()

    def infer():
        with torch.no_grad():
            for _ in range(50):
                model(one)

    for _ in range(3):
        step()
    while True:
        with Processor() as p:
            result = {"ResNet-50 training b64, 10 steps": timed(torch, steps, 3)}
        model.eval()
        result["ResNet-50 inference b1, 50 times"] = timed(torch, infer, 3)
        model.train()
        result["resident memory of the program (MiB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield result | p.result


@workload
def resnet_link():
    torch, _, step = resnet_parts()

    def steps():
        for _ in range(10):
            step()

    while True:
        yield {"ResNet-50 training b64, 10 steps": timed(torch, steps, 3)}


def gpt2_parts():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).cuda()

    def generate(tokens=64):
        model.eval()
        prompt = torch.full((1, 32), 5, device="cuda")
        with torch.no_grad():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens,
                           min_new_tokens=tokens, do_sample=False, pad_token_id=50256)

    return torch, model, generate


@workload
def gpt2():
    torch, model, generate = gpt2_parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 50257, (8, 512), device="cuda")

    def steps():
        for _ in range(10):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    while True:
        model.train()
        trained = timed(torch, steps, 3)
        yield {"GPT-2 training bf16, 10 steps": trained, "GPT-2 generating 64 tokens": timed(torch, generate, 3)}


@workload
def generate():
    torch, _, make = gpt2_parts()
    if "STEPS" in os.environ:
        make(40)  # from then on PyTorch has the memory
        torch.cuda.synchronize()
        make(int(os.environ["STEPS"]))
        torch.cuda.synchronize()
        yield {}
        return
    while True:
        yield {"GPT-2 generating 64 tokens": timed(torch, make, 3)}


@workload
def first():
    begin = time.perf_counter()
    import torch

    imported = time.perf_counter()
    assert torch.cuda.is_available()
    torch.ones(4).to("cuda")
    yield {"import torch": imported - begin,
           "first tensor, from torch.cuda.is_available() on": time.perf_counter() - imported}


@workload
def small():
    import torch

    x = torch.zeros(1000, device="cuda")

    def thousand():
        for _ in range(1000):
            x.add_(1)

    def items():
        for _ in range(1000):
            x[0].item()

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

    while True:
        yield {"1000 small operations": timed(torch, thousand, 11), "1000 item() of a number": timed(torch, items, 7),
               "CUDA graph (60 kernels) replayed 100 times": timed(torch, replay, 7)}


@workload
def triton():
    import torch
    from triton_case import softmax_kernel

    x = torch.randn(256, 781, device="cuda")
    y = torch.empty_like(x)

    def hundred():
        for _ in range(100):
            softmax_kernel[(256,)](x, y, 781, BLOCK=1024)

    while True:
        yield {"Triton kernel, 100 times": timed(torch, hundred, 11, warm=3)}


@workload
def compiled():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(),
                                torch.nn.Linear(1024, 256), torch.nn.LayerNorm(256)).cuda()
    fast, x = torch.compile(model), torch.randn(64, 256, device="cuda")

    def hundred():
        with torch.no_grad():
            for _ in range(100):
                fast(x)

    while True:
        yield {"compiled module, 100 times": timed(torch, hundred, 11, warm=3)}


@workload
def jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    f = jax.jit(lambda x: jnp.tanh(x @ x).sum(0) * 2 + 1)
    x = jnp.ones((256, 256))

    def hundred():
        for _ in range(100):
            y = f(x)
        y.block_until_ready()

    while True:
        for _ in range(3):
            hundred()
        values = []
        for _ in range(11):
            t = time.perf_counter()
            hundred()
            values.append(time.perf_counter() - t)
        yield {"JAX jit, 100 times": statistics.median(values)}


@workload
def jax_training():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # else XLA times several forms of a kernel in each process, and both sides may run different ones
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    import jax
    import jax.numpy as jnp

    widths = [256, 1024, 1024, 16]
    keys = jax.random.split(jax.random.key(1), len(widths) + 1)
    weights = [jax.random.normal(k, (a, b)) / a**0.5 for k, a, b in zip(keys, widths, widths[1:])]
    x, y = (jax.random.normal(keys[-1], (128, n)) for n in (widths[0], widths[-1]))

    def loss_of(weights):
        h = x
        for w in weights[:-1]:
            h = jnp.tanh(h @ w)
        return jnp.mean((h @ weights[-1] - y) ** 2)

    step = jax.jit(lambda weights: [w - 0.05 * g for w, g in zip(weights, jax.grad(loss_of)(weights))])

    def hundred():
        w = weights
        for _ in range(100):
            w = step(w)
        jax.block_until_ready(w)

    for _ in range(3):
        hundred()
    while True:
        values = []
        for _ in range(11):
            t = time.perf_counter()
            hundred()
            values.append(time.perf_counter() - t)
        yield {"JAX training of a small network, 100 steps": statistics.median(values)}


def infer():
    torch, model, _ = resnet_parts()
    model.eval()
    one = torch.randn(1, 3, 224, 224, device="cuda")

    def operation():
        with torch.no_grad():
            model(one)
        torch.cuda.synchronize()

    return operation


def train():
    torch, _, step = resnet_parts()

    def operation():
        step()
        torch.cuda.synchronize()

    return operation


AT_ONCE = {"infer": infer, "train": train}


def at_once(operation):
    for _ in range(5):
        operation()
    print("ready", flush=True)
    seconds, times = float(input()), []  # whoever is ready waits here for the others
    until = time.perf_counter_ns() + int(seconds * 1e9)
    while (begin := time.perf_counter_ns()) < until:
        operation()
        times.append(time.perf_counter_ns() - begin)
    print("\n".join(map(str, times)))


if __name__ == "__main__":
    import json
    import sys

    if sys.argv[2:] == ["--at-once"]:
        at_once(AT_ONCE[sys.argv[1]]())
        sys.exit()
    work = WORK[sys.argv[1]]()
    for _ in sys.stdin if sys.argv[2:] == ["--by-turns"] else [None]:
        print(json.dumps(next(work)), flush=True)
