#!/usr/bin/env bash
# Puts libcudart.so.11.0, libcudart.so.12 and their static forms (libcudart_static.11.0.a, libcudart_static.12.a) into a
# folder, and the headers of NVTX (nvtx3), out of Debian's packages (section non-free); nothing is installed.
#
#   runtimes.sh FOLDER
set -euo pipefail

mkdir -p "$1"
folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/debian.sh"
shared() { # RELEASE PACKAGE LIBRARY
  [ -e "$folder/$3" ] && return
  debian_apt "$1" non-free
  (cd "$work/$1" && "${apt[@]}" download "$2" && dpkg -x "$2"_*.deb .)
  cp -L "$work/$1/usr/lib/x86_64-linux-gnu/$3" "$folder/$3.part"
  mv "$folder/$3.part" "$folder/$3"
}
static() { # RELEASE NAME FILE: of a package of nearly 1 GB, so only the parts of it that are needed
  [ -e "$folder/$3" ] && return
  debian_apt "$1" non-free
  local url
  url=$("${apt[@]}" download --print-uris nvidia-cuda-dev | cut -d "'" -f 2)
  python3 "$here/runtimes.py" "$url" "$2" "$folder/$3.part"
  mv "$folder/$3.part" "$folder/$3"
}
release() { # RELEASE PACKAGE VERSION
  shared "$1" "$2" "libcudart.so.$3"
  static "$1" libcudart_static.a "libcudart_static.$3.a"
}
release bookworm libcudart11.0 11.0 &
release trixie libcudart12 12
static trixie include/nvtx3/ nvtx3
wait $!
