#!/usr/bin/env bash
# Tries the isolation of workers on this machine's driver. Root is needed to give a server another user, and to read
# the kernel's log.
#
#   isolation.sh [MODE...]     modes of --isolation; default: log require
#
# It tries each mode (require: with Landlock; log leaves it out) in each way that WAYS names; default: user root.
#
#   user      the server is of an ordinary user, and so are its workers
#   root      the server is root, and workers have users of their tenants'
#   service   the server is of an ordinary user, and a spawner that is root gives workers users of their tenants'
#
# Through the server it runs what a driver has most to do for (PTX, the linker, lazy loading, unified memory, kernels
# that print and fault, PyTorch's first tensor), and prints which system calls the filter saw, by name, from the
# kernel's log. What no client can ask for (checkpoints of a worker, CUPTI in it) the program trial does in a process
# that is started as workers are. Without Go on the machine, build it before: go build -o build/trial ./perf/gpu/trial
#
# GPU=sim takes the simulated GPU, SERVER_UID another user than nobody, CASES other cases of check.py, CUPTI another
# library than the toolkit's. With OUT, the server's logs and the kernel's lines are kept there. Each mode takes about
# 45 s a way with one GPU, the trials 1 to 3 minutes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build}
user=${SERVER_UID:-$(id -u nobody)}
kind=${GPU:-real}
default="query compute linker managed managed_advice managed_named print fault callbacks vmm graph"
read -ra cases <<<"${CASES:-$(printf ' c:%s' $default)}"
read -ra ways <<<"${WAYS:-user root}"
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
if command -v go >/dev/null; then (cd "$root" && go build -o "$work/build/trial" ./perf/gpu/trial)
elif [ -x "$build/trial" ]; then cp "$build/trial" "$work/build/"; fi
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

# Becomes a command of the ordinary user; to be called in a shell of its own, so that its process is that command.
ordinary() { cd / && exec setpriv --reuid "$user" --regid "$(id -g nobody)" --clear-groups env HOME="$dir" "$@"; }

# Prints what the filter and Landlock saw since a moment.
seen_since() {
  echo "what the filter and Landlock saw:"
  { dmesg 2>/dev/null || true; } |
    awk -v since="$1" '/type=(1326|1423)/ { sub(/^\[ */, ""); if ($1 + 0 >= since) print }' >"$dir/kernel"
  count_calls <"$dir/kernel"
}

status=0
dir=$work
if [ -x "$work/build/trial" ]; then
  cupti=${CUPTI:-$(find -L /usr/local/cuda/extras/CUPTI/lib64 /usr/local/cuda/lib64 /usr/lib/x86_64-linux-gnu \
    -maxdepth 1 -name 'libcupti.so*' 2>/dev/null | head -1 || true)}
  [ "$kind" != sim ] || export LD_LIBRARY_PATH=$build/sim
  for way in "${ways[@]}"; do
    [ "$way" != service ] || continue # processes as in the way root
    echo "== trials, $way; CUPTI: ${cupti:-not here}"
    began=$(cut -d' ' -f1 /proc/uptime)
    as=ordinary
    [ "$way" = user ] || as=
    ($as "$work/build/trial" -cupti "${cupti:-libcupti.so}") || { echo "trials, $way: exit $?"; status=1; }
    seen_since "$began"
  done
  unset LD_LIBRARY_PATH
else
  echo "the program trial is not here: checkpoints and CUPTI are not tried"
fi

for way in "${ways[@]}"; do for mode in "$@"; do
  echo "== --isolation $mode, $way"
  dir=$work/$way-$mode
  mkdir "$dir"
  touch "$dir/out" "$dir/log"
  chown "$user" "$dir"
  began=$(cut -d' ' -f1 /proc/uptime)
  serve=("$work/build/scuda" -l 127.0.0.1:0 --gpu "$kind" --isolation "$mode" --warm 4 --cache-dir "$dir/cache"
    --log debug)
  case $way in
    user)
      (ordinary "${serve[@]}" --worker-uids none --worker-cgroup none) >"$dir/out" 2>"$dir/log" &
      ;;
    root)
      HOME=$dir "${serve[@]}" --state-dir "$dir/state" --worker-folder "$work/workers" --worker-cgroup none \
        >"$dir/out" 2>"$dir/log" &
      ;;
    service)
      "$work/build/scuda" spawner --connect "$dir/spawner" --worker-folder "$work/workers" --worker-cgroup none \
        2>"$dir/spawner.log" &
      spawner_pid=$!
      (ordinary "${serve[@]}" --spawner "$dir/spawner") >"$dir/out" 2>"$dir/log" &
      ;;
    *)
      echo "WAYS: user, root or service, not $way"
      exit 2
      ;;
  esac
  server_pid=$!
  address=
  for ((i = 0; i < 400; i++)); do
    address=$(awk '/^listening on / {print $3; exit}' "$dir/out")
    if [ -n "$address" ] || ! kill -0 "$server_pid" 2>/dev/null; then break; fi
    sleep 0.05
  done
  if [ -z "$address" ]; then
    echo "the server does not serve:"
    tail -n 20 "$dir"/*log
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
  seen_since "$began"
  echo "what the server's log says of failures:"
  grep -E 'level=(WARN|ERROR)' "$dir/log" | cut -c1-300 | sort | uniq -c | sort -rn | head -20 || true
  if [ -n "${OUT:-}" ]; then
    cp "$dir/log" "$OUT/isolation-$way-$mode.log"
    cp "$dir/kernel" "$OUT/isolation-$way-$mode.kernel"
  fi
done; done
exit $status
