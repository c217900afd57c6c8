#!/bin/sh
# Builds the client libraries into a folder: build.sh FOLDER. CC, GO and SCUDA_VERSION may be set; SCUDA_SKIP_CORE=1 leaves the Go core out.
set -eu
test $# = 1 || { echo "usage: build.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shim=$(cd "$(dirname "$0")" && pwd)
front=$shim/front
cc=${CC:-cc}
version=${SCUDA_VERSION:-dev}

# Probes attach to the entries (a patchable NOP in front of them, no endbr64); nothing runs and no thread starts at load.
flags="-std=c11 -O2 -g -fPIC -fvisibility=hidden -fcf-protection=none -fpatchable-function-entry=1 -ffunction-sections -Wall -Wextra -Werror"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
for source in common mode handle thread ring device context range memory copy mapped stream module function launch proc tables integrity \
  gen/calls_gen gen/exports_gen gen/results_gen gen/procaddress_gen gen/tables_gen; do
  echo "$source"
done | xargs -P "$(nproc)" -I{} sh -c "$cc $flags -include '$front/compat.h' -I'$front' -c '$front/{}.c' -o '$objects/'\$(basename {}).o"
# libdl and libpthread are named for systems whose libc does not contain them (glibc before 2.34).
"$cc" -shared -o "$out/libcuda.so.1.new" "$objects"/*.o -Wl,-soname,libcuda.so.1 -Wl,--version-script="$front/gen/libcuda_gen.map" \
  -Wl,-z,defs -Wl,-z,now -Wl,-z,relro -Wl,--gc-sections -Wl,-Bsymbolic -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
mv "$out/libcuda.so.1.new" "$out/libcuda.so.1"
"$shim/build-nvml.sh" "$out/libnvidia-ml.so.1"

# libscuda.so is the one name to preload: it only depends on the other two, next to it.
printf '' | "$cc" -shared -x c - -o "$out/libscuda.so" -Wl,-soname,libscuda.so -Wl,--enable-new-dtags -Wl,-rpath,'$ORIGIN' \
  -L"$out" -Wl,--no-as-needed -l:libcuda.so.1 -l:libnvidia-ml.so.1

if test "${SCUDA_SKIP_CORE:-0}" != 1; then
  cd "$shim/.."
  CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -include $front/compat.h" "${GO:-go}" build -buildmode=c-shared -tags netgo,osusergo \
    -ldflags "-s -w -X runtime.godebugDefault=asyncpreemptoff=1 -X main.version=$version" -o "$out/libscuda-core.so" ./shim/core
  rm -f "$out/libscuda-core.h"
fi
