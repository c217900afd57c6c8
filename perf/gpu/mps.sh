#!/usr/bin/env bash
# Asks this machine's MPS what a server has to know that runs it for its tenants: whether daemons of several users serve
# one GPU at a time, what ends with a client, and what limits hold. It prints what it saw and judges nothing.
#
#   mps.sh OUTPUT
#
# It needs root, nvcc, nvidia-cuda-mps-control and a GPU that nobody else uses, takes about two minutes, and stops all
# that it started.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?mps.sh OUTPUT}
work=$(mktemp -d)
chmod 755 "$work"
first=2100000001 second=2100000002 # users as of tenants
nvcc -O1 -o "$work/mps" "$here/mps.cu" || exit 1
: >"$out"
say() { echo "$*" | tee -a "$out"; }

# as USER COMMAND…: with the pipe folder of that user's daemon
as() {
  local user=$1
  shift
  CUDA_MPS_PIPE_DIRECTORY=$work/pipe$user CUDA_MPS_LOG_DIRECTORY=$work/log$user HOME=$work \
    timeout -k 5 40 setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}
control() { echo "$2" | as "$1" nvidia-cuda-mps-control 2>&1 | tr '\n' ' '; }
daemon() {
  install -d -m 700 -o "$1" -g "$1" "$work/pipe$1" "$work/log$1"
  as "$1" nvidia-cuda-mps-control -d
  say "  daemon of $1: status $?"
}
stop() {
  control "$1" quit >/dev/null
  sleep 1
  pkill -9 -U "$1" nvidia-cuda-mps 2>/dev/null
}
end() {
  for u in $first $second; do stop "$u"; done
  pkill -9 -f "$work/mps"
  rm -rf "$work"
}
trap end EXIT
# client NAME USER ARGUMENT…: in the background; its output goes to a file of that name
client() {
  local name=$1 user=$2
  shift 2
  as "$user" "$work/mps" "$@" >"$work/$name.out" 2>&1 &
}
got() { for n in "$@"; do say "  $n: $(tr '\n' ' ' <"$work/$n.out")"; done; }
pid() { pgrep -U "$1" -f "$work/mps $2" | tail -1; }

say "driver $(nvidia-smi --query-gpu=driver_version,name,compute_mode --format=csv,noheader)"

say "== without MPS: one client, then eight"
client alone $first work 3; wait
got alone
for i in 1 2 3 4 5 6 7 8; do client "sliced$i" $first work 4; done; wait
got sliced{1..8}

say "== a daemon as an ordinary user"
daemon $first
as $first "$work/mps" see 2>&1 | tee -a "$out"
say "  servers: $(control $first get_server_list)"
client one $first work 3; wait
got one
for i in 1 2 3 4 5 6 7 8; do client "shared$i" $first work 4; done; wait
got shared{1..8}

say "== another user with this daemon's folder"
chmod 711 "$work/pipe$first"
CUDA_MPS_PIPE_DIRECTORY=$work/pipe$first timeout -k 5 15 "$work/mps" see >>"$out" 2>&1
say "  root: status $?"
CUDA_MPS_PIPE_DIRECTORY=$work/pipe$first timeout -k 5 15 setpriv --reuid $second --regid $second --clear-groups \
  "$work/mps" see >>"$out" 2>&1
say "  user $second: status $?"

say "== daemons of two users at a time, a client each"
daemon $second
client a $first work 4
client b $second work 4
wait
got a b
say "  servers: $(control $first get_server_list) and $(control $second get_server_list)"

say "== kill -9 of a client; its peer works on?"
client killed $first spin 20
client peer $first work 8
sleep 3
kill -9 "$(pid $first 'spin 20')"
wait
got killed peer

say "== terminate_client first"
client ended $first spin 20
client peer $first work 8
sleep 3
server=$(control $first get_server_list | tr -d ' ')
victim=$(pid $first 'spin 20')
say "  clients of server $server: $(control $first "get_client_list $server")"
say "  terminate_client: $(control $first "terminate_client $server $victim")"
sleep 1
kill -9 "$victim"
wait
got ended peer

say "== a kernel of a peer writes where nothing is; a peer of the same user and one of another"
client peer $first work 6
client stranger $second work 6
sleep 2
client fault $first fault
sleep 2
client next $first work 1
wait
got fault peer next stranger
say "  servers: $(control $first get_server_list); a new client:"
as $first "$work/mps" see 2>&1 | tee -a "$out"

say "== the server's process is killed"
client peer $first work 5
sleep 2
kill -9 "$(control $first get_server_list | tr -d ' ')"
wait
got peer
as $first "$work/mps" see 2>&1 | tee -a "$out"

say "== the daemon is killed while a client works"
client peer $first work 5
sleep 2
pkill -9 -U $first -f 'nvidia-cuda-mps-control'
wait
got peer
stop $first
daemon $first
as $first "$work/mps" see 2>&1 | tee -a "$out"

say "== limits by a client's environment"
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 as $first "$work/mps" see 2>&1 | tee -a "$out"
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G as $first "$work/mps" see 2>&1 | tee -a "$out"
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G as $first "$work/mps" fill 2>&1 | tee -a "$out"

say "== quit while a client is connected"
client last $first work 5
sleep 2
say "  quit: $(control $first quit)"
wait
got last
say "  daemon: $(pgrep -U $first -f nvidia-cuda-mps-control >/dev/null && echo there || echo gone)"

say "== logs"
for u in $first $second; do tail -n 15 "$work/log$u/control.log" "$work/log$u/server.log" >>"$out" 2>&1; done
