#!/bin/sh
# Builds libscuda-nvtx.so, which NVTX opens in programs whose timeline is recorded: build-nvtx.sh OUTPUT. CC may be set.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
. "$shim/compat.sh"
. "$shim/rooms.sh"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for source in "$shim/nvtx/nvtx.c" "$front/base/common.c" "$front/base/events.c"; do
  "$cc" $flags -include "$front/base/compat.h" "-I$front" -c "$source" -o "$objects/$(basename "$source" .c).o"
done
"$cc" -shared -o "$1.new" "$objects"/*.o -Wl,-soname,libscuda-nvtx.so -Wl,-z,defs $hardened -Wl,--gc-sections \
  -Wl,-Bsymbolic $old_libraries
mv "$1.new" "$1"
