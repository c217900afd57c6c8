#!/usr/bin/env bash
# Runs the RDMA tests that `make test-rdma` has built, in one virtual machine. Fails where the machine starts and RDMA
# does not work; where none can be started at all, a line says so and the status is 125.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Within the guest: one test program after the other.
if [ "${1-}" = inside ]; then
  top=$PWD
  failed=
  # Programs start sooner from memory than over the guest's file system, and some tests start many.
  mount -t tmpfs -o size=512m build /mnt
  cp -r build/scuda build/lib build/rdma /mnt
  mount --bind /mnt build
  for t in build/rdma/*.test; do
    echo "== $(basename "$t" .test)"
    folder=. # where its test data lie
    case $t in */ebpf.test) folder=ebpf ;; esac
    (cd "$folder" && "$top/$t" -test.timeout 25m -test.v) >/tmp/out 2>&1 ||
      { failed="$failed $(basename "$t")"; cat /tmp/out; }
    tail -n 1 /tmp/out
    # Where the time goes: the emulated machine is slow, and tests that wait show here.
    sed -nE 's/^--- (PASS|FAIL): ([^ ]+) \(([0-9.]+)s\)$/\3 s  \2/p' /tmp/out | sort -rn | awk '$1 >= 5' | head -n 12
  done
  [ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
  exit 0
fi

began=$SECONDS
try() {
  rc=0
  verbs/guest/rdma-guest -e RDMA_TEST_COPIES -e RDMA_TEST_CUTS -t "${RDMA_TEST_LIMIT:-1800}" \
    "$PWD/verbs/guest/test.sh" inside || rc=$?
}
try
if [ $rc = 122 ]; then # nothing of scuda's: all tests run again, in another machine
  echo "RDMA tests begin again"
  try
fi
case $rc in
  0) echo "RDMA tests passed in $((SECONDS - began)) s" ;;
  122) echo "RDMA tests did not end: the virtual machine's kernel stood still twice (see above)" ;;
  123) echo "RDMA tests did not end: the virtual machine was killed after $((SECONDS - began)) s" \
    "(see above; is there too little memory?)" ;;
  124) echo "RDMA tests: out of time after $((SECONDS - began)) s" ;;
  125) echo "RDMA tests did not run: this machine cannot start the virtual machine (see above)" ;;
  126) echo "RDMA tests failed: the virtual machine has no RDMA devices" ;;
  *) echo "RDMA tests failed with status $rc" ;;
esac
exit $rc
