# Sourced by the scripts here that need a server of their own. It sets top (the project's folder), build (BUILD names
# another folder), scuda, work (a folder that goes with the script), SCUDA_ADMIN and SCUDA_LIB; `serve` starts a server.
# shellcheck shell=bash
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${BUILD:-$top/build}
scuda=$build/scuda
work=$(mktemp -d)
server_pid=
stop() {
  if [ -n "$server_pid" ]; then kill "$server_pid" 2>/dev/null || true; wait "$server_pid" 2>/dev/null || true; fi
  server_pid=
}
trap 'stop; rm -rf "$work"' EXIT

export SCUDA_ADMIN=$work/admin SCUDA_LIB=$build/lib
serve() { # OPTION …: on the loopback interface, in the place of one that runs; its log is $work/log
  stop
  rm -f "$SCUDA_ADMIN"
  "$scuda" serve 127.0.0.1:0 --gpu "${GPU:-real}" --state-dir "$work/state" --cache-dir none "$@" \
    >"$work/out" 2>"$work/log" &
  server_pid=$!
  for _ in $(seq 300); do
    if grep -q '^listening on ' "$work/out" && [ -S "$SCUDA_ADMIN" ]; then break; fi
    kill -0 "$server_pid" || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
  done
  SCUDA_SERVER=$(sed -n 's/^listening on //p' "$work/out")
  export SCUDA_SERVER
}
