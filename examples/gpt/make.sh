#!/bin/sh
# Makes gpt.ptx anew, with Debian's clang 14 and without any CUDA toolkit.
set -eu
cd "$(dirname "$0")"
clang-14 -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature \
  -Xclang +ptx63 -O2 -ffp-contract=off -Wall -Wno-unknown-cuda-version -S -o gpt.ptx gpt.cu
