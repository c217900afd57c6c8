#!/bin/sh
# Builds libcuda.so.1, the CUDA front: build-cuda.sh OUTPUT. CC may be set.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
. "$shim/compat.sh"
. "$shim/rooms.sh"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for name in base uvm calls gen; do
  room $name "$objects/$name"
done
"$cc" -shared -o "$1.new" "$objects"/*/*.o -Wl,-soname,libcuda.so.1 -Wl,--version-script="$front/gen/libcuda_gen.map" \
  -Wl,-z,defs $hardened -Wl,--gc-sections -Wl,-Bsymbolic $old_libraries
mv "$1.new" "$1"
