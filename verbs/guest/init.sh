#!/bin/busybox sh
# The first process of the guest: loads the modules, puts the machine's files below a layer in memory, runs /run/command
# there and reports its exit status. See rdma-guest.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /host /layer /new
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
while read -r m; do $b insmod "/modules/$m"; done </modules/order

plan9() { $b mount -t 9p -o "trans=virtio,version=9p2000.L,msize=1048576,$1" "$2" "$3"; }
plan9 ro,cache=loose host /host
$b mount -t tmpfs none /layer
$b mkdir /layer/changes /layer/work
$b mount -t overlay -o lowerdir=/host,upperdir=/layer/changes,workdir=/layer/work none /new

# What programs expect of a running system.
in_new() { $b mkdir -p "/new/$3" && $b mount -t "$1" -o "$2" none "/new/$3"; }
in_new proc rw proc
in_new sysfs rw sys
in_new devtmpfs rw dev
in_new devpts ptmxmode=666 dev/pts
in_new tmpfs mode=1777 dev/shm
in_new tmpfs mode=755 run
$b ln -sf /proc/self/fd /new/dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do $b ln -sf "/proc/self/fd/${stream%:*}" "/new/dev/${stream#*:}"; done
for fs in tracefs:kernel/tracing debugfs:kernel/debug bpf:fs/bpf cgroup2:fs/cgroup; do
  $b mount -t "${fs%%:*}" none "/new/sys/${fs#*:}" 2>/dev/null
done

i=0
while read -r folder; do
  $b mkdir -p "/new$folder"
  plan9 cache=mmap "share$i" "/new$folder"
  i=$((i + 1))
done </run/folders
release=$($b uname -r)
$b mkdir -p "/new/lib/modules/$release"
$b mount --bind "/new$($b cat /run/modules)/$release" "/new/lib/modules/$release"
$b cp /run/* /new/run/
ulimit -l unlimited
ulimit -n 65536

port_named() {
  for p in /sys/class/virtio-ports/*; do
    [ "$($b cat "$p/name")" = "$1" ] && echo "/dev/${p##*/}"
  done
}
# A port opens only once, so a pipe stands before it: the command may open its outputs as often as it likes. All ends
# are opened before the processes start, or one would wait for the other.
$b mkfifo /out /err
exec 3<>/out 4<>/err 5</out 6</err
$b cat <&5 3>&- 4>&- 6<&- >"$(port_named out)" &
$b cat <&6 3>&- 4>&- 5<&- >"$(port_named err)" &
exec 5<&- 6<&-
$b chroot /new /bin/bash /run/command </dev/null >&3 2>&4 3>&- 4>&-
status=$?
exec 3>&- 4>&-
tries=0
while [ $tries -lt 40 ] && $b pidof cat >/dev/null; do $b usleep 25000; tries=$((tries + 1)); done
$b sync
echo $status >"$(port_named status)"
$b poweroff -f
