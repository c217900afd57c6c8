# Two interfaces joined by a cable, an rxe device on each. The receiver of this kernel's rxe sees the first network
# namespace only, so both ends stay in it; rules send what one end sends to the other's address over the cable, where
# the table of local addresses would take a short cut. Sourced in the guest; fails where the devices do not come up.
# lets the threads whose name begins so go before programs, as interrupts do; fails where there are none
first_of_all() {
  local p name found=1
  for p in /proc/[0-9]*; do
    read -r name <"$p/comm" || continue # it has ended
    case $name in "$1"*) chrt -f -p 10 "${p#/proc/}" && found=0 ;; esac
  done 2>/dev/null
  return $found
}
rdma_up() {
  ip link set lo up
  echo -1 >/proc/sys/kernel/sched_rt_runtime_us # interrupts are not stopped for 50 ms either
  ip link add rxenet0 mtu 4200 type veth peer name rxenet1 mtu 4200 || return 1
  local me peer try
  for me in 0 1; do
    peer=$((1 - me))
    echo 1 >/proc/sys/net/ipv4/conf/rxenet$me/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/rxenet$me/rp_filter
    ip address add 10.77.0.$((me + 1))/24 dev rxenet$me
    ethtool -K rxenet$me tso off gro on || return 1 # veth has queues then
    ip link set rxenet$me up
    ip rule add pref $((10 + me)) iif rxenet$me lookup local
    ip rule add pref $((20 + me)) from 10.77.0.$((me + 1)) to 10.77.0.$((peer + 1)) lookup 77
  done
  # What arrives is worked on by a thread of its own for each interface, in the order in which it was sent, as by the
  # queue of a card. By itself veth leaves each packet to the processor that sent it, so that those of a sender that
  # moves to another overtake one another. And that work would be no task of the scheduler's, which would leave a sender
  # on the processor that it fills, while the other idles.
  for me in 0 1; do
    echo 1 >/sys/class/net/rxenet$me/threaded && first_of_all napi/rxenet$me- || return 1
  done
  ip route add 10.77.0.1 dev rxenet1 table 77
  ip route add 10.77.0.2 dev rxenet0 table 77
  ip rule add pref 30 lookup local
  ip rule delete pref 0
  for me in 0 1; do rdma link add rxe$me type rxe netdev rxenet$me || return 1; done
  local port0=/sys/class/infiniband/rxe0/ports/1 port1=/sys/class/infiniband/rxe1/ports/1
  for try in $(seq 100); do
    if grep -qs 0a4d:0001 $port0/gids/1 && grep -qs ACTIVE $port0/state &&
       grep -qs 0a4d:0002 $port1/gids/1 && grep -qs ACTIVE $port1/state; then
      export RXE_DEV0=rxe0 RXE_IP0=10.77.0.1 RXE_DEV1=rxe1 RXE_IP1=10.77.0.2 RXE_GID_INDEX=1
      return 0
    fi
    sleep 0.05
  done
  return 1
}
rdma_up
