#!/usr/bin/env bash
# Where the time of a process's first tensor goes: the steps of first.c by turns over servers that differ in one option,
# and over another build's server and client, each with a worker ready. Prints the medians in microseconds.
#
#   first.sh [ROUNDS [BUILD]]      BUILD: another build's folder to compare with; ROUNDS: 15
#
# It serves on the loopback interface by itself. GPU=sim takes a simulated GPU, BUILD another folder than build.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${BUILD:-$here/../../build}
rounds=${1:-15} other=${2-}
work=$(mktemp -d)
declare -A address library pids
end() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap end EXIT

${CC:-cc} -O1 -o "$work/first" "$here/first.c" -I "$here/../../shim/include" -L "$build/lib" -l:libcuda.so.1 -ldl \
  -Wl,--allow-shlib-undefined

# serve NAME BUILD OPTION…
serve() {
  local name=$1 from=$2
  shift 2
  mkdir -p "$work/$name"
  XDG_CACHE_HOME=$work/$name XDG_STATE_HOME=$work/$name SCUDA_LIB=$from/lib \
    "$from/scuda" -l 127.0.0.1:0 --gpu "${GPU:-real}" "$@" >"$work/$name.out" 2>"$work/$name.log" &
  pids[$name]=$! library[$name]=$from/lib
  for _ in $(seq 300); do
    if grep -qs "^listening on " "$work/$name.out"; then break; fi
    kill -0 "${pids[$name]}" || { cat "$work/$name.log" >&2; exit 1; }
    sleep 0.1
  done
  address[$name]=$(sed -n 's/^listening on //p' "$work/$name.out")
}
names=(usual isolation-off one-user all-plain)
serve usual "$build"
serve isolation-off "$build" --isolation off
serve one-user "$build" --worker-uids none
serve all-plain "$build" --isolation off --worker-uids none --usage-log none
if [ -n "$other" ]; then
  serve other "$other"
  names+=(other)
fi

for _ in $(seq "$rounds"); do
  for n in "${names[@]}"; do
    sleep 0.7 # until the next worker is ready
    SCUDA_SERVER=${address[$n]} LD_LIBRARY_PATH=${library[$n]} "$work/first" >>"$work/$n.times" ||
      { tail -5 "$work/$n.log" >&2; exit 1; }
  done
done

printf '%-28s' step
printf '%15s' "${names[@]}"
echo
while read -r step; do
  printf '%-28s' "$step"
  for n in "${names[@]}"; do
    sed -n "s/^$step //p" "$work/$n.times" | sort -n | awk '{v[NR]=$1} END {printf "%15.0f", v[int((NR+1)/2)]}'
  done
  echo
done < <(awk '{sub(/ [0-9]+$/, ""); if (!seen[$0]++) print}' "$work/usual.times")
