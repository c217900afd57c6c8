#!/bin/sh
# Makes the .ptx files anew, with Debian's clang 14 and without any CUDA toolkit.
set -eu
cd "$(dirname "$0")"
for f in reduction scan matmul histogram sort nbody life; do
	clang-14 -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch=sm_70 -Xclang -target-feature \
	  -Xclang +ptx63 \
		-O2 -ffp-contract=off -Wno-unknown-cuda-version -S -o $f.ptx $f.cu
done
