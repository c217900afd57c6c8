#!/usr/bin/env bash
# Measures turns on this machine's GPU: what one session pays for --turns, whether shares of 3:1 give work of 3:1, and
# what a high class beside a batch takes, and leaves to it.
#
#   shares.sh [KERNEL]
#
# KERNEL is how far the kernels of a batch count (default 20000); about 100 µs each are meant, and the first line says
# what they take. Those of an inference count to a tenth of it. It serves on the loopback interface by itself, takes
# about two minutes, and fails where a goal is missed. GPU=sim:1,turns=1ms takes a simulated GPU (with a KERNEL of 100),
# BUILD another folder than build, SECONDS_EACH other times than 10 s.
set -euo pipefail

# shellcheck source=perf/gpu/serving.sh
. "$(dirname "${BASH_SOURCE[0]}")/serving.sh"
kernel=${1:-20000}
each=${SECONDS_EACH:-10}
load() { # NAME OPERATION NUMBER, with the credential in $work/NAME.token, if there is one: times to $work/NAME
  { sleep 4; echo "$each"; } | SCUDA_TOKEN=$(cat "$work/$1.token" 2>/dev/null || true) \
    "$scuda" run -- "$build/scuda-load" "$2" "$3" 0 | grep -v ready >"$work/$1"
}
lease() { # NAME OPTION …
  local name=$1
  shift
  rm -f "$work/$name.token"
  "$scuda" lease create --for 10m -o "$work/$name.token" "$@" 2>/dev/null
}
count() { wc -l <"$work/$1"; }
at() { # NAME PERCENT: of its times, in µs
  sort -n "$work/$1" | awk -v p="$2" '{t[NR] = $1} END {i = int(NR * p / 100); print int(t[i < 1 ? 1 : i] / 1000)}'
}
missed=0
goal() { # TEXT CONDITION, by awk
  if awk "BEGIN {exit !($2)}"; then echo "$1"; else echo "$1 — MISSED"; missed=1; fi
}

rm -f "$work"/*.token
serve
load alone batch "$kernel"
load calm infer $((kernel / 10))
echo "alone, without --turns: $(count alone) rounds of eight kernels in $each s, half of them within" \
  "$(at alone 50) µs; an inference p50 $(at calm 50) µs, p99 $(at calm 99) µs"

serve --turns
load with batch "$kernel"
load free infer $((kernel / 10))
goal "alone, with --turns: $(count with) rounds (goal: at least 0.99); an inference p99 $(at free 99) µs" \
  "$(count with) >= 0.99 * $(count alone)"

lease large --share 300
lease small --share 100
load large batch "$kernel" & first=$!
load small batch "$kernel"
wait "$first"
goal "shares of 300 and 100: $(count large) and $(count small) rounds; alone it was $(count with)" \
  "$(count large) >= 2.7 * $(count small) && $(count large) <= 3.3 * $(count small)"

lease high --class high
lease low --class low
load high infer $((kernel / 10)) & first=$!
load low batch "$kernel"
wait "$first"
goal "a high class beside a batch: inference p50 $(at high 50) µs, p99 $(at high 99) µs (goal: 1.5 of alone)" \
  "$(at high 99) <= 1.5 * $(at free 99)"
goal "the batch: $(count low) rounds (goal: 0.6 of alone)" "$(count low) >= 0.6 * $(count with)"

serve
lease large --share 300
lease small --share 100
load large batch "$kernel" & first=$!
load small batch "$kernel"
wait "$first"
echo "for comparison, without --turns: $(count large) and $(count small) rounds"
exit "$missed"
