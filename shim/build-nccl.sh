#!/bin/sh
# Builds libnccl.so.2 into a folder: build-nccl.sh FOLDER. CC may be set.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
. "$shim/compat.sh"
. "$shim/rooms.sh"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
stand_in nccl "$objects"
"$cc" -shared -o "$1/libnccl.so.2.new" "$objects"/*.o -Wl,-soname,libnccl.so.2 \
  -Wl,--version-script="$shim/nccl/gen/libnccl.map" -Wl,-z,defs $hardened -Wl,--gc-sections -Wl,-Bsymbolic \
  $old_libraries
mv "$1/libnccl.so.2.new" "$1/libnccl.so.2"
