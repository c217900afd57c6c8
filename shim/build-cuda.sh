#!/bin/sh
# Builds libcuda.so.1, the CUDA front: build-cuda.sh OUTPUT. CC may be set.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
front=$shim/front
. "$shim/compat.sh"
cc=${CC:-cc}
# Probes attach to the entries (a patchable NOP in front of them, no endbr64); nothing runs and no thread starts at load.
flags="-std=c11 -O2 -g -fPIC -fvisibility=hidden -fcf-protection=none -fpatchable-function-entry=1 -ffunction-sections -Wall -Wextra -Werror"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for source in common net mode handle thread ring order progress trace device context range memory allocation capture copy box share carrier mapped pager denial residency habit work advice travel named managed figures hints stream jit link module function launch legacy logs graph dot proc tables integrity \
  gen/calls_gen gen/exports_gen gen/results_gen gen/procaddress_gen gen/tables_gen; do
  echo "$source"
done | xargs -P "$(nproc)" -I{} sh -c "$cc $flags -include '$front/compat.h' -include '$front/entry.h' -I'$front' -c '$front/{}.c' -o '$objects/'\$(basename {}).o"
"$cc" -shared -o "$1.new" "$objects"/*.o -Wl,-soname,libcuda.so.1 -Wl,--version-script="$front/gen/libcuda_gen.map" \
  -Wl,-z,defs $hardened -Wl,--gc-sections -Wl,-Bsymbolic $old_libraries
mv "$1.new" "$1"
