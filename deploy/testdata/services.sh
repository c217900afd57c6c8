# Starts both services as an operator does, uses them, and stops them. It runs in a container that systemd boots; the
# mark at the end says that all went well.
set -eux
scuda=/opt/scuda/bin
mkdir -p /etc/scuda
(umask 077; echo 0123456789abcdef0123456789abcdef >/etc/scuda/token)
echo SCUDA_GPU=sim >/etc/scuda/server.env
export SCUDA_TOKEN_FILE=/etc/scuda/token SCUDA_SERVER=127.0.0.1:14833

metrics() { # PORT FILE
  for _ in $(seq 100); do
    if { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; then
      printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
      cat <&3 >"$2"
      return
    fi
    sleep 0.1
  done
  return 1
}

systemctl start scuda scuda-exporter
metrics 9836 /tmp/server
metrics 9835 /tmp/exporter
"$scuda/scuda" info
for _ in $(seq 100); do # that of scuda info may be there for a moment
  ! test "$("$scuda/scuda" ps)" = 'no sessions' || break
  sleep 0.1
done
test "$("$scuda/scuda" ps)" = 'no sessions'
"$scuda/scuda" drain
if "$scuda/scuda" run -- "$scuda/../lib/scuda/scuda-load" up 4096 3; then exit 1; fi
"$scuda/scuda" drain --undo
"$scuda/scuda" run -- "$scuda/../lib/scuda/scuda-load" up 4096 3
"$scuda/scuda" run -- "$scuda/scuda" info
metrics 9836 /tmp/server
grep '^scuda_calls_total{class="copy"}' /tmp/server
metrics 9835 /tmp/exporter
grep '^scuda_.*cuMemcpyHtoD' /tmp/exporter
ps -o user=,args= -p "$(systemctl show -P MainPID scuda)"
users=$(ps -o uid=,args= -e | grep '[s]cuda worker' | sed 's/ scuda.*//')
test -n "$users"
for uid in $users; do test "$uid" -ge 2100000000 -a "$uid" -le 2100009999; done
grep -q '^CapEff:\s*00000000000000e0$' "/proc/$(systemctl show -P MainPID scuda-spawner)/status"
grep -q '^CapEff:\s*0*$' "/proc/$(systemctl show -P MainPID scuda-exporter)/status"

# The pool: an authority, its etcd, an announcer of this server, and a program with a GPU of it.
export PATH=$scuda:/opt/pool/bin:$PATH XDG_CONFIG_HOME=/tmp/config
scuda ca init
scuda ca issue --server 127.0.0.1
scuda ca issue gpu1
ca=/tmp/config/scuda/ca
install -m 600 $ca/ca.crt /etc/scuda/ca.crt
install -m 600 $ca/127.0.0.1.crt /etc/scuda/pool.crt
install -m 600 $ca/127.0.0.1.key /etc/scuda/pool.key
install -m 600 $ca/gpu1.crt $ca/gpu1.key /etc/scuda
export SCUDA_POOL=https://127.0.0.1:2379 SCUDA_POOL_CA=/etc/scuda/ca.crt
export SCUDA_POOL_CERT=/etc/scuda/gpu1.crt SCUDA_POOL_KEY=/etc/scuda/gpu1.key
{ env | grep '^SCUDA_POOL'; echo POOL_SERVER=127.0.0.1:14833; echo POOL_LISTEN=127.0.0.1:2379
  echo POOL_METRICS=127.0.0.1:9837; echo POOL_ANNOUNCE_METRICS=127.0.0.1:9838; } >/etc/scuda/pool.env
systemctl start scuda-pool scuda-pool-announce
for _ in $(seq 100); do
  ! scuda-pool status | grep -q '^127.0.0.1:14833 .* free$' || break
  sleep 0.1
done
scuda-pool status
scuda-pool run -- scuda run -- "$scuda/../lib/scuda/scuda-load" up 4096 3
metrics 9837 /tmp/pool
grep '^scuda_pool_leases_taken_total 1$' /tmp/pool
metrics 9838 /tmp/announce
grep '^scuda_pool_server_announced{server="127.0.0.1:14833"} 1$' /tmp/announce
grep -q '^CapEff:\s*0*$' "/proc/$(systemctl show -P MainPID scuda-pool)/status"
grep -q '^CapEff:\s*0*2$' "/proc/$(systemctl show -P MainPID scuda-pool-announce)/status"
systemctl stop scuda-pool-announce
test "$(scuda-pool status | grep -c 127.0.0.1:14833)" = 0
systemctl stop scuda-pool

systemctl kill --kill-whom=main --signal=KILL scuda-spawner
for _ in $(seq 100); do
  if "$scuda/scuda" run -- "$scuda/../lib/scuda/scuda-load" up 4096 3; then break; fi
  sleep 0.1
done
systemctl restart scuda
metrics 9836 /tmp/server
"$scuda/scuda" run -- "$scuda/../lib/scuda/scuda-load" up 4096 3
journalctl --sync
test "$("$scuda/scuda" logs --lines 10000 | grep -c '^listening on')" = 2
test "$("$scuda/scuda" logs --lines 1 | wc -l)" = 1
systemctl stop scuda scuda-spawner scuda-exporter
test "$("$scuda/scuda" logs --since 1h | grep -c '^listening on')" = 2 # of a service that is down
test -z "$("$scuda/scuda" logs --since 2100-01-01)"
! systemctl is-active scuda-spawner
! systemctl is-failed scuda scuda-exporter scuda-spawner
echo services work
