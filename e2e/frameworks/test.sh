#!/usr/bin/env bash
# Real programs over scuda on the simulated GPU, whose output is checked: ffmpeg's CUDA filters, hashcat, numba, PyCUDA,
# PyTorch and, where its source is named, tinygrad (docs/sim.md begins with what runs).
#
#   test.sh [PROGRAM…]     ffmpeg, hashcat, numba, pycuda, torch, gpt, tinygrad; all where none is named
#
# SCUDA_FRAMEWORKS is the folder where Debian's packages lie unpacked (5 GB, kept; ~/.cache/scuda-frameworks).
# SCUDA_TINYGRAD is a checkout of tinygrad, which no package of Debian's has; without one it is left out, and said so.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${SCUDA_FRAMEWORKS:-${XDG_CACHE_HOME:-$HOME/.cache}/scuda-frameworks}
tinygrad=${SCUDA_TINYGRAD:+$(cd "$SCUDA_TINYGRAD" && pwd)}
[ $# -gt 0 ] || set -- ffmpeg numba pycuda hashcat torch gpt tinygrad
programs=$PWD/e2e/frameworks
kernels=$PWD/testdata/kernels/kernels.ptx
work=$(mktemp -d)
pids=()
end() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap end EXIT
mkdir -p "$work/home"

serve() { # GPU: sets $address
  local log=$work/server-${#pids[@]} i
  : >"$log" # the server opens it when it is there, which may be after the first look
  build/scuda serve 127.0.0.1:0 --gpu "$1" --cache-dir none --state-dir "$log.state" --log warn >"$log" 2>&1 &
  pids+=($!)
  for ((i = 0; i < 300; i++)); do
    address=$(awk '/^listening on / {print $3; exit}' "$log")
    [ -z "$address" ] || return 0
    sleep 0.1
  done
  cat "$log"
  return 1
}

# A program is told of the server, and has nothing of this machine's user.
client=(env -i "PATH=$PATH" "HOME=$work/home" "XDG_CACHE_HOME=$work/home" "LD_LIBRARY_PATH=$PWD/build/lib"
  "NUMBA_CUDA_DRIVER=$PWD/build/lib/libcuda.so.1")
failed=() left=()
try() { # WHAT LIMIT COMMAND…: which runs on $address
  local began=$SECONDS rc=0
  echo "== $1 …"
  timeout -k 10 "$2" "${client[@]}" "SCUDA_SERVER=$address" "${@:3}" >"$work/out" 2>&1 || rc=$?
  if [ $rc = 0 ]; then
    tail -n "${lines:-1}" "$work/out" | sed 's/^/   /'
    echo "   $((SECONDS - began)) s"
  else
    failed+=("$1")
    tail -n 60 "$work/out" | sed 's/^/   | /'
    echo "   FAILED ($rc) after $((SECONDS - began)) s"
  fi
}

python() { # WHAT LIMIT PROGRAM ARGUMENT…
  try "$1" "$2" "$folder/python3.13" "$programs/$3" "${@:4}"
}

hashcat() {
  cp -r build/packaged/hashcat "$work/hashcat" # it writes beside itself
  printf '%s\n' 5d41402abc4b2a76b9719d911017c592 098f6bcd4621d373cade4e832627b4f6 >"$work/hashes"
  printf '%s\n' a hello world test >"$work/words"
  printf '%s\n' 098f6bcd4621d373cade4e832627b4f6:test 5d41402abc4b2a76b9719d911017c592:hello >"$work/wanted"
  try "hashcat: two MD5 sums among four words, with its self-test" 900 bash -c 'cd "$0"/hashcat &&
    LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$PWD/usr/lib/x86_64-linux-gnu ./hashcat -m 0 -a 0 --force --quiet \
      --backend-ignore-opencl --potfile-disable -o found "$0/hashes" "$0/words" &&
    diff "$0/wanted" <(sort found) && echo "both words were found"' "$work"
}

newest() { [ -n "${at_newest:-}" ] || { serve sim:cc=12.0; at_newest=$address; }; address=$at_newest; }

parts=()
for name; do
  case $name in
    torch | gpt) parts+=(torch) ;;
    hashcat) ./e2e/packaged.sh build/packaged ;;
    *) parts+=(small) ;;
  esac
done
[ ${#parts[@]} -eq 0 ] || "$programs/fetch.sh" "$folder" small $([[ " ${parts[*]} " != *" torch "* ]] || echo torch)

for name; do
  case $name in
    ffmpeg)
      newest
      try "ffmpeg: eight CUDA filters" 900 "$programs/ffmpeg.sh" "$folder/run" ;;
    numba)
      newest
      python "numba: kernels that NVVM compiles" 300 numba_kernels.py ;;
    pycuda)
      newest
      python "PyCUDA: kernels as PTX" 120 pycuda_ptx.py "$kernels" ;;
    hashcat) # NVRTC 11.8 does not know newer GPUs than 9.0
      serve sim
      hashcat ;;
    torch)
      newest
      python "PyTorch: 80 operators" 1500 torch_ops.py ;;
    gpt)
      newest
      lines=3 python "PyTorch: a network of two layers and a GPT train" 1500 torch_gpt.py ;;
    tinygrad)
      if [ -z "$tinygrad" ]; then
        left+=("tinygrad (SCUDA_TINYGRAD names no checkout of it)")
        continue
      fi
      serve sim
      for renderer in CUDA:PTX CUDA; do
        client+=("PYTHONPATH=$tinygrad" "DEV=$renderer")
        python "tinygrad, $renderer" 900 tinygrad_ops.py
      done ;;
    *) echo "test.sh: there is no program $name" >&2; exit 2 ;;
  esac
done
[ ${#left[@]} -eq 0 ] || printf 'left out: %s\n' "${left[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all programs are right ($SECONDS s)"
