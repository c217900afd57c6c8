#!/bin/sh
# Prints the version of this source tree: SCUDA_VERSION where it is set, else what the file VERSION says. Where git
# knows the commit, and it is not the one with the release's tag (v0.3.0), its name follows as build metadata:
# 0.3.0-dev+g1a2b3c4d5, with .dirty for files that are not committed.
set -eu
if test -n "${SCUDA_VERSION:-}"; then
  echo "$SCUDA_VERSION"
  exit
fi
cd "$(dirname "$0")"
version=$(cat VERSION)
commit=
if test -e .git; then # not some other tree's around an unpacked archive
  commit=$(git describe --always --abbrev=9 --dirty=.dirty --exclude '*' 2>/dev/null) || commit=
  test "$(git describe --tags --exact-match --match "v$version" --dirty 2>/dev/null || true)" != "v$version" || commit=
fi
echo "$version${commit:++g$commit}"
