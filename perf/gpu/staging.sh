#!/usr/bin/env bash
# What the staging between RDMA's pinned slots and the GPU moves, with memory in the place of the network (1 GiB each
# way, best of 5): first as with a card that writes the slots itself, then with threads that copy to and from other
# memory. Prints one JSON object a line and fails below 45 GB/s either way.
#
#   staging.sh [PATH OF THE TEST BINARY OF server/executor]
#
# Where the binary is not there it is built, which needs Go: go test -c -o build/perf/staging ./server/executor
set -euo pipefail
staging=${1:-build/perf/staging}
[ -x "$staging" ] || go test -c -o "$staging" ./server/executor
best=0
for feeders in 0 4 8; do
  if ! out=$("$staging" -test.run '^TestStagingRates$' -staging.gpu -staging.feeders "$feeders"); then
    echo "$out" >&2
    exit 1
  fi
  line=$(grep '^{' <<<"$out")
  echo "$line"
  low=$(python3 -c 'import json, sys
r = json.loads(sys.argv[1])
print(min(r["upload_gb_per_s"], r["download_gb_per_s"]))' "$line")
  best=$(python3 -c 'import sys; print(max(map(float, sys.argv[1:])))' "$best" "$low")
done
python3 -c 'import sys; b = float(sys.argv[1]); print(f"best of the lower direction: {b} GB/s"); sys.exit(b < 45)' \
  "$best"
