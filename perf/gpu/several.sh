#!/usr/bin/env bash
# Several servers in one program (docs/decisions/0021) on a GPU machine: two servers, of a GPU each where there are two.
#
#   several.sh [check.py's arguments]
#
#   - whether the driver keeps to each of four parts of the addresses (windows.c), natively
#   - e2e/programs/several*.c: both servers by turns and together, pinned and unified memory, copies, a profile
#   - PyTorch on both devices: results, copies between them and how fast they are, a profile
#
# Copies between the two go from server to server; with PEERS=none by way of the program.
#
#   - where there are two GPUs: nn.DataParallel and JAX on both, with NCCL in one process, as natively
#   - nvidia-smi over both
#   - the cases of check.py that are named (none: of suite pr1) on the second of the two, compared with native runs
#
# Writes what it saw to $OUT as it comes.
set -u
[ "${PEERS:-}" = none ] && PEERS=192.0.2.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) root=$(cd "$here/../.." && pwd)
out=${OUT:-$(mktemp -d)} work=$(mktemp -d) failed=0
run=$here/run.sh

verdict() { # NAME RC
  if [ "$2" = 0 ]; then echo "$1: right"; else echo "$1: FAILS ($2)"; failed=1; fi
}

link=(-I "$root/shim/include" -L "$root/build/lib" -l:libcuda.so.1 -Wl,--allow-shlib-undefined -lpthread -lm -ldl)
gcc -O1 -o "$work/windows" "$here/windows.c" "${link[@]}" || exit 1
for f in "$root"/e2e/programs/several*.c; do
  gcc -O1 -w -o "$work/$(basename "$f" .c)" "$f" "${link[@]}" || exit 1
done

for n in 0 1 2 3; do
  timeout 60 "$run" native "$work/windows" $n 4 >"$out/windows.$n" 2>&1
  verdict "window $n of 4" $?
  grep -E 'outside|error' "$out/windows.$n"
done

nccl() { # the NCCL of PyTorch's wheel
  (cd "$here" && python3 -c 'import nccl; print(nccl.wheel_library())')
}

gpus=$(nvidia-smi -L | wc -l)
for i in 0 1; do
  CUDA_VISIBLE_DEVICES=$((i % gpus)) SCUDA_WARM=${WARM:-4} \
    SERVE_OPTIONS="--peers ${PEERS:-127.0.0.0/8} --fabric trusted --profiles nccl --nccl ${NCCL:-$(nccl)}" \
    "$run" serve "$work/server$i" &
  eval "server$i=$!"
done
finish() {
  kill "$server0" "$server1" 2>/dev/null
  for i in 0 1; do cp "$work/server$i/log" "$out/server$i.log"; done
}
trap finish EXIT
for i in 0 1; do
  for _ in $(seq 400); do [ -e "$work/server$i/address" ] && break; sleep 0.05; done
done
export SCUDA_SERVER
SCUDA_SERVER=$(cat "$work/server0/address"),$(cat "$work/server1/address")

program() { # NAME ARGUMENTS...
  local name=$1
  shift
  timeout 60 "$run" remote "$work/$name" "$root/testdata/kernels" "$@" >"$out/$name" 2>&1 </dev/null
  verdict "$name${1:+ $1}" $?
  grep -v 'level=' "$out/$name" | tail -12
}

program several
program several_boxes
program several_peers 40
program several_pinned
program several_managed
program several_managed_random 1 20
for n in 12 13; do program several_cupti libcupti.so.$n; done
for how in -L "-q -d MEMORY,UTILIZATION"; do
  # shellcheck disable=SC2086 # words
  timeout 60 "$run" remote nvidia-smi $how >"$out/smi" 2>&1
  verdict "nvidia-smi $how" $?
  head -12 "$out/smi"
done

cat >"$work/both.py" <<'P'
import torch
assert torch.cuda.device_count() == 2, torch.cuda.device_count()
torch.manual_seed(1)
a = torch.randn(1000, 1000)
results = []
for d in range(2):
    x = a.to(f"cuda:{d}")
    y = (x @ x.t()).relu().sum(dim=1)
    results.append(y.cpu())
    m = torch.nn.Sequential(torch.nn.Linear(1000, 100), torch.nn.GELU(), torch.nn.Linear(100, 10)).to(x.device)
    for p in m.parameters(): torch.nn.init.constant_(p, 0.01)
    o = torch.optim.Adam(m.parameters())
    for _ in range(5):
        o.zero_grad(); loss = m(x).square().mean(); loss.backward(); o.step()
    results.append(loss.detach().cpu())
assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3]), results
s = [torch.cuda.Stream(d) for d in range(2)]
e = [torch.cuda.Event(enable_timing=True) for d in range(2)]
for d in range(2):
    with torch.cuda.stream(s[d]):
        z = torch.ones(1 << 20, device=f"cuda:{d}") * 2
        e[d].record(s[d])
s[1].wait_event(e[0])
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
assert torch.equal(a.to("cuda:0").cpu().to("cuda:1").cpu(), a)
assert torch.equal(a.to("cuda:0").to("cuda:1").cpu(), a)
P
REMOTE_DEVICES=0,1 timeout 120 "$run" remote python3 "$work/both.py" >"$out/both" 2>&1
verdict "PyTorch on both" $?
tail -5 "$out/both"

cat >"$work/speed.py" <<'P'
import time
import torch
for mib in (1, 16, 256, 1024):
    a = [torch.full((mib << 20,), d, dtype=torch.uint8, device=f"cuda:{d}") for d in range(2)]
    best = [9e9, 9e9]
    for k in range(10 if mib < 256 else 5):
        for d in range(2):
            for e in range(2): torch.cuda.synchronize(e)
            began = time.perf_counter()
            a[1 - d].copy_(a[d])
            for e in range(2): torch.cuda.synchronize(e)
            best[d] = min(best[d], time.perf_counter() - began)
            assert int(a[1 - d][-1]) == d and int(a[1 - d].max()) == d
            a[1 - d].fill_(1 - d)
    print(f"{mib} MiB between GPUs: {best[0] * 1e3:.2f} and {best[1] * 1e3:.2f} ms, "
          f"{(mib << 20) / best[0] / 1e9:.2f} and {(mib << 20) / best[1] / 1e9:.2f} GB/s")
P
REMOTE_DEVICES=0,1 timeout 120 "$run" remote python3 "$work/speed.py" >"$out/speed" 2>"$out/speed.err"
verdict "copies between both" $?
cat "$out/speed"
tail -5 "$out/speed.err"

cat >"$work/profiled.py" <<'P'
import collections
import torch
from torch.profiler import ProfilerActivity, profile
def work(d):
    a = torch.randn(1024, 1024, device=f"cuda:{d}")
    for _ in range(20): a = (a @ a).tanh()
    return a.sum()
for d in range(2): work(d).item()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
    for _ in range(3):
        both = [work(d) for d in range(2)]
        both[0].item(); both[1].item()
    for d in range(2): torch.cuda.synchronize(d)
count, time = collections.Counter(), collections.Counter()
for e in p.events():
    if e.device_type == torch.autograd.DeviceType.CUDA:
        count[e.device_index, "gemm" in e.name or "tanh" in e.name] += 1
        time[e.device_index] += e.time_range.elapsed_us()
print(dict(count), dict(time))
assert count[0, True] == count[1, True] == 120 and count[0, False] == count[1, False] > 0, count
assert 0.6 < time[0] / time[1] < 1.6, time
P
REMOTE_DEVICES=0,1 timeout 120 "$run" remote python3 "$work/profiled.py" >"$out/profiled" 2>&1
verdict "torch.profiler over both" $?
tail -5 "$out/profiled"

cat >"$work/parallel.py" <<'P'
import torch
torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
m = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda()
d = torch.nn.DataParallel(m, device_ids=[0, 1])
o = torch.optim.SGD(d.parameters(), lr=0.1)
x = torch.randn(64, 256)
losses = []
for _ in range(10):
    o.zero_grad(); loss = d(x.cuda()).square().mean(); loss.backward(); o.step()
    losses.append(loss.item())
t = [torch.full((1000,), float(i + 1), device=f"cuda:{i}") for i in range(2)]
torch.cuda.nccl.all_reduce(t)
assert all(bool((v == 3).all()) for v in t), t
print([x.hex() for x in losses])
P
cat >"$work/jax_on_both.py" <<'P'
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert jax.device_count() == 2, jax.devices()
x = np.arange(2048, dtype=np.float32).reshape(2, 1024)
y = jax.pmap(lambda v: jax.lax.psum(v * 2, "i"), axis_name="i")(x)
assert (np.asarray(y) == 2 * x.sum(axis=0)).all()
mesh = Mesh(np.array(jax.devices()), ("data",))
split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
w = jax.device_put(jnp.full((64, 64), 0.01), whole)
data = jax.device_put(jnp.asarray(np.random.RandomState(1).randn(128, 64).astype(np.float32)), split)
@functools.partial(jax.jit, out_shardings=(whole, whole))
def step(w, d):
    loss, g = jax.value_and_grad(lambda w: jnp.square(jnp.tanh(d @ w) - d).mean())(w)
    return w - 0.5 * g, loss
losses = []
for _ in range(20):
    w, loss = step(w, data)
    losses.append(float(loss))
assert losses[-1] < losses[0]
print([v.hex() for v in losses])
P
both() { # NAME SCRIPT: the same natively, where there are two GPUs
  timeout 120 "$run" native python3 "$work/$2" >"$out/$2.native" 2>/dev/null
  REMOTE_DEVICES=0,1 timeout 120 "$run" remote python3 "$work/$2" >"$out/$2" 2>"$out/$2.err"
  verdict "$1" $?
  grep -v 'level=' "$out/$2.err" | tail -5
  cmp "$out/$2.native" "$out/$2"
  verdict "$1 as natively" $?
}
if [ "$gpus" -gt 1 ]; then
  both nn.DataParallel parallel.py
  # XLA's own kernels for small sums want peer access, and are chosen by the GPU's type.
  export XLA_FLAGS=--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false
  XLA_PYTHON_CLIENT_PREALLOCATE=false both JAX jax_on_both.py
fi

[ $# -gt 0 ] || set -- --suite pr1
REMOTE_DEVICES=1 OUT=$out timeout "${LIMIT:-300}" "$here/check.py" -j 6 "$@" >"$out/check.log" 2>&1
verdict "check.py on the second" $?
grep -vE ' equal | ran ' "$out/check.log" | cut -c1-250 | head -40
exit $failed
