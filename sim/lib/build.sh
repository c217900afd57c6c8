#!/bin/sh
# Builds the stand-alone simulation into a folder: build.sh FOLDER. GO may be set.
set -eu
test $# = 1 || { echo "usage: build.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
for lib in cuda:libcuda.so.1:libcuda_gen.map nvml:libnvidia-ml.so.1:libnvidia-ml.map; do
  package=${lib%%:*} rest=${lib#*:}
  soname=${rest%%:*} map=$PWD/shim/front/gen/${rest#*:}
  # Only the driver's own symbols are visible, so that the two libraries' Go parts do not meet.
  CGO_ENABLED=1 "${GO:-go}" build -buildmode=c-shared -ldflags \
    "-s -w -X runtime.godebugDefault=asyncpreemptoff=1 -extldflags '-Wl,-soname,$soname -Wl,--version-script=$map -Wl,-Bsymbolic'" \
    -o "$out/$soname" "./sim/lib/$package"
done
rm -f "$out"/lib*.h "$out"/*.so.h
