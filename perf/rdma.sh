#!/usr/bin/env bash
# Compares scuda's RDMA with perftest's on the same two soft-RoCE devices, in one run of the virtual machine (see
# verbs/guest/rdma-guest): the bandwidth of the transport alone, of a client program on the simulated GPU and of copies
# between two servers with ib_write_bw's at its best message size, and the latency of a WRITE of 4 KiB with
# ib_write_lat's.
# The machine is emulated, so only the ratios mean something. `make perf-rdma` builds what it runs.
#
#   [RDMA_PERF_ROUNDS=N] perf/rdma.sh   N rounds (15); prints figures and ratios; fails where the median of one misses
#                                       its goal (transport 90 %, end to end and between servers 70 %, as the
#                                       simulated GPUs copy on the same processors, latency 115 %)
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1-}" != inside ]; then
  for t in build/rdma/plain/verbs.test build/rdma/plain/transport-rdma.test build/rdma/plain/e2e-rdma.test; do
    [ -x "$t" ] || { echo "missing $t: run make perf-rdma" >&2; exit 1; }
  done
  # The machine needs both processors: all that this terminal runs goes before what others run, where that is allowed.
  { echo -20 >/proc/self/autogroup; } 2>/dev/null || true
  exec verbs/guest/rdma-guest -p perftest -e RDMA_PERF_ROUNDS -t 1200 "$PWD/perf/rdma.sh" inside
fi

listens() { # on perftest's port
  until grep -q ':4853 00000000:0000 0A\|:4853 0\{32\}:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done
}

# MiB/s of messages of so many bytes: how many, over how many queue pairs; perftest cannot always find the clock's
# frequency
bandwidth() {
  local rate=
  until [[ $rate =~ ^[0-9.]+$ ]]; do rate=$(bandwidth_once "$@"); done
  echo "$rate"
}
bandwidth_once() {
  ib_write_bw -d "$RXE_DEV0" -x "$RXE_GID_INDEX" -s "$1" -n "$2" -q "${3-1}" >/dev/null 2>&1 &
  listens
  ib_write_bw -d "$RXE_DEV1" -x "$RXE_GID_INDEX" -s "$1" -n "$2" -q "${3-1}" "$RXE_IP0" |
    awk -v s="$1" '$1 == s { print $4 }'
  wait
}
latency() { # us of 4 KiB; perftest cannot always find the clock's frequency
  local us=
  until [[ $us =~ ^[0-9.]+$ ]]; do
    ib_write_lat -d "$RXE_DEV0" -x "$RXE_GID_INDEX" -s 4096 -n 4000 >/dev/null 2>&1 &
    listens
    us=$(ib_write_lat -d "$RXE_DEV1" -x "$RXE_GID_INDEX" -s 4096 -n 4000 "$RXE_IP0" 2>/dev/null |
      awk '$1 == 4096 { print $5 }')
    wait
  done
  echo "$us"
}
# a mask of processors; see network.sh
arrivals_on() { local p; for p in $(pgrep napi/rxenet); do taskset -p "$1" "$p" >/dev/null; done; }
figure() {
  awk -v what="FIGURE $1" 'index($0, what) {
    for (i = 1; i <= NF; i++) if ($i ~ /^[0-9.]+$/ && $(i+1) ~ /^(MiB\/s|us)$/) print $i
  }'
}

middle() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; } # the median
several() { for _ in 1 2 3; do bandwidth "$@"; done | middle; }

best_size= most=0
for size in 65536 262144 1048576; do
  b=$(several $size $((67108864 / size)))
  echo "ib_write_bw   $size bytes: $b MiB/s"
  if awk "BEGIN { exit !($b > $most) }"; then most=$b best_size=$size; fi
done
for pairs in 2 4; do
  b=$(bandwidth $best_size $((67108864 / best_size / pairs)) $pairs)
  echo "ib_write_bw   $best_size bytes over $pairs queue pairs: $b MiB/s"
done

# The speed of an emulated machine changes by half from one moment to the next. So there are many short measurements,
# each of the bandwidth stands between two of perftest's and its ratio is that to their mean, each of the latency beside
# one of perftest's, and what counts is the median of the ratios.
results=$(mktemp)
reference=
next_reference() { # the mean of perftest's last figure and a new one
  local new
  new=$(bandwidth $best_size $((134217728 / best_size)))
  mean=$(awk -v a="${reference:-$new}" -v b="$new" 'BEGIN { printf "%.1f", (a + b) / 2 }') reference=$new
}
note() { # round name value reference unit
  awk -v round="$1" -v name="$2" -v v="${3:-0}" -v r="$4" -v unit="$5" 'BEGIN {
    printf "round %2d  %-21s %7.1f %s of %7.1f  %5.1f %%\n", round, name, v, unit, r, 100 * v / r
  }'
  echo "$2|${3:-0}|$4" >>"$results"
}
next_reference
for round in $(seq "${RDMA_PERF_ROUNDS:-15}"); do
  out=$(build/rdma/plain/transport-rdma.test -test.v -test.run '^TestBandwidth$') || { echo "$out"; exit 1; }
  next_reference
  note $round "transport upload" "$(figure 'transport upload' <<<"$out")" $mean MiB/s
  note $round "transport download" "$(figure 'transport download' <<<"$out")" $mean MiB/s
  for _ in 1 2 3; do # a run in which chunks went over TCP has no figures
    out=$(build/rdma/plain/e2e-rdma.test -test.v -test.run '^TestSpeed$') || { echo "$out"; exit 1; }
    if grep -q FIGURE <<<"$out"; then break; fi
  done
  next_reference
  note $round "end to end upload" "$(figure 'end to end upload' <<<"$out")" $mean MiB/s
  note $round "end to end download" "$(figure 'end to end download' <<<"$out")" $mean MiB/s
  out=$(build/rdma/plain/e2e-rdma.test -test.v -test.run '^TestPeerSpeed$') || { echo "$out"; exit 1; }
  next_reference
  for way in there back; do # the last one, where a copy was repeated
    note $round "between servers $way" "$(figure "between servers $way" <<<"$out" | tail -n 1)" $mean MiB/s
  done
  # With one processor for what arrives: a packet that wakes a thread on the other takes a fifth longer, and which one
  # it is would be chance.
  arrivals_on 1
  for _ in 1 2 3 4; do
    us=$(build/rdma/plain/verbs.test -test.run '^$' -test.bench '^BenchmarkWriteLatency$' -test.benchtime 1x |
      figure latency)
    note $round "latency of 4 KiB" "$us" "$(latency)" us
  done
  arrivals_on 3
done

failed=0
compare() { # name goal(%) "least" or "most"
  awk -F '|' -v name="$1" '$1 == name { print 100 * $2 / $3, $2, $3 }' "$results" | sort -n |
    awk -v name="$1" -v goal="$2" -v which="$3" '
    { p[NR] = $1; v[NR] = $2; r[NR] = $3 }
    END { m = int((NR + 1) / 2); ok = which == "most" ? p[m] <= goal : p[m] >= goal
      printf "%-21s median %5.1f %% (%.1f of %.1f), from %.1f to %.1f %%; goal: at %s %d %%%s\n",
        name, p[m], v[m], r[m], p[1], p[NR], which, goal, ok ? "" : ": MISSED"
      exit !ok }' || failed=1
}
compare "transport upload" 90 least
compare "transport download" 90 least
compare "end to end upload" 70 least
compare "end to end download" 70 least
compare "between servers there" 70 least
compare "between servers back" 70 least
compare "latency of 4 KiB" 115 most
exit $failed
