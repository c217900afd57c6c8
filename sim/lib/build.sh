#!/bin/sh
# Builds the stand-alone simulation into a folder: build.sh FOLDER. GO and CC may be set.
set -eu
test $# = 1 || { echo "usage: build.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
GOARCH='' CGO_ENABLED=0 "${GO:-go}" run -trimpath ./api/gen -build
gen=$PWD/shim/front/gen
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
echo '{ global: sim_call; sim_ready; local: *; };' >"$temporary/sim.map"
# Only these symbols are visible, so that the libraries' Go parts do not meet.
for lib in "cuda libscuda-sim.so $temporary/sim.map" \
  "nvml libnvidia-ml.so.1 $PWD/shim/front/nvml/gen/libnvidia-ml.map"; do
  set -- $lib
  linked="-Wl,-soname,$2 -Wl,--version-script=$3 -Wl,-Bsymbolic"
  CGO_ENABLED=1 "${GO:-go}" build -buildmode=c-shared \
    -ldflags "-s -w -X runtime.godebugDefault=asyncpreemptoff=1 -extldflags '$linked'" \
    -o "$out/$2" "./sim/lib/$1"
done
"${CC:-cc}" -shared -std=c11 -O1 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -D_GNU_SOURCE \
  -I shim/front -o "$temporary/libcuda.so.1" sim/lib/front/*.c -Wl,-soname,libcuda.so.1 \
  -Wl,--version-script="$gen/libcuda_gen.map" -Wl,-Bsymbolic -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
mv "$temporary/libcuda.so.1" "$out/libcuda.so.1"
"${CC:-cc}" -shared -std=c11 -O1 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -I shim/nccl/gen \
  -o "$temporary/libnccl.so.2" sim/nccl/*.c -Wl,-soname,libnccl.so.2 -Wl,-z,defs -Wl,--no-as-needed -l:libdl.so.2 \
  -l:libpthread.so.0 -lm
mv "$temporary/libnccl.so.2" "$out/libnccl.so.2"
rm -f "$out"/lib*.h "$out"/*.so.h
