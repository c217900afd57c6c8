#!/usr/bin/env bash
# The main job in small: a server with a simulated GPU, and an unmodified CUDA driver-API program that uses it through
# scuda.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$out"' EXIT

echo '$ scuda serve 127.0.0.1:0 --gpu sim &'
build/scuda serve 127.0.0.1:0 --gpu sim --cache-dir "$out/cache" --log warn >"$out/server" &
server=$!
for ((i = 0; i < 300; i++)); do
  address=$(awk '/^listening on / {print $3; exit}' "$out/server")
  [ -z "$address" ] || break
  kill -0 "$server"
  sleep 0.1
done
cat "$out/server"

export SCUDA_SERVER=$address
printf '\n$ scuda info\n'
build/scuda info

printf '\n$ cc julia.c -lcuda\n$ scuda trace -- julia julia.ptx build/julia.png\n'
gcc -O2 -o "$out/julia" examples/julia/julia.c -I shim/include -L build/lib -l:libcuda.so.1 -Wl,--allow-shlib-undefined
build/scuda trace -- "$out/julia" examples/julia/julia.ptx build/julia.png
