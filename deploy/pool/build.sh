#!/bin/sh
# Builds scuda-pool into a folder: build.sh FOLDER. GO and GOARCH may be set, and SCUDA_VERSION instead of what
# version.sh says. It has etcd in it, and nothing of the client, so it needs no C.
set -eu
test $# = 1 || { echo "usage: build.sh FOLDER" >&2; exit 2; }
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
CGO_ENABLED=0 "${GO:-go}" build -trimpath -ldflags "-s -w -X main.version=$(../../version.sh)" -o "$out/scuda-pool" \
  ./cmd/scuda-pool
