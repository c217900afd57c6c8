#!/usr/bin/env bash
# What the staging between RDMA's pinned slots and the GPU moves, with memory in the place of the network (1 GiB each way, best of 5): first as with a card that
# writes the slots itself, then with threads that copy to and from other memory. Prints one JSON object a line and fails below 45 GB/s either way.
#
#   staging.sh [PATH OF scuda]
set -euo pipefail
scuda=${1:-build/scuda}
best=0
for feeders in 0 4 8; do
  line=$("$scuda" bench staging --feeders "$feeders")
  echo "$line"
  low=$(python3 -c 'import json, sys; r = json.loads(sys.argv[1]); print(min(r["upload_gb_per_s"], r["download_gb_per_s"]))' "$line")
  best=$(python3 -c 'import sys; print(max(map(float, sys.argv[1:])))' "$best" "$low")
done
python3 -c 'import sys; b = float(sys.argv[1]); print(f"best of the lower direction: {b} GB/s"); sys.exit(b < 45)' "$best"
