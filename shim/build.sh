#!/bin/sh
# Builds the client libraries into a folder: build.sh FOLDER. CC and GO may be set, SCUDA_VERSION instead of what
# version.sh says; SCUDA_SKIP_CORE=1 leaves what is Go out.
set -eu
test $# = 1 || { echo "usage: build.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shim=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-cc}
SCUDA_VERSION=$("$shim/../version.sh")
export SCUDA_VERSION
. "$shim/compat.sh"

"$shim/build-cuda.sh" "$out/libcuda.so.1"
"$shim/build-nvml.sh" "$out/libnvidia-ml.so.1"
"$shim/build-cupti.sh" "$out"
"$shim/build-nccl.sh" "$out"
"$shim/build-nvtx.sh" "$out/libscuda-nvtx.so"

# libscuda.so is the one name to preload. It bears the driver's SONAME, so that a program that was linked with
# libcuda.so.1 is content with it, and the loader neither misses that library nor takes the machine's; the driver itself
# is found beside it, by path ($ORIGIN in DT_NEEDED, which the linker copies from the SONAME of what it links with). It
# stands before the C library where unified memory needs that.
beside=$(mktemp -d)
trap 'rm -rf "$beside"' EXIT
for name in libcuda.so.1 libnvidia-ml.so.1 libcupti.so.12 libcupti.so.13 libnccl.so.2; do
  "$cc" -shared -nostdlib -x c /dev/null -o "$beside/$name" -Wl,-soname,"\$ORIGIN/$name"
done
"$cc" -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -DSCUDA_INTERPOSE $compat \
  -shared "$shim/front/interpose/interpose.c" -o "$out/libscuda.so" -Wl,-soname,libcuda.so.1 \
  -L"$beside" $hardened -Wl,--no-as-needed -l:libcuda.so.1 -l:libnvidia-ml.so.1 -l:libcupti.so.12 -l:libcupti.so.13 \
  -l:libnccl.so.2 -l:libdl.so.2
# As the driver's own packages have them, for programs that open or are linked with the name without a version.
ln -sf libcuda.so.1 "$out/libcuda.so"
ln -sf libnvidia-ml.so.1 "$out/libnvidia-ml.so"
ln -sf libcupti.so.12 "$out/libcupti.so" # for TRITON_CUPTI_LIB_PATH

if test "${SCUDA_SKIP_CORE:-0}" != 1; then
  cd "$shim/.."
  # A guest takes no signal of its host's, and does not read the control group's files again each second.
  godebug=asyncpreemptoff=1,updatemaxprocs=0
  names="-X runtime.godebugDefault=$godebug -X main.version=$SCUDA_VERSION"
  # Nor does it have descriptors of its own, or goroutines whose stacks are too small for the host's signal handlers.
  "$shim/core/guest/overlay.sh" "$beside" > "$beside/overlay.json"
  wrapped="--wrap=x_cgo_getstackbound,--wrap=_cgo_try_pthread_create"
  "${GO:-go}" build -buildmode=c-shared -tags netgo,osusergo,scuda_guest -overlay "$beside/overlay.json" \
    -ldflags "-s -w $names '-extldflags=-Wl,$wrapped $hardened'" \
    -o "$out/libscuda-core.so" ./shim/core
  rm -f "$out/libscuda-core.h"
  # For programs in which the core must not be. It is a program of its own and needs no library, not even the C
  # library's.
  CGO_ENABLED=0 "${GO:-go}" build -trimpath -ldflags "-s -w -X main.version=$SCUDA_VERSION" \
    -o "$out/scuda-connect" ./cmd/scuda-connect
fi
