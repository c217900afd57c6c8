#!/usr/bin/env bash
# Records what this machine's driver answers to the calls of testdata/answers/{cuda,nvml}.calls, for the test of
# e2e/answers_test.go. Every call is made in a process that may crash; nothing is called that would change the machine
# for others.
#
#   answers.sh FOLDER [answers|written]     writes FOLDER/{cuda,nvml}.tsv, what the driver answers, and
#                                           FOLDER/{cuda,nvml}.written, which bytes of its buffers it writes; or only
#                                           one of the two. Copy them to testdata/answers.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
libcuda=$(for f in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64; do
  [ -e "$f/libcuda.so.1" ] && echo "$f" && break
done)
build() {
  gcc -std=gnu11 -O1 -w -o "$work/$1" "$root/e2e/programs/$1.c" -I "$root/shim/include" \
    -L "$libcuda" -l:libcuda.so.1 -lpthread -ldl -lm
}
build answers
build hold
what=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
record() { # LIBRARY KIND WORD [OPTION]
  "$work/answers" "$root/testdata/answers/$1.calls" ${4:+"$4"} -j "${JOBS:-10}" >"$work/out" 2>"$work/log"
  {
    echo "# What the driver $3: $what. Recorded by perf/gpu/answers.sh."
    cat "$work/out"
  } >"$FOLDER/$1.$2"
}
FOLDER=$1
for library in cuda nvml; do
  [ "${2:-answers}" != answers ] || record "$library" tsv answers
done
[ "${2:-written}" = written ] || exit 0
record cuda written writes -w
coproc "$work/hold" "$root/testdata/kernels" 64 # a process for NVML's lists
until read -r line <&"${COPROC[0]}" && [ "$line" = ready ]; do :; done
record nvml written writes -w
