#!/usr/bin/env bash
# Unpacks ffmpeg, numba, PyCUDA, hashcat and PyTorch with their libraries from Debian's packages into a folder; nothing
# is installed, and root is not needed. What is there is kept.
#
#   fetch.sh FOLDER [PART…]     PART: small (ffmpeg, numba, PyCUDA), torch; all where none is named
#
# FOLDER/run PROGRAM ARGUMENT… starts a program of them with Debian 13's libraries, behind those of LD_LIBRARY_PATH.
set -euo pipefail

mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- small torch
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d -p "$folder") # not in /tmp, which may lie in memory
trap 'rm -rf "$work"' EXIT
. "$here/debian.sh"

# What apt would install beside, and the programs do without: compilers, headers, the driver and its installers, and
# libraries for other vendors' GPUs.
without='^(nvidia-(cuda-dev|cudnn|alternative|support|installer-cleanup|legacy-check|profiler|opencl-dev)'
without+='|libcuda1|libnvidia-.*|glx-.*|update-glx|libcupti-dev|libtorch-cuda-test|perl.*|libperl.*|dpkg.*|libdpkg.*'
without+='|(gcc|g\+\+|cpp)-[0-9].*-linux-gnu|binutils.*|linux-libc-dev|libc6-dev|libstdc\+\+-.*-dev|libgcc-.*-dev'
without+='|llvm-.*|libthrust-dev|libcub-dev|libcu\+\+-dev|pci.ids|adduser|passwd|login.*|tzdata|libnpp.*'
without+='|libcusolvermg11|libnvjpeg12|libaccinj.*|libcuinj.*)$'

unpack() { # PACKAGE…: with all that they need
  local names file at="$work/packages"
  debian_apt trixie "main contrib non-free"
  mkdir -p "$at" "$folder/root"
  "${apt[@]}" install --no-install-recommends --print-uris -y "$@" | awk '{print $2}' | cut -d _ -f 1 |
    grep -vE "$without" | sort >"$work/list"
  [ ! -e "$folder/there" ] || sort -o "$folder/there" "$folder/there"
  comm -23 "$work/list" <(cat "$folder/there" 2>/dev/null) >"$work/names"
  echo "  $(wc -l <"$work/names") packages …"
  split -l 40 "$work/names" "$work/batch." # one at a time is slow, and all at once needs the space twice
  for names in "$work"/batch.*; do
    [ -e "$names" ] || continue
    xargs -a "$names" sh -c 'cd "$0" && exec "$@"' "$at" "${apt[@]}" download
    for file in "$at"/*.deb; do dpkg -x "$file" "$folder/root"; done
    rm "$at"/*.deb
    cat "$names" >>"$folder/there"
  done
  rm -f "$work"/batch.*
  rm -rf "$folder/root/usr/share"/{doc,man,locale,info}
}

# A program gets Debian 13's loader and libraries. Python takes its own name for that of a program to start, so the
# name that it is told is that of a script which does the same.
runner() {
  cat >"$folder/run" <<'RUN'
#!/bin/sh
folder=$(cd "$(dirname "$0")" && pwd)
at=$folder/root/usr
lib=$at/lib/x86_64-linux-gnu
program=$1
shift
PYTHONHOME=$at PYTHONPATH=$at/lib/python3/dist-packages${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 \
  CUDA_HOME=$at/lib/cuda exec "$at/lib64/ld-linux-x86-64.so.2" --argv0 "$folder/$program" \
  --library-path "${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib:$lib/blas:$lib/lapack:$lib/pulseaudio:$at/lib" \
  "$at/bin/$program" "$@"
RUN
  printf '#!/bin/sh\nexec "$(dirname "$0")/run" python3.13 "$@"\n' >"$folder/python3.13"
  chmod +x "$folder/run" "$folder/python3.13"
}

small() {
  unpack ffmpeg python3-numba python3-pycuda libnvvm4 libnvrtc12 nvidia-cuda-toolkit
  # Names without a version, as packages for developers have them, and Debian's links to /usr within the folder.
  local lib="$folder/root/usr/lib"
  ln -sf libnvvm.so.4 "$lib/x86_64-linux-gnu/libnvvm.so"
  ln -sf libnvrtc.so.12 "$lib/x86_64-linux-gnu/libnvrtc.so"
  ln -sf libcudart.so.12 "$lib/x86_64-linux-gnu/libcudart.so"
  ln -sfn ../../nvidia-cuda-toolkit/libdevice "$lib/cuda/nvvm/libdevice"
}
# cuDNN is in no package of Debian's, and PyTorch's libraries do not load without it. A library of its name says of all
# that it is not supported; programs switch it off (torch.backends.cudnn.enabled), and PyTorch uses its own kernels.
torch() {
  unpack python3-torch-cuda
  local lib="$folder/root/usr/lib/x86_64-linux-gnu"
  {
    echo 'size_t cudnnGetVersion(void) { return 90000; }'
    echo 'const char *cudnnGetErrorString(int status) { return "there is no cuDNN here"; }'
    nm -D --undefined-only "$lib"/libtorch_{cuda,python}.so.2.6 |
      grep -oE ' cudnn[A-Z][A-Za-z_0-9]+' | sort -u |
      grep -vE 'cudnnGet(Version|ErrorString)$' | sed 's/.*/int&(void) { return 3000; }/'
  } | ${CC:-cc} -shared -fPIC -include stddef.h -Wl,-soname,libcudnn.so.9,--default-symver \
    -o "$lib/libcudnn.so.9" -x c -
  ln -sf libtorch_cuda_linalg.so.2.6 "$lib/libtorch_cuda_linalg.so"
}

runner
for part; do
  [ -e "$folder/$part" ] && continue
  echo "fetch $part into $folder …"
  SECONDS=0
  "$part"
  touch "$folder/$part"
  echo "  $SECONDS s; the folder has $(du -sh "$folder" | cut -f 1)"
done
