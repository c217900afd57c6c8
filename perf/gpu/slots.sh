#!/usr/bin/env bash
# Records what nvidia-smi asks of NVML's private table on this machine's driver (slots.c), while a process uses the GPU.
#
#   slots.sh OUTPUT [FORM...]     a FORM is one argument, such as "pmon -c 1"
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SLOTS_OUT=$1
shift
real=${REAL_NVML:-$(ldconfig -p | awk '/libnvidia-ml\.so\.1/ {print $NF; exit}')}
for f in /usr/local/nvidia/lib64/libnvidia-ml.so.1; do if [ -z "$real" ] && [ -e "$f" ]; then real=$f; fi; done
[ -n "$real" ] || { echo "slots.sh: no libnvidia-ml.so.1; give REAL_NVML=PATH" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The recorder has the library's SONAME, so that nvidia-smi takes it for the library, and depends on the real one by its
# path.
echo >"$work/empty.c"
gcc -shared -Wl,-soname,"$real" -o "$work/path.so" "$work/empty.c"
gcc -O1 -g -shared -fPIC -DREAL="\"$real\"" -Wl,-soname,libnvidia-ml.so.1 -o "$work/libnvidia-ml.so.1" \
  "$here/slots.c" -Wl,--no-as-needed "$work/path.so" -ldl

: >"$SLOTS_OUT"
[ $# -gt 0 ] || set -- "" -L -q "-q -x" "--query-gpu=name,memory.used --format=csv" \
  "--query-compute-apps=pid,name,used_memory --format=csv" "topo -m" "dmon -c 1" "pmon -c 1" "mig -lgi"
for form in "$@"; do
  echo "## nvidia-smi $form" >>"$SLOTS_OUT"
  status=0
  # shellcheck disable=SC2086  # a form is several words
  LD_PRELOAD="$work/libnvidia-ml.so.1" timeout 60 nvidia-smi $form >"$work/text" 2>&1 || status=$?
  echo "status $status, $(wc -l <"$work/text") lines" >>"$SLOTS_OUT"
  case $form in pmon* | dmon* | "" | *compute-apps*) sed 's/^/  > /' "$work/text" >>"$SLOTS_OUT" ;; esac
done
