#!/usr/bin/env bash
# Tries the isolation of workers on this machine's driver. For each mode it starts a server as an ordinary user, with a
# spawner that is root, so that workers have users of their own (require: and Landlock; log leaves it out). It runs
# what a driver has most to do for (PTX, the linker, lazy loading, unified memory, kernels that print and fault,
# PyTorch's first tensor), and prints which system calls the filter saw, by name, from the kernel's log. Root is needed
# to give the server another user, and to read that log.
#
#   isolation.sh [MODE...]     modes of --isolation; default: log require
#
# GPU=sim takes the simulated GPU, SERVER_UID another user than nobody, CASES other cases of check.py. With OUT, the
# server's logs and the kernel's lines are kept there. Two modes take 90 s with one GPU.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build}
user=${SERVER_UID:-$(id -u nobody)}
kind=${GPU:-real}
default="query compute linker managed managed_advice managed_named print fault callbacks vmm graph"
read -ra cases <<<"${CASES:-$(printf ' c:%s' $default)}"
[ $# -gt 0 ] || set -- log require

# Landlock's lines come only where auditing is on: audit 1 or 0.
audit() {
  python3 - "$1" <<'END' || true
import socket, struct, sys
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
body = struct.pack("=10I", 1, int(sys.argv[1]), *[0] * 8)
kernel.sendto(struct.pack("=IHHII", 16 + len(body), 1001, 5, 1, 0) + body, (0, 0))
if struct.unpack_from("=i", kernel.recv(4096), 16)[0]:
    print("auditing cannot be switched: what Landlock denies will not be seen")
END
}

work=$(mktemp -d)
server_pid= spawner_pid=
suppressed=$(cat /proc/sys/kernel/printk_ratelimit 2>/dev/null || true)
end() {
  for pid in $server_pid $spawner_pid; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
  if [ -n "$suppressed" ]; then echo "$suppressed" >/proc/sys/kernel/printk_ratelimit 2>/dev/null || true; fi
  audit 0
  rm -rf "$work"
}
trap end EXIT
audit 1
chmod 755 "$work"
# The kernel leaves lines out when many come at once.
if [ -n "$suppressed" ]; then echo 0 >/proc/sys/kernel/printk_ratelimit 2>/dev/null || true; fi
# The user must be able to reach the program.
mkdir "$work/build"
cp "$build/scuda" "$work/build/"
chmod -R a+rX "$work/build"

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "GPU=$kind")
echo "kernel $(uname -r), $gpu"
for key in actions_avail actions_logged; do
  echo "seccomp $key: $(cat /proc/sys/kernel/seccomp/$key 2>/dev/null || echo unknown)"
done
if ! dmesg >/dev/null 2>&1; then echo "the kernel's log cannot be read here: denied calls will not be seen"; fi

# Reads lines of the kernel's log about filtered calls, prints how often which process made which call.
count_calls() {
  { echo '#include <sys/syscall.h>' | gcc -E -dM - 2>/dev/null || true; } |
    sed -n 's/^#define __NR_\([a-z0-9_]*\) \([0-9]*\)$/\2 \1/p' >"$work/names"
  awk -v names="$work/names" '
    BEGIN { while ((getline line < names) > 0) { split(line, w, " "); name[w[1]] = w[2] } }
    /type=1423/ {
      what = where = "?"
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^blockers=/) what = substr($i, 10)
        if ($i ~ /^path=/ || $i ~ /^opid=/) where = $i }
      n["Landlock denied " what " " where]++
      next }
    { call = code = comm = "?"
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^syscall=/) call = substr($i, 9)
        if ($i ~ /^code=/) code = substr($i, 6)
        if ($i ~ /^comm=/) comm = substr($i, 6) }
      did = code == "0x7ffc0000" ? "logged" : code ~ /^0x8/ ? "killed" : "refused"
      n[did " " (call in name ? name[call] : "number " call) " by " comm]++ }
    END { for (k in n) printf "  %5d  %s\n", n[k], k }' | sort -rn
}

status=0
for mode in "$@"; do
  echo "== --isolation $mode, user $user"
  dir=$work/$mode
  mkdir "$dir"
  chown "$user" "$dir"
  began=$(cut -d' ' -f1 /proc/uptime)
  "$work/build/scuda" spawner --connect "$dir/spawner" --worker-folder "$work/workers" --worker-cgroup none \
    2>"$dir/spawner.log" &
  spawner_pid=$!
  (cd / && exec setpriv --reuid "$user" --regid "$(id -g nobody)" --clear-groups env HOME="$dir" \
    "$work/build/scuda" -l 127.0.0.1:0 --gpu "$kind" --isolation "$mode" --warm 4 --cache-dir "$dir/cache" \
    --spawner "$dir/spawner" --log debug) >"$dir/out" 2>"$dir/log" &
  server_pid=$!
  address=
  for ((i = 0; i < 400; i++)); do
    address=$(awk '/^listening on / {print $3; exit}' "$dir/out")
    if [ -n "$address" ] || ! kill -0 "$server_pid" 2>/dev/null; then break; fi
    sleep 0.05
  done
  if [ -z "$address" ]; then
    echo "the server does not serve:"
    tail -n 20 "$dir/log" "$dir/spawner.log"
    status=1
  else
    grep -h -e 'isolation of workers' -e 'workers are without' "$dir/log" || true
    ps -eo uid=,comm= | grep scuda-worker | sort | uniq -c || true
    export SCUDA_SERVER=$address
    python3 "$here/check.py" --remote-only --timeout 40 -j 4 "${cases[@]}" || status=1
    if command -v nvcc >/dev/null; then
      CUDA_MODULE_LOADING=LAZY python3 "$here/check.py" --remote-only --timeout 40 cu:shared || status=1
    fi
    if python3 -c 'import torch' 2>/dev/null; then
      timeout 60 "$here/run.sh" remote python3 -c '
import time, torch
t = time.time()
assert torch.ones(4, device="cuda").sum().item() == 4
print(f"first tensor of PyTorch: {time.time() - t:.2f} s")' || { echo "PyTorch: exit $?"; status=1; }
    else
      echo "PyTorch is not here"
    fi
    unset SCUDA_SERVER
  fi
  for pid in $server_pid $spawner_pid; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
  server_pid= spawner_pid=
  echo "what the filter and Landlock saw:"
  { dmesg 2>/dev/null || true; } |
    awk -v since="$began" '/type=(1326|1423)/ { sub(/^\[ */, ""); if ($1 + 0 >= since) print }' >"$dir/kernel"
  count_calls <"$dir/kernel"
  echo "what the server's log says of failures:"
  grep -E 'level=(WARN|ERROR)' "$dir/log" | cut -c1-300 | sort | uniq -c | sort -rn | head -20 || true
  if [ -n "${OUT:-}" ]; then
    cp "$dir/log" "$OUT/isolation-$mode.log"
    cp "$dir/kernel" "$OUT/isolation-$mode.kernel"
  fi
done
exit $status
