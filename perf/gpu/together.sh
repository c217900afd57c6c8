#!/usr/bin/env bash
# Runs several commands at once, each with its output in a file of its own, and prints for each how it ended and how
# long it took. What is not done after LIMIT seconds is ended.
#
#   together.sh LIMIT NAME=COMMAND...
#
# The files lie in $OUT/NAME.log; $OUT of each command is $OUT/NAME. For machines that are lent for minutes.
set -uo pipefail

limit=${1:?together.sh LIMIT NAME=COMMAND...}
shift
out=${OUT:-$(mktemp -d)}
declare -A pids
for part in "$@"; do
  name=${part%%=*}
  mkdir -p "$out/$name"
  (
    began=$(date +%s)
    OUT=$out/$name timeout -k 10 "$limit" bash -c "${part#*=}" >"$out/$name.log" 2>&1
    echo "status $? after $(($(date +%s) - began)) s" >"$out/$name.end"
  ) &
  pids[$name]=$!
done
wait "${pids[@]}"
for part in "$@"; do
  name=${part%%=*}
  echo "=== $name: $(cat "$out/$name.end")"
  tail -n 4 "$out/$name.log" | cut -c1-300
  rm -f "$out/$name.end"
done
