#!/usr/bin/env bash
# Tries leases on this machine's driver: that a lease's programs see its GPUs alone, by CUDA, NVML and nvidia-smi, with
# its quota as their size; that no more of them run than it allows; and that revoking ends them with the reason.
#
#   leases.sh
#
# It serves on the loopback interface by itself, needs python3, takes about 10 s a GPU, and fails where anything
# differs. GPU=sim:3 takes simulated GPUs, BUILD another folder than build.
set -euo pipefail

# shellcheck source=perf/gpu/serving.sh
. "$(dirname "${BASH_SOURCE[0]}")/serving.sh"
serve

cat >"$work/see.py" <<'END'
"""Prints what a program sees: GPUs by CUDA and by NVML, and the size of the first. With an argument it stays."""
import ctypes, sys
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
def ok(r, what):
    if r:
        sys.exit(f"{what}: {r}")
n, total, free, has = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
ctx, uuid = ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
ok(cuda.cuInit(0), "cuInit")
ok(cuda.cuDeviceGetCount(ctypes.byref(n)), "cuDeviceGetCount")
ids = []
for i in range(n.value):
    ok(cuda.cuDeviceGetUuid(uuid, i), "cuDeviceGetUuid")
    h = bytes(uuid).hex()
    ids.append(f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")
ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0), "cuDeviceTotalMem")
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), 0), "cuDevicePrimaryCtxRetain")
ok(cuda.cuCtxSetCurrent(ctx), "cuCtxSetCurrent")
ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(has)), "cuMemGetInfo")
count, dev, text = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
ok(nvml.nvmlInit_v2(), "nvmlInit")
ok(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
seen = []
for i in range(count.value):
    ok(nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(dev)), "nvmlDeviceGetHandleByIndex")
    ok(nvml.nvmlDeviceGetUUID(dev, text, 96), "nvmlDeviceGetUUID")
    seen.append(text.value.decode())
print(",".join(ids), ",".join(sorted(seen)), total.value >> 20, has.value >> 20, flush=True)
while len(sys.argv) > 1:
    r = cuda.cuCtxSynchronize()
    if r:
        print("ended", r, flush=True)
        break
END
see() { "$scuda" run -- python3 "$work/see.py" "$@"; }
fail() { echo "leases.sh: $*" >&2; tail -5 "$work/log" >&2; exit 1; }

read -r all _ <<<"$(see)"
echo "all GPUs: $all"
for uuid in ${all//,/ }; do
  "$scuda" lease create --gpus "$uuid" --memory 2GiB --sessions 1 --for 10m -o "$work/$uuid" 2>/dev/null
  got=$(SCUDA_TOKEN_FILE=$work/$uuid see)
  [ "$got" = "$uuid $uuid 2048 2048" ] || fail "under a lease of $uuid a program sees: $got"
  if command -v nvidia-smi >/dev/null; then
    got=$(SCUDA_TOKEN_FILE=$work/$uuid "$scuda" run -- nvidia-smi -L)
    case $got in *"$uuid"*) ;; *) fail "nvidia-smi -L shows: $got" ;; esac
    [ "$(wc -l <<<"$got")" = 1 ] || fail "nvidia-smi -L shows: $got"
  fi
  echo "$uuid: seen alone, with 2 GiB"
done

uuid=${all%%,*}
SCUDA_TOKEN_FILE=$work/$uuid see stay >"$work/held" 2>"$work/said" &
held=$!
until [ -s "$work/held" ]; do kill -0 "$held" || fail "$(cat "$work/said")"; sleep 0.1; done
if SCUDA_QUEUE=0 SCUDA_TOKEN_FILE=$work/$uuid see >/dev/null 2>"$work/second"; then fail "a second program runs"; fi
grep -q 'which is what its --sessions allows' "$work/second" || fail "a second program is told: $(cat "$work/second")"
"$scuda" lease revoke --tenant anyone --reason "the trial is over" >/dev/null
wait "$held" || true
grep -q 'was revoked at .*: the trial is over' "$work/said" || fail "the program is told: $(cat "$work/said")"
grep -q '^ended 46$' "$work/held" || fail "the program's calls: $(cat "$work/held")"
echo "one program at a time; revoked, it was told why and its calls answered 46"
