#!/usr/bin/env bash
# Puts programs of Debian's packages into a folder, each with the libraries that it needs; nothing is installed. What is
# there is kept.
#
#   packaged.sh FOLDER     FOLDER/numba (numba 0.61, a Python and a C library of Debian 13: run FOLDER/numba/python),
#                          FOLDER/hashcat (hashcat 6.2.6 and NVRTC 11.8), FOLDER/prometheus (prometheus, promtool;
#                          installed, it would be started as a service)
set -euo pipefail

mkdir -p "$1"
folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/debian.sh"
lib=usr/lib/x86_64-linux-gnu

unpack() { # NAME RELEASE COMPONENTS PACKAGE…: into $work/NAME
  local at=$work/$1
  mkdir -p "$at/packages"
  debian_apt "$2" "$3"
  (cd "$at/packages" && "${apt[@]}" download "${@:4}")
  for package in "$at"/packages/*.deb; do dpkg -x "$package" "$at"; done
  rm -r "$at/packages" "$at/usr/share/doc" "$at/usr/share/man"
}

numba() {
  unpack numba trixie main libc6 libgcc-s1 libstdc++6 libffi8 libpython3.13-minimal python3.13-minimal \
    libpython3.13-stdlib python3-numpy libblas3 liblapack3 libgfortran5 libllvm19 libz3-4 libedit2 libbsd0 libmd0 \
    libtinfo6 libxml2 liblzma5 zlib1g libzstd1 libexpat1 libbz2-1.0 python3-llvmlite python3-numba
  cat >"$work/numba/python" <<'END'
#!/bin/sh
at=$(cd "$(dirname "$0")" && pwd)/usr
lib=$at/lib/x86_64-linux-gnu
PYTHONHOME=$at PYTHONPATH=$at/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 \
  exec "$at/lib64/ld-linux-x86-64.so.2" \
  --library-path "$lib:$lib/blas:$lib/lapack${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$at/bin/python3.13" "$@"
END
  chmod +x "$work/numba/python"
}

hashcat() {
  unpack hashcat bookworm "main non-free" hashcat hashcat-data libnvrtc11.2 libnvrtc-builtins11.8 libminizip1 libxxhash0
  local at=$work/hashcat
  ln -s libnvrtc.so.11.2 "$at/$lib/libnvrtc.so"
  rm "$at/usr/share/hashcat/modules" # a link to the folder below usr/lib
  mv "$at/usr/bin/hashcat" "$at/usr/share/hashcat"/* "$at"
  mkdir "$at/modules"
  mv "$at/usr/lib/hashcat/modules/module_00000.so" "$at/modules" # MD5; there are 500 more
  rm -r "$at/usr/lib/hashcat"
}

prometheus() {
  unpack prometheus bookworm main prometheus
  mv "$work/prometheus/usr/bin"/* "$work/prometheus"
  rm -r "$work/prometheus"/{usr,etc,lib,var}
}

for name in numba hashcat prometheus; do
  [ -e "$folder/$name" ] && continue
  "$name"
  mv "$work/$name" "$folder/$name"
done
