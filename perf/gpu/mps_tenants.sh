#!/usr/bin/env bash
# Tries `scuda serve --mps on` with two tenants on this machine's driver: that quotas hold there, and that a kernel of
# one tenant that writes where nothing is, or a program that is killed in mid-work, ends nothing of the other's; that
# killed programs' peers go on; and that a tenant's next program works after a fault.
#
#   mps_tenants.sh
#
# It serves on the loopback interface by itself, needs root, gcc, python3 and nvidia-cuda-mps-control, takes about a
# minute, and fails where anything differs. BUILD names another folder than build.
set -euo pipefail

# shellcheck source=perf/gpu/serving.sh
. "$(dirname "${BASH_SOURCE[0]}")/serving.sh"
serve --mps on
fail() { echo "mps_tenants.sh: $*" >&2; tail -20 "$work/log" >&2; exit 1; }
gcc -std=gnu11 -w -o "$work/fault" "$top/e2e/programs/fault.c" -I "$top/shim/include" -L "$build/lib" \
  -l:libcuda.so.1 -Wl,--allow-shlib-undefined

lease() { # NAME TENANT OPTION …
  "$scuda" lease create --tenant "$2" --for 10m -o "$work/$1.token" "${@:3}" 2>/dev/null
}
as() { # NAME COMMAND…: under that lease
  SCUDA_TOKEN_FILE=$work/$1.token "$scuda" run -- "${@:2}"
}
load() { # NAME SECONDS: launches and waits in a loop; its status and times to NAME.times
  local rc=0
  { sleep 3; echo "$2"; } | as "$1" "$build/scuda-load" launch 0 0 >"$work/$1.times" 2>"$work/$1.err" || rc=$?
  echo "$rc" >"$work/$1.rc"
}
done_by() { cat "$work/$1.rc"; }
rounds() { grep -vc ready "$work/$1.times" || true; }

lease quota one --memory 2GiB
cat >"$work/allocate.py" <<'END'
"""Prints the GPU's size in MiB, and how many chunks of 128 MiB can be had, by each of three kinds of allocation."""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
ctx, stream, total, p = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint64()
def ok(r):
    assert r == 0, r
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), 0))
ok(cuda.cuCtxSetCurrent(ctx))
ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
SIZE = ctypes.c_size_t(128 << 20)
def many(allocate, free):
    got, r = [], 0
    while not r and len(got) < 64:
        r = allocate()
        if not r:
            got.append(p.value)
    assert r == 2, r
    for at in got:
        ok(free(ctypes.c_uint64(at)))
    return len(got)
plain = many(lambda: cuda.cuMemAlloc_v2(ctypes.byref(p), SIZE), cuda.cuMemFree_v2)
pool = many(lambda: cuda.cuMemAllocAsync(ctypes.byref(p), SIZE, stream),
            lambda at: cuda.cuMemFreeAsync(at, stream) or cuda.cuStreamSynchronize(stream))
print(total.value >> 20, plain, pool)
END
got=$(as quota python3 "$work/allocate.py") || fail "allocations within a quota: $got"
read -r size plain pool <<<"$got"
[ "$size" = 2048 ] || fail "a quota of 2 GiB is seen as $size MiB"
for n in "$plain" "$pool"; do
  [ "$n" -ge 12 ] && [ "$n" -le 16 ] || fail "of a quota of 2 GiB, $n times 128 MiB can be had"
done
echo "a quota of 2 GiB: seen as such; $plain times 128 MiB by cuMemAlloc, $pool times by a pool, then OUT_OF_MEMORY"

lease a one
lease peer one
lease b two
load b 8 &
b=$!
load peer 8 &
peer=$!
sleep 5
as a "$work/fault" "$top/testdata/kernels" >"$work/said" 2>&1 || true
said=$(head -1 "$work/said")
wait "$b" "$peer"
[ "$said" = "cuStreamSynchronize(s) = 700" ] || fail "a kernel that faults says: $said"
[ "$(done_by b)" = 0 ] || fail "the other tenant's program ended with $(done_by b): $(cat "$work/b.err")"
[ "$(done_by peer)" != 0 ] || fail "the faulting program's peer ended with 0"
echo "a kernel faulted: its peer of the same tenant ended ($(tail -1 "$work/peer.err" | cut -c1-100))," \
  "the other tenant's program made $(rounds b) launches"
load a 1
[ "$(done_by a)" = 0 ] || fail "the tenant's next program ended with $(done_by a): $(cat "$work/a.err")"
echo "the tenant's next program made $(rounds a) launches"

load b 8 &
b=$!
load peer 8 &
peer=$!
sleep 5
# shellcheck disable=SC2016 # the inner shell's own process id
{ sleep 2; echo 60; } | as a bash -c 'echo $$ >"$1"; exec "$2" launch 0 0' - "$work/pid" "$build/scuda-load" \
  >/dev/null 2>&1 &
killed=$!
sleep 3
kill -9 "$(cat "$work/pid")"
wait "$b" "$peer"
wait "$killed" || true
[ "$(done_by b)$(done_by peer)" = 00 ] || fail "a client was killed; others ended with $(done_by b) and $(done_by peer)"
echo "a client was killed: its peer made $(rounds peer) launches, the other tenant's program $(rounds b)"
