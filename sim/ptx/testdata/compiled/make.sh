#!/bin/sh
# Makes functions-O2.ptx, functions-O0.ptx and functions.want anew (clang 14 with the NVPTX target, gcc).
set -eu
cd "$(dirname "$0")"
for o in O0 O2; do
	clang-14 -x cl -cl-std=CL2.0 -Xclang -finclude-default-header --target=nvptx64-nvidia-cuda -march=sm_70 \
	  -ffp-contract=off \
		-fwrapv -S -$o -o functions-$o.ptx kernels.cl
done
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
gcc -O1 -fwrapv -ffp-contract=off -o "$tmp/host" host.c
"$tmp/host" >functions.want
