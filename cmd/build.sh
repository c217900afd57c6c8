#!/bin/sh
# Builds the programs into a folder in which lib/ holds the client's libraries: build.sh FOLDER. CC and GO may be set,
# and SCUDA_VERSION instead of what version.sh says.
set -eu
test $# = 1 || { echo "usage: build.sh FOLDER" >&2; exit 2; }
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
shim=$PWD/shim
. "$shim/compat.sh"
program="-Wl,--wrap=__libc_start_main $hardened $old_libraries"

# scuda-client is what the client's package has in the place of scuda: it has no server.
for build in scuda: scuda-client:,client; do
  "${GO:-go}" build -buildmode=pie -tags "netgo,osusergo${build#*:}" \
    -ldflags "-X scuda.dev/scuda/internal/release.version=$(./version.sh) '-extldflags=$program'" \
    -o "$out/${build%:*}" ./cmd/scuda
done
for name in bench load; do
  "${CC:-cc}" -std=gnu11 -O2 -fPIE -pie -Wall -Wextra -Werror $compat -DSCUDA_PROGRAM -I shim/include \
    -o "$out/scuda-$name" "perf/bench/$name.c" -L "$out/lib" -l:libcuda.so.1 -Wl,--allow-shlib-undefined $program
done
"${CC:-cc}" -std=gnu11 -O2 -fPIE -pie -Wall -Wextra -Werror $compat -DSCUDA_PROGRAM -I shim/include \
  -Wa,-Iexamples/gpt -o "$out/scuda-demo" examples/gpt/gpt.c -L "$out/lib" -l:libcuda.so.1 \
  -Wl,--allow-shlib-undefined $program -lm
