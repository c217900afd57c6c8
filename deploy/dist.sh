#!/usr/bin/env bash
# Makes build/dist/scuda-VERSION-linux-ARCH.tar.gz from what make build made: bin/, lib/scuda/, the files of deploy/ and the documents.
set -euo pipefail
cd "$(dirname "$0")/.."
name=scuda-${SCUDA_VERSION:-unknown}-linux-$(uname -m)
top=build/dist/$name
rm -rf build/dist
mkdir -p "$top/bin" "$top/lib/scuda" "$top/deploy"
cp build/scuda build/scuda-bench build/scuda-load "$top/bin/"
cp build/lib/*.so* "$top/lib/scuda/"
cp -r deploy/grafana/scuda.json deploy/prometheus deploy/systemd "$top/deploy/"
cp -r LICENSE README.md docs "$top/"
tar -C build/dist --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}" -c "$name" | gzip -n >"build/dist/$name.tar.gz"
echo "build/dist/$name.tar.gz"
