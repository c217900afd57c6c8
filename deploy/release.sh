#!/usr/bin/env bash
# Makes a release in a folder (build/release if none is named): what dist.sh makes, for x86-64 and for aarch64, a list
# of what is inside for each (CycloneDX), the install script, and SHA256SUMS of all of it. With SCUDA_RELEASE_KEY, a
# file with a private key of OpenSSH (or a public one whose private one an agent has), these are signed: SHA256SUMS.sig.
#
#   release.sh [FOLDER]      build has what make build made; build/arm64 is built here
#   release.sh sign FOLDER   only the checksums and their signature, of what lies there
set -euo pipefail
sums() { # FOLDER
  rm -f "$1"/SHA256SUMS "$1"/SHA256SUMS.sig
  (cd "$1" && sha256sum -- * >SHA256SUMS)
  [ -z "${SCUDA_RELEASE_KEY:-}" ] || ssh-keygen -q -Y sign -f "$SCUDA_RELEASE_KEY" -n scuda-release "$1/SHA256SUMS"
}
if [ "${1:-}" = sign ]; then
  sums "$2"
  exit
fi
cd "$(dirname "$0")/.."
out=${1:-build/release}
SCUDA_VERSION=$(./version.sh)
export SCUDA_VERSION
rm -rf "$out"
mkdir -p "$out" build/arm64/lib

step() { # WHAT COMMAND…
  local began=$SECONDS
  echo "== $1 …"
  "${@:2}"
  echo "   $((SECONDS - began)) s"
}
arm64() { GOARCH=arm64 CC=aarch64-linux-gnu-gcc "$@"; }
step "the client libraries for aarch64" arm64 ./shim/build.sh build/arm64/lib
step "the programs for aarch64" arm64 ./cmd/build.sh build/arm64
step "the pool's program" ./deploy/pool/build.sh build
step "the pool's program for aarch64" arm64 ./deploy/pool/build.sh build/arm64
step "packages for x86-64" ./deploy/dist.sh "$out"
step "packages for aarch64" ./deploy/dist.sh "$out" build/arm64
for build in x86_64:build aarch64:build/arm64; do
  folder=${build#*:}
  "${GO:-go}" run ./deploy/sbom "$SCUDA_VERSION" "$folder"/scuda{,-client,-bench,-load,-pool} \
    "$folder"/lib/scuda-connect "$folder"/lib/*.so{,.1} >"$out/scuda-$SCUDA_VERSION-linux-${build%%:*}.cdx.json"
done
install -m 755 deploy/install.sh "$out/install.sh"
sums "$out"
ls -l "$out"
