#!/usr/bin/env bash
# Several servers in one program (docs/decisions/0021) on a GPU machine: two servers, of a GPU each where there are two.
#
#   several.sh [check.py's arguments]
#
#   - whether the driver keeps to each of four parts of the addresses (windows.c), natively
#   - e2e/programs/several.c: both servers by turns and together
#   - PyTorch on both devices
#   - the cases of check.py that are named (none: of suite pr1) on the second of the two, compared with native runs
#
# Writes what it saw to $OUT as it comes.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) root=$(cd "$here/../.." && pwd)
out=${OUT:-$(mktemp -d)} work=$(mktemp -d) failed=0
run=$here/run.sh
export SCUDA_TRIAL=several

verdict() { # NAME RC
  if [ "$2" = 0 ]; then echo "$1: right"; else echo "$1: FAILS ($2)"; failed=1; fi
}

link=(-I "$root/shim/include" -L "$root/build/lib" -l:libcuda.so.1 -Wl,--allow-shlib-undefined)
gcc -O1 -o "$work/windows" "$here/windows.c" "${link[@]}" &&
  gcc -O1 -o "$work/several" "$root/e2e/programs/several.c" "${link[@]}" || exit 1

for n in 0 1 2 3; do
  timeout 60 "$run" native "$work/windows" $n 4 >"$out/windows.$n" 2>&1
  verdict "window $n of 4" $?
  grep -E 'outside|error' "$out/windows.$n"
done

gpus=$(nvidia-smi -L | wc -l)
for i in 0 1; do
  CUDA_VISIBLE_DEVICES=$((i % gpus)) SCUDA_WARM=${WARM:-4} "$run" serve "$work/server$i" &
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

timeout 60 "$run" remote "$work/several" "$root/testdata/kernels" >"$out/several" 2>&1
verdict "several.c" $?
grep -v 'level=' "$out/several"

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

[ $# -gt 0 ] || set -- --suite pr1
REMOTE_DEVICES=1 OUT=$out timeout "${LIMIT:-300}" "$here/check.py" -j 6 "$@" >"$out/check.log" 2>&1
verdict "check.py on the second" $?
grep -vE ' equal | ran ' "$out/check.log" | cut -c1-250 | head -40
exit $failed
