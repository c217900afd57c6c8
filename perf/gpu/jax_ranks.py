"""What nccl.py runs of JAX, once for each rank: jax_ranks.py CASE. Every process has one GPU of a mesh over all of
them. Rank 0 prints what ranks.py prints."""

import json
import os
import sys
import time
from functools import partial

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from suite import CASES, digest, suite, turns  # noqa: E402

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
case = suite("ranks")


def mine(x):
    """What this rank has of an array."""
    return np.asarray(x.addressable_data(0))


def spread(mesh, whole):
    """An array whose first axis is over the ranks, which all have the same whole."""
    sharding = NamedSharding(mesh, PartitionSpec("ranks"))
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


def over_ranks(mesh, function):
    one = PartitionSpec("ranks")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=one, out_specs=one))


@case
def jax_shard_map(mesh):
    """Each collective of jax.lax, over types and sizes."""
    exact, ring = {}, [(i, (i + 1) % RANKS) for i in range(RANKS)]
    calls = {
        "psum": lambda x: jax.lax.psum(x, "ranks") + 0 * x,
        "pmax": lambda x: jax.lax.pmax(x, "ranks") + 0 * x,
        "ppermute": lambda x: jax.lax.ppermute(x, "ranks", ring),
        "all_gather": lambda x: jax.lax.all_gather(x, "ranks", tiled=True).reshape(RANKS, -1).sum(0).reshape(x.shape),
        "psum_scatter": lambda x: jnp.tile(jax.lax.psum_scatter(x, "ranks", tiled=True), RANKS),
        "all_to_all": lambda x: jax.lax.all_to_all(x.reshape(RANKS, -1), "ranks", 0, 0).reshape(x.shape),
    }
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32):
        for n in (RANKS, 1 << 20):
            whole = np.random.default_rng(n).integers(-8, 8, RANKS * n).astype(dtype)
            x = spread(mesh, whole)
            for name, call in calls.items():
                exact[f"{name} of {n} {dtype.__name__}"] = digest(mine(over_ranks(mesh, call)(x)))
    return exact, {}


@case
def jax_training(mesh):
    """Data-parallel training: gradients are summed over the ranks by psum; pmap does the same."""
    widths = [256, 1024, 1024, 16]
    keys = jax.random.split(jax.random.key(1), len(widths))
    weights = [jax.random.normal(k, (a, b)) / a**0.5 for k, a, b in zip(keys, widths, widths[1:])]

    def loss_of(weights, x, y):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return jnp.mean((x @ weights[-1] - y) ** 2)

    def update(weights, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        gradients = jax.lax.pmean(gradients, "ranks")
        return [w - 0.05 * g for w, g in zip(weights, gradients)], jax.lax.pmean(loss, "ranks")

    data = np.random.default_rng(5)
    x, y = (data.standard_normal((RANKS * 64, n)).astype(np.float32) for n in (widths[0], widths[-1]))
    everywhere, one = PartitionSpec(), PartitionSpec("ranks")
    step = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=(everywhere, one, one), out_specs=everywhere,
                                 check_vma=False))
    xs, ys, w = spread(mesh, x), spread(mesh, y), weights
    losses, times = [], []
    for _ in range(4):
        w, loss = step(w, xs, ys)
        losses.append(float(mine(loss)))
    jax.block_until_ready(w)
    for _ in turns():
        began = time.perf_counter()
        for _ in range(50):
            w, loss = step(w, xs, ys)
        jax.block_until_ready(w)
        times.append((time.perf_counter() - began) / 50 * 1000)
        losses.append(float(mine(loss)))
    part = slice(RANK * 64, RANK * 64 + 64)
    mapped = jax.pmap(update, axis_name="ranks", in_axes=(None, 0, 0), out_axes=(None, None))
    w = weights
    for _ in range(3):
        w, loss = mapped(w, x[None, part], y[None, part])
    return {"losses": digest(np.array(losses)), "pmap": digest(*map(np.asarray, w))}, \
        {"a step, ms": times}


def main():
    began = time.perf_counter()
    jax.distributed.initialize(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", RANKS, RANK,
                               local_device_ids=[0])
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    first = over_ranks(mesh, partial(jax.lax.psum, axis_name="ranks"))(spread(mesh, np.ones(RANKS, np.float32)))
    jax.block_until_ready(first)
    started = (time.perf_counter() - began) * 1000
    exact, times = CASES[sys.argv[1]](mesh)
    # by way of NCCL, as there is nothing else between the ranks
    text = np.frombuffer("".join(exact.values()).encode(), np.uint8).astype(np.int32)
    sharding = NamedSharding(mesh, PartitionSpec("ranks"))
    all_text = jax.make_array_from_single_device_arrays((RANKS, len(text)), sharding, [jnp.array(text)[None]])
    gathered = jax.jit(lambda t: t, out_shardings=NamedSharding(mesh, PartitionSpec()))(all_text)
    everyone = np.asarray(gathered.addressable_data(0)).astype(np.uint8)
    if RANK == 0:
        names = {f"{name} of rank {r}": bytes(everyone[r]).decode()[16 * i:16 * i + 16]
                 for r in range(RANKS) for i, name in enumerate(exact)}
        print(json.dumps({"exact": names, "times": {"start to first sum, ms": [started]} | times}), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
