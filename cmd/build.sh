#!/bin/sh
# Builds the programs into a folder: build.sh FOLDER [go|c]. go: those in Go alone, which need nothing; c: those in C,
# for which lib/ in the folder has to hold the client's libraries; else all. CC and GO may be set, and SCUDA_VERSION
# instead of what version.sh says.
set -eu
case $#${2:-} in 1 | 2go | 2c) ;; *) echo "usage: build.sh FOLDER [go|c]" >&2; exit 2 ;; esac
mkdir -p "$1"
out=$(cd "$1" && pwd) what=${2:-all}
cd "$(dirname "$0")/.."
shim=$PWD/shim
. "$shim/compat.sh"
program="-Wl,--wrap=__libc_start_main $hardened $old_libraries"

if test "$what" != c; then
  # scuda-client is what the client's package has in the place of scuda: it has no server.
  for build in scuda: scuda-client:,client; do
    "${GO:-go}" build -buildmode=pie -tags "netgo,osusergo${build#*:}" \
      -ldflags "-X scuda.dev/scuda/internal/release.version=$(./version.sh) '-extldflags=$program'" \
      -o "$out/${build%:*}" ./cmd/scuda
  done
fi
test "$what" != go || exit 0
for name in bench load; do
  "${CC:-cc}" -std=gnu11 -O2 -fPIE -pie -Wall -Wextra -Werror $compat -DSCUDA_PROGRAM -I shim/include \
    -o "$out/scuda-$name" "perf/bench/$name.c" -L "$out/lib" -l:libcuda.so.1 -Wl,--allow-shlib-undefined $program
done
"${CC:-cc}" -std=gnu11 -O2 -fPIE -pie -Wall -Wextra -Werror $compat -DSCUDA_PROGRAM -I shim/include \
  -Wa,-Iexamples/gpt -o "$out/scuda-demo" examples/gpt/gpt.c -L "$out/lib" -l:libcuda.so.1 \
  -Wl,--allow-shlib-undefined $program -lm
