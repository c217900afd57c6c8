"""What nccl.py runs, once for each rank: ranks.py CASE. Rank 0 prints {"exact": …, "times": …}: digests that native
and remote have to agree in, and lists of milliseconds, one a turn (of "bandwidth": GB/s as nccl-tests count them for
the bus)."""

import collections
import faulthandler
import json
import os
import signal
import sys
import time
from functools import partial

from suite import CASES, digest, suite, torch_for_repeating, turns

torch = torch_for_repeating()
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
case = suite("ranks")


def trained(step, steps=10):
    """The losses of all steps, and for each turn a step's milliseconds."""
    losses, times = [step() for _ in range(4)], []
    torch.cuda.synchronize()
    for _ in turns():
        began = time.perf_counter()
        losses += [step() for _ in range(steps)]
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / steps * 1000)
    return {"losses": digest(*losses)}, {"a step, ms": times}


@case
def collectives():
    """Each collective of PyTorch's, over types and sizes, and what NCCL's own groups carry."""
    exact = {}
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for n in (1, 1000, 1 << 20):
            g = torch.Generator(device="cuda").manual_seed(RANK)
            x = torch.randint(-8, 8, (n * RANKS,), device="cuda", generator=g).to(dtype)
            all_sum, gathered = x.clone(), [torch.empty_like(x) for _ in range(RANKS)]
            dist.all_reduce(all_sum)
            dist.all_gather(gathered, x)
            scattered, exchanged, spread = torch.empty_like(x[:n]), torch.empty_like(x), x.clone()
            dist.reduce_scatter_tensor(scattered, x)
            dist.all_to_all_single(exchanged, x)
            dist.broadcast(spread, RANKS - 1)
            most, received = x.clone(), torch.empty_like(x)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            ops = [dist.P2POp(dist.isend, x, (RANK + 1) % RANKS), dist.P2POp(dist.irecv, received, (RANK - 1) % RANKS)]
            for r in dist.batch_isend_irecv(ops):
                r.wait()
            dist.barrier()
            exact[f"{dtype} {n}"] = digest(all_sum, *gathered, scattered, exchanged, spread, most, received)
    return exact, {}


@case
def parts():
    """Parts of a communicator, made by splitting it, with a configuration, and by leaving a rank out; reductions that
    multiply first; and what has a root."""
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    x = torch.arange(1000, device="cuda", dtype=torch.float32) * (RANK + 1)
    exact, factor = {}, torch.tensor([0.25], device="cuda") * (RANK + 1)

    def summed(what, group, op=dist.ReduceOp.SUM):
        y = x.clone()
        dist.all_reduce(y, op, group=group)
        exact[what] = digest(y)

    summed("multiplied by the program's", None, _make_nccl_premul_sum(0.5))
    summed("multiplied by the GPU's", None, _make_nccl_premul_sum(factor))
    few = max(1, RANKS // 2)
    halves = [list(range(at, min(at + few, RANKS))) for at in range(0, RANKS, few)]
    half = dist.split_group(split_ranks=halves)
    summed("a split", half)
    summed("a split of all, backwards", dist.split_group(split_ranks=[list(range(RANKS))[::-1]]))
    summed("a split, multiplied", half, _make_nccl_premul_sum(3.0))
    options = dist.ProcessGroupNCCL.Options()
    options.config.min_ctas, options.config.max_ctas, options.config.cga_cluster_size = 2, 4, 2
    configured = dist.new_group(pg_options=options)
    summed("configured", configured)
    odd = dist.new_group(list(range(0, RANKS, 2)))
    if RANK % 2 == 0:
        summed("every second rank", odd)
    y, gathered, last = x.clone(), [torch.empty_like(x) for _ in range(RANKS)], RANKS - 1
    dist.reduce(y, last)
    dist.gather(x, gathered if RANK == last else None, last)
    mine = torch.empty(1000, device="cuda")
    dist.scatter(mine, [x + i for i in range(RANKS)] if RANK == last else None, last)
    exact["with a root"] = digest(mine, *([y, *gathered] if RANK == last else []))
    torch.cuda.synchronize()
    dist.barrier()
    if RANK != last:
        summed("without the last rank", dist.shrink_group([last], group=configured))
    else:
        dist.destroy_process_group(configured)  # the others end theirs, which waits for it
    return exact, {}


def ddp(model):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[0])


@case
def ddp_resnet():
    import torchvision

    model = ddp(torchvision.models.resnet50(weights=None).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    g = torch.Generator(device="cuda").manual_seed(RANK)
    x = torch.randn(64, 3, 224, 224, device="cuda", generator=g)
    y = torch.randint(0, 1000, (64,), device="cuda", generator=g)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trained(step)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    # this attention repeats itself bit for bit
    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")
    return GPT2LMHeadModel(config).cuda()


def language_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator(device="cuda").manual_seed(RANK)
    tokens = torch.randint(0, 50257, (8, 512), device="cuda", generator=g)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@case
def ddp_gpt2():
    return trained(language_step(ddp(gpt2())))


@case
def fsdp():
    from torch.distributed.fsdp import fully_shard

    model = gpt2()
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return trained(language_step(model))


@case
def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (RANKS,))
    layers = [torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
              for _ in range(8)]
    model = torch.nn.Sequential(*layers).cuda()
    for layer in model:
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(512, 1024, device="cuda", generator=torch.Generator(device="cuda").manual_seed(7))

    def step():
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trained(step)


@case
def pipeline():
    """A stage a rank: activations go on, gradients come back, by send and receive."""
    stage = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-2)
    g = torch.Generator(device="cuda").manual_seed(3)
    first = torch.randn(256, 2048, device="cuda", generator=g)

    def step():
        optimizer.zero_grad()
        x = first
        if RANK:
            x = torch.empty_like(first)
            dist.recv(x, RANK - 1)
            x.requires_grad_()
        y = stage(x)
        if RANK < RANKS - 1:
            dist.send(y.detach(), RANK + 1)
            back = torch.empty_like(y)
            dist.recv(back, RANK + 1)
            y.backward(back)
        else:
            y.square().mean().backward()
        if RANK:
            dist.send(x.grad, RANK - 1)
        optimizer.step()
        return stage[0].weight.grad.norm().detach()

    return trained(step)


@case
def bandwidth():
    """Bus bandwidth as nccl-tests define it, of the slowest rank; milliseconds for 1 KiB."""
    share = (RANKS - 1) / RANKS
    times = collections.defaultdict(list)
    for _ in turns():
        for size in (1 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30):
            of_size(size, share, times)
    return {}, times


def of_size(size, share, times):
    n = size // 4
    x, y = torch.ones(n, device="cuda"), torch.empty(n, device="cuda")
    part = torch.empty(n // RANKS, device="cuda")

    def pair():
        ops = [dist.P2POp(dist.isend, x, (RANK + 1) % RANKS), dist.P2POp(dist.irecv, y, (RANK - 1) % RANKS)]
        for r in dist.batch_isend_irecv(ops):
            r.wait()

    for name, call, factor in (
            ("all_reduce", partial(dist.all_reduce, x), 2 * share),
            ("all_gather", partial(dist.all_gather_into_tensor, y, part), share),
            ("reduce_scatter", partial(dist.reduce_scatter_tensor, part, x), share),
            ("all_to_all", partial(dist.all_to_all_single, y, x), share),
            ("broadcast", partial(dist.broadcast, x, 0), 1), ("send and receive", pair, 1)):
        rounds = 200 if size <= 1 << 20 else 20 if size <= 256 << 20 else 5
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
        took = torch.tensor((time.perf_counter() - began) / rounds, device="cuda")
        dist.all_reduce(took, dist.ReduceOp.MAX)
        seconds = took.item()
        if size == 1 << 10:
            times[f"{name} of 1 KiB, ms"].append(seconds * 1000)
        else:
            times[f"{name} of {size >> 20} MiB, GB/s"].append(size * factor / seconds / 1e9)


def lose_last(group):
    """The last rank is killed between collectives: the others' next one ends. What PyTorch's watchdog says of it is
    looked for by nccl.py; the watchdog keeps its lock for a minute then, so that there is no call behind."""
    x = torch.ones(1 << 24, device="cuda")
    for _ in range(20):
        dist.all_reduce(x, dist.ReduceOp.MAX, group)
    torch.cuda.synchronize()
    if RANK == RANKS - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    faulthandler.dump_traceback_later(20)  # where it hangs, if it does
    began = time.perf_counter()
    dist.all_reduce(x, dist.ReduceOp.MAX, group)
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    if RANK == 0:
        print(json.dumps({"exact": {}, "times": {"until the wait ends, s": [took]}}))
    sys.stdout.flush()
    time.sleep(1)  # for the watchdog, which looks ten times a second
    os._exit(0)  # there is nobody to take leave of


@case
def lost():
    lose_last(None)


@case
def lost_of_part():
    """The same in a part, which the whole one's watchdog knows nothing of: it looks where there is work."""
    lose_last(dist.new_group(list(range(RANKS))))


def main():
    torch.cuda.set_device(0)
    began = time.perf_counter()
    eager = "EAGER" in os.environ or sys.argv[1] in ("parts", "lost_of_part")  # what is split has to be begun
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0) if eager else None)
    torch.manual_seed(0)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    started = (time.perf_counter() - began) * 1000
    exact, times = CASES[sys.argv[1]]()
    everyone = [None] * RANKS
    dist.all_gather_object(everyone, exact)
    if RANK == 0:
        names = [(f"{name} of rank {r}", of[name]) for r, of in enumerate(everyone) for name in of]
        print(json.dumps({"exact": dict(names), "times": {"start to first sum, ms": [started]} | times}))
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
