#!/usr/bin/env bash
# Runs a command on a GPU machine either on its own driver (native) or through scuda by TCP over loopback (remote).
# The remote client gets a mount namespace in which the driver's libraries and devices are not there, so that it cannot
# fall through to them.
#
#   run.sh facts              what this machine is
#   run.sh native CMD...      run CMD on the driver
#   run.sh remote CMD...      run CMD through scuda; uses the server at $SCUDA_SERVER, else starts one for this command
#   run.sh serve DIR          start a server and stay; DIR/address holds its address, DIR/log its log
#   run.sh masked CMD...      run CMD, its environment unchanged, where the driver is hidden
#
# BUILD names the folder with scuda and lib/ (default: build/ beside this repository's root).
# SERVE_OPTIONS are options of the servers that it starts.
# REMOTE_DEVICES names the GPUs that a remote run sees (CUDA_VISIBLE_DEVICES), where it is not to be all.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${BUILD:-$(cd "$here/../.." && pwd)/build}

die() { echo "run.sh: $*" >&2; exit 1; }

# Folders where the driver's libraries lie, one a line.
driver_folders() {
  {
    ldconfig -p 2>/dev/null | awk '/lib(cuda|nvidia-ml)\.so/ {print $NF}'
    find -L /usr/local/nvidia /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/cuda*/compat \
      -maxdepth 2 \( -name 'libcuda.so*' -o -name 'libnvidia-ml.so*' \) 2>/dev/null
  } | while read -r f; do dirname "$(readlink -f "$f")"; dirname "$f"; done | grep -v /stubs | sort -u
}

facts() {
  echo "kernel   $(uname -sr)"
  echo "glibc    $(getconf GNU_LIBC_VERSION)"
  echo "cpu      $(nproc) × $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo)"
  echo "driver   $(driver_folders | tr '\n' ' ')"
  echo "devices  $(find /dev -maxdepth 1 -name 'nvidia*' | sort | tr '\n' ' ')"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sed 's/^/gpu      /' ||
    true
}

# Called inside the new mount namespace.
mask() {
  local empty none folder f
  empty=$(mktemp -d) none=$(mktemp)
  while read -r folder; do
    case $folder in
      /usr/lib | /usr/lib/* | /usr/lib64* | /lib | /lib/* | /lib64*)
        for f in "$folder"/libcuda.so* "$folder"/libnvidia-*.so* "$folder"/libcudadebugger.so*; do
          if [ -f "$f" ]; then mount --bind "$none" "$(readlink -f "$f")"; fi
        done ;;
      *) mount --bind "$empty" "$folder" ;;
    esac
  done < <(driver_folders)
  for f in /dev/nvidia*; do
    if [ -d "$f" ]; then mount --bind "$empty" "$f"; elif [ -e "$f" ]; then mount --bind /dev/null "$f"; fi
  done
  if [ -d /proc/driver/nvidia ]; then mount --bind "$empty" /proc/driver/nvidia; fi
  # The loader's cache still lists the driver; make one for the machine as it looks from in here.
  local cache
  cache=$(mktemp)
  ldconfig -X -C "$cache" 2>/dev/null || true
  if [ -s "$cache" ]; then mount --bind "$cache" /etc/ld.so.cache; fi
}

serve() { # DIR
  local dir=$1
  mkdir -p "$dir"
  [ -x "$build/scuda" ] || die "no $build/scuda: run make build first"
  # shellcheck disable=SC2086 # words
  "$build/scuda" -l 127.0.0.1:0 --gpu real --warm "${SCUDA_WARM:-1}" --cache-dir "$dir/cache" ${SERVE_OPTIONS:-} \
    --log "${SCUDA_SERVER_LOG:-info}" >"$dir/out" 2>"$dir/log" &
  server_pid=$!
  local addr i
  for ((i = 0; i < 600; i++)); do
    addr=$(awk '/^listening on / {print $3; exit}' "$dir/out" 2>/dev/null || true)
    [ -n "$addr" ] && break
    kill -0 "$server_pid" 2>/dev/null || { cat "$dir/log" >&2; die "the server ended at once"; }
    sleep 0.05
  done
  [ -n "$addr" ] || { cat "$dir/log" >&2; die "the server did not say its address within 30 s"; }
  echo "$addr" >"$dir/address.part"
  mv "$dir/address.part" "$dir/address"
}

inside() { # CMD...; in the new mount namespace
  mask
  export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  if [ -n "${REMOTE_DEVICES:-}" ]; then export CUDA_VISIBLE_DEVICES=$REMOTE_DEVICES; fi
  exec env LD_PRELOAD="$build/lib/libscuda.so" SCUDA_SIDE=remote "$@"
}

case ${1:-} in
  facts) facts ;;
  native) shift; exec env -u SCUDA_SERVER SCUDA_SIDE=native "$@" ;;
  masked) shift; exec unshare -m --propagation private bash "$0" __masked "$@" ;;
  __masked) shift; mask; exec "$@" ;;
  __remote) shift; inside "$@" ;;
  serve)
    [ $# -eq 2 ] || die "serve needs a folder"
    trap 'kill "$server_pid" 2>/dev/null || true; exit 0' TERM INT
    serve "$2"
    wait "$server_pid"
    ;;
  remote)
    shift
    [ $# -gt 0 ] || die "remote needs a command"
    [ -e "$build/lib/libscuda.so" ] || die "no $build/lib/libscuda.so: run make build first"
    if [ -n "${SCUDA_SERVER:-}" ]; then
      exec unshare -m --propagation private bash "$0" __remote "$@"
    fi
    dir=$(mktemp -d)
    serve "$dir"
    rc=0
    SCUDA_SERVER=$(cat "$dir/address") unshare -m --propagation private bash "$0" __remote "$@" || rc=$?
    kill "$server_pid" 2>/dev/null || true
    wait "$server_pid" 2>/dev/null || true
    if [ $rc -ne 0 ]; then echo "--- server log" >&2; tail -n 40 "$dir/log" >&2; fi
    rm -rf "$dir"
    exit $rc
    ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
