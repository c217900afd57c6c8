#!/usr/bin/env bash
# Records what this machine's driver answers to the calls of testdata/answers/{cuda,nvml}.calls, for the test of e2e/answers_test.go.
# Every call is made in a process that may crash; nothing is called that would change the machine for others.
#
#   answers.sh FOLDER     writes FOLDER/cuda.tsv and FOLDER/nvml.tsv; copy them to testdata/answers
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
libcuda=$(for f in /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64; do [ -e "$f/libcuda.so.1" ] && echo "$f" && break; done)
gcc -std=gnu11 -O1 -w -o "$work/answers" "$root/e2e/programs/answers.c" -I "$root/shim/include" -L "$libcuda" -l:libcuda.so.1 -lpthread -ldl
what=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
for library in cuda nvml; do
  "$work/answers" "$root/testdata/answers/$library.calls" -j "${JOBS:-10}" >"$work/$library" 2>"$work/log"
  {
    echo "# What the driver answers: $what. Recorded by perf/gpu/answers.sh."
    cat "$work/$library"
  } >"$1/$library.tsv"
done
