#!/bin/sh
# Builds libnvidia-ml.so.1, the NVML front: build-nvml.sh OUTPUT. CC may be set.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
. "$shim/compat.sh"
. "$shim/rooms.sh"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for name in base nvml nvml/gen; do
  room $name "$objects/$name"
done
ar rc "$objects/base.a" "$objects"/base/*.o # of which the linker takes the files that NVML uses
"$cc" -shared -o "$1.new" "$objects"/nvml/*.o "$objects"/nvml/gen/*.o "$objects/base.a" -Wl,-soname,libnvidia-ml.so.1 \
  -Wl,--version-script="$front/nvml/gen/libnvidia-ml.map" -Wl,-z,defs $hardened -ldl
mv "$1.new" "$1"
