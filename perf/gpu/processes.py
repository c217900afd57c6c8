"""Correctness cases of PyTorch programs of several processes that share memory of the GPU."""

import os

from frameworks import generator
from suite import digest, suite, torch_for_repeating

case = suite("frameworks")


def ipc_child(inbox, outbox):
    import torch

    x = inbox.get()
    outbox.put(("seen", digest(x)))
    x.mul_(2)
    torch.cuda.synchronize()
    outbox.put(("changed", None))
    mine = torch.arange(1000, dtype=torch.float32, device="cuda") ** 2
    outbox.put(("mine", mine))
    handle = inbox.get()
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), handle)
    event.synchronize()
    outbox.put(("event", event.query()))
    inbox.get()  # the parent has used what is ours


@case
def torch_ipc():
    torch = torch_for_repeating()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    there, here = context.Queue(), context.Queue()
    child = context.Process(target=ipc_child, args=(there, here))
    child.start()
    x = torch.randn(1 << 20, generator=generator(torch, 18)).cuda()
    out = {"before": digest(x)}
    there.put(x)
    for _ in range(2):
        kind, value = here.get(timeout=60)
        out[kind] = repr(value)
    out["after"] = digest(x)
    kind, mine = here.get(timeout=60)
    out[kind] = digest(mine * 1)
    event = torch.cuda.Event(interprocess=True)
    torch.cuda._sleep(1_000_000)
    event.record()
    there.put(event.ipc_handle())
    out["event"] = repr(here.get(timeout=60)[1])
    del mine
    there.put(None)
    child.join(30)
    out["exit"] = repr(child.exitcode)
    return out


def collective(rank, world, port, outbox):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    out, x = {}, torch.randn(1 << 20, generator=generator(torch, 41 + rank)).cuda()
    small, parts = torch.arange(
        6, device="cuda") + 10 * rank, [torch.empty(6, dtype=torch.int64, device="cuda") for _ in range(world)]
    dist.all_reduce(x)
    out["all_reduce"] = digest(x)
    dist.all_gather(parts, small)
    dist.broadcast(small, world - 1)
    out["gathered"] = digest(*parts, small)
    if world > 1:
        dist.barrier()
        dist.send(x[:100], 0) if rank == 1 else dist.recv(x[:100], 1) if rank == 0 else None
        out["received"] = digest(x)
    large = torch.randn(32 << 20, generator=generator(torch, 43)).cuda()
    for _ in range(3):
        dist.all_reduce(large, dist.ReduceOp.AVG)
    out["large"] = digest(large)
    torch.manual_seed(44)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 32)).cuda()
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    optimizer, g = torch.optim.SGD(net.parameters(), lr=0.1), generator(torch, 45 + rank)
    for _ in range(10):
        optimizer.zero_grad()
        net(torch.randn(128, 256, generator=g).cuda()).square().mean().backward()
        optimizer.step()
    out["trained"] = digest(*(p.detach() for p in net.parameters()))
    dist.destroy_process_group()
    outbox.put((rank, out))


@case
def torch_nccl():
    """Collectives and data-parallel training with a process for each GPU that there is."""
    import socket

    torch = torch_for_repeating()
    import torch.multiprocessing as mp

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context, world = mp.get_context("spawn"), torch.cuda.device_count()
    outbox = context.Queue()
    ranks = [context.Process(target=collective, args=(r, world, port, outbox)) for r in range(world)]
    for r in ranks:
        r.start()
    out = {f"rank {rank}": values for rank, values in (outbox.get(timeout=90) for _ in ranks)}
    for r in ranks:
        r.join(30)
    return {"exits": [r.exitcode for r in ranks], **dict(sorted(out.items()))}


# Kernels that the process has not launched before, whose code is loaded first: other work waits behind them.
UNSEEN = ["sin", "cos", "tan", "exp", "log1p", "sqrt", "rsqrt", "sigmoid", "tanh", "erf",
          "erfc", "lgamma", "digamma", "atan", "asinh", "sinh", "cosh", "floor",
          "ceil", "trunc", "frac", "sign", "reciprocal", "square", "expm1", "exp2", "i0", "sinc", "logit", "erfinv"]


def change_shared(inbox, outbox, ready, go):
    import torch

    aside = torch.cuda.Stream()
    scratch = torch.full((1000,), 0.5, device="cuda")
    while (item := inbox.get()) is not None:
        i, var = item
        ready.set()
        go.wait()
        go.clear()
        expected = torch.arange(1.0, 26, device="cuda").view(5, 5)
        expected[0, 0] = 1000
        right = var.data.equal(expected)
        value = torch.ones(5, 5, device="cuda") * (i + 2)
        with torch.cuda.stream(aside):
            getattr(torch, UNSEEN[i])(scratch)
        var.data[:] = value  # and nothing waits for it
        outbox.put(right)
        del var, item


@case
def torch_shared_order():
    torch = torch_for_repeating()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    there, here, ready, go = context.Queue(), context.Queue(), context.Event(), context.Event()
    child = context.Process(target=change_shared, args=(there, here, ready, go))
    child.start()
    out = {}
    for i in range(len(UNSEEN)):
        var = torch.arange(1.0, 26, device="cuda").view(5, 5).requires_grad_(True)
        there.put((i, var))
        ready.wait(60)
        ready.clear()
        var.data[0, 0] = 1000
        go.set()
        out[f"{i} there"] = repr(here.get(timeout=60))
        out[f"{i} here"] = digest(var.data)
    there.put(None)
    child.join(30)
    out["exit"] = repr(child.exitcode)
    return out
