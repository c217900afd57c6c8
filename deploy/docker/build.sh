#!/bin/sh
# Builds what the images have, in a folder that becomes their /usr: build.sh FOLDER. Images call it on the files that
# .dockerignore lets through.
set -eu
out=$1
cd "$(dirname "$0")/../.."
mkdir -p build/lib
./shim/build.sh build/lib
./cmd/build.sh build
install -D -s -t "$out/bin" build/scuda
install -D -t "$out/lib/scuda" build/lib/scuda-connect build/scuda-bench build/scuda-load build/scuda-demo
cp -P build/lib/*.so* "$out/lib/scuda/"
find "$out/lib/scuda" -name '*.so*' -type f -exec strip --strip-unneeded {} +
install -D -m 644 LICENSE "$out/share/doc/scuda/copyright"
