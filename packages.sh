#!/usr/bin/env bash
# Installs the Debian packages that something needs, and only those of them that are missing:
#
#   packages.sh build|test|lint|release|install|slurm|kubernetes|site…
#
# Each package stands beside what shows that it is there, a command or a file, so a system whose package has another
# name is not touched either. Prometheus is in no set: Debian starts it as a service. The tests take it out of its
# package (e2e/packaged.sh).
set -euo pipefail

set_of() {
  case $1 in
    # A compiler, and the headers of the RDMA libraries, which are loaded at run time where they are there.
    build) echo gcc=gcc libc6-dev=/usr/include/stdio.h make=make git=git \
      ca-certificates=/etc/ssl/certs/ca-certificates.crt libibverbs-dev=/usr/include/infiniband/verbs.h ;;
    # C++ for the test of our cuda.h, strace for the tests that watch connections, Java and Python for programs in such,
    # a browser for the report's test, systemd for that of the units, sshd and ip for those of scuda run --on, Lua (the
    # one of Debian's Slurm) for that of Slurm's plugins, what makes and signs a source for apt.
    test) echo g++=g++ strace=strace python3=python3 default-jre-headless=java chromium=chromium \
      systemd=systemd-analyze systemd-container=systemd-nspawn openssh-client=ssh openssh-server=/usr/sbin/sshd \
      lua5.1=lua5.1 iproute2=ip apt-utils=apt-ftparchive gpg=gpg gpg-agent=gpg-agent ;;
    # clang makes the programs of the probes, which are compared with those that are committed.
    lint) echo clang=clang llvm=llvm-strip libbpf-dev=/usr/include/bpf/bpf_helpers.h ;;
    release) echo gcc-aarch64-linux-gnu=aarch64-linux-gnu-gcc \
      libc6-dev-arm64-cross=/usr/aarch64-linux-gnu/include/stdio.h apt-utils=apt-ftparchive ;;
    install) echo debootstrap=debootstrap qemu-user-static=qemu-aarch64-static rpm=rpm cpio=cpio \
      apt-utils=apt-ftparchive gpg=gpg gpg-agent=gpg-agent ;;
    slurm) echo slurm-wlm=slurmctld munge=/usr/sbin/munged python3=python3 ;; # its daemons are started by the test
    # What the containers of the test's cluster are run by, and what is in their image.
    kubernetes) echo runc=runc containernetworking-plugins=/usr/lib/cni/ptp busybox-static=busybox ;;
    site) echo nodejs=node npm=npm ;;
    *) echo "packages.sh: there is no set $1" >&2; return 2 ;;
  esac
}

missing=()
for name; do
  list=$(set_of "$name")
  for entry in $list; do
    shows=${entry#*=}
    case $shows in
      /*) test -e "$shows" ;;
      *) command -v "$shows" >/dev/null ;;
    esac || missing+=("${entry%%=*}")
  done
done
if [ ${#missing[@]} -eq 0 ]; then
  exit
fi
command -v apt-get >/dev/null || { echo "missing here: ${missing[*]} (Debian's names)" >&2; exit 1; }
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing what is missing (for $*): ${missing[*]}"
case " ${missing[*]} " in
  *" openssh-server "*) # the tests start one of their own; the machine's is to stay off
    $as_root mkdir -p /etc/systemd/system
    for unit in ssh.service ssh.socket; do $as_root ln -sf /dev/null /etc/systemd/system/$unit; done ;;
esac
$as_root apt-get update -q
$as_root apt-get install -y -q --no-install-recommends "${missing[@]}"
echo "installed in $SECONDS s"
