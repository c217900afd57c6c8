#!/usr/bin/env bash
# Installs each package of a release in clean systems and uses it there, as a new user would: Debian 12 and 13 on
# x86-64, and Debian 12 on aarch64 under QEMU. A server with the simulated GPU runs on this machine's loopback; the
# program of NVIDIA that lists GPUs, and examples/julia, run in the clean system. Then it is removed, and nothing may be
# left. Says what each step took, and at the end in a table what a user waits for.
#
#   test.sh RELEASE [SYSTEM…]     RELEASE: what release.sh made; SYSTEM: bookworm-amd64, trixie-amd64, bookworm-arm64
#
# Needs root, and what packages.sh calls install. build/systems keeps the systems, which are made once (minutes each).
set -euo pipefail
release=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- bookworm-amd64 trixie-amd64 bookworm-arm64
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "test.sh needs root, to change into other systems" >&2; exit 1; }
work=$(mktemp -d)
here=$PWD/e2e
. "$here/debian.sh"
systems=build/systems
mkdir -p "$systems"
pids=() mounts=() registered=
end() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  [ ! -e "$work/gpg" ] || gpgconf --homedir "$work/gpg" --kill all
  [ -z "$registered" ] || echo -1 >/proc/sys/fs/binfmt_misc/qemu-aarch64
  for ((i = ${#mounts[@]} - 1; i >= 0; i--)); do umount "${mounts[i]}" || umount -l "${mounts[i]}"; done
  rm -rf "$work"
}
trap end EXIT

part() { # WHAT: the steps behind it are of this
  now=$1
  echo " $1"
}
step() { # WHAT COMMAND…: its output is shown where it fails, or where VERBOSE is set
  local began took rc=0
  began=$(date +%s%N)
  "${@:2}" >"$work/out" 2>&1 || rc=$?
  took=$((($(date +%s%N) - began) / 1000000))
  printf '  %-62s %6d ms%s\n' "$1" $took "$([ $rc = 0 ] || echo "  FAILED ($rc)")"
  printf '%s\t%s\t%s\t%s\n' "${system:-}" "${now:-}" "$1" $took >>"$work/times"
  if [ $rc != 0 ] || [ -n "${VERBOSE:-}" ]; then sed 's/^/    | /' "$work/out"; fi
  [ $rc = 0 ] || exit 1
}
table() { # what a user waits for, by system and form, in Markdown
  awk -F '\t' '
    BEGIN { print "| system | form | install | `scuda login` | `nvidia-smi -L` | a CUDA program | remove |"
            print "|---|---|---|---|---|---|---|" }
    $3 ~ /^(apt install .*client|sh install.sh --from|cp$|rpm -i scuda-client)/ {
      k = $1 " | " $2
      order[++n] = k
      t[k, 1] = $4
    }
    $3 == "scuda login" && !((k, 2) in t) { t[k, 2] = $4 }
    $3 ~ /nvidia-smi -L$/ { t[k, 3] = $4 }
    $3 ~ /julia, a CUDA program$/ { t[k, 4] = $4 }
    $3 ~ /^(apt purge|sh install.sh --remove|rm$|rpm -e)/ { t[k, 5] = $4 }
    END {
      for (i = 1; i <= n; i++) {
        line = "| " order[i]
        for (j = 1; j <= 5; j++)
          line = line " | " ((order[i], j) in t ? sprintf("%.2f s", t[order[i], j] / 1000) : "–")
        print line " |"
      }
    }' "$work/times"
}
says() { # PATTERN COMMAND…
  local out
  out=$("${@:2}" 2>&1) || { echo "$out"; return 1; }
  echo "$out"
  grep -q -e "$1" <<<"$out"
}
mounted() { # ARGUMENT… of mount, the last one is where
  mount "$@"
  mounts+=("${!#}")
}
unmount() {
  umount "${mounts[-1]}"
  unset 'mounts[-1]'
}

emulation() { # the kernel starts programs of aarch64 by QEMU
  local entry=/proc/sys/fs/binfmt_misc
  [ -e $entry/register ] || mounted -t binfmt_misc none $entry
  if [ ! -e $entry/qemu-aarch64 ]; then
    cat /usr/lib/binfmt.d/qemu-aarch64.conf >$entry/register
    registered=1
  fi
}

make_system() { # SYSTEM
  debootstrap --arch="${1#*-}" --variant=minbase "${1%-*}" "$systems/$1.part" "$(debian_mirror)"
  rm -rf "$systems/$1.part"/var/cache/apt/archives/*.deb
  mv "$systems/$1.part" "$systems/$1"
}

fresh() { # SYSTEM: a clean one at $root, in memory
  root=$work/$1/root
  mkdir -p "$work/$1"
  mounted -t tmpfs none "$work/$1"
  mkdir "$work/$1"/{upper,work,root}
  mounted -t overlay none -o "lowerdir=$PWD/$systems/$1,upperdir=$work/$1/upper,workdir=$work/$1/work" "$root"
  mounted --bind /dev "$root/dev"
  mounted -t proc proc "$root/proc"
  mkdir "$root/release" "$root/programs"
  mounted --bind "$release" "$root/release"
  mounted --bind "$work/programs-${1#*-}" "$root/programs"
}
stale() { # the counterpart
  local i
  for i in 1 2 3 4 5 6; do unmount; done
}
clean=(/usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive)
in_root() { chroot "$root" "${clean[@]}" "$@"; }
list() { # what files there are, but what package managers write for themselves
  (cd "$root" && find . -xdev ! -path './var/lib/dpkg*' ! -path './var/lib/rpm*' ! -path './var/log/*' \
    ! -path './var/cache/apt*' ! -path './var/lib/apt*' ! -path './var/cache/debconf*' ! -path './tmp*' | sort)
}
nothing_left() { diff "$work/before" <(list); }

programs() { # ARCHITECTURE COMPILER MACHINE: NVIDIA's lister of GPUs as Debian distributes it, and our example
  local folder=$work/programs-$1 smi=$work/smi-$1 apt
  mkdir -p "$folder" "$smi" &&
    debian_apt bookworm non-free "$1" && (cd "$smi" && "${apt[@]}" download nvidia-smi && dpkg -x nvidia-smi_*.deb .) &&
    cp "$smi/usr/lib/nvidia/current/nvidia-smi" examples/julia/julia.ptx testdata/kernels/kernels.ptx "$work/token" \
      "$folder/" &&
    tar -C "$smi" -xzf "$release/$(one "scuda-*-linux-$3.tar.gz")" --strip-components=1 --wildcards \
      '*/lib/scuda/*.so*' &&
    linked=(-I shim/include -L "$smi/lib/scuda" -l:libcuda.so.1 -Wl,--allow-shlib-undefined) &&
    "$2" -O2 -o "$folder/julia" examples/julia/julia.c "${linked[@]}" &&
    "$2" -std=gnu11 -O2 -o "$folder/bystander" e2e/programs/bystander.c "${linked[@]}" -lm -lpthread
}

source_for_apt() { # ARCHITECTURE: signed with a key of this test
  export GNUPGHOME=$work/gpg
  [ -e "$GNUPGHOME" ] || { mkdir -m 700 "$GNUPGHOME" && gpg --batch --quiet --passphrase '' --quick-generate-key \
    test@example.com ed25519 sign never; } || return
  SCUDA_APT_KEY=test@example.com deploy/apt.sh "$release" "$work/programs-$1/apt"
}

uses() { # how scuda is called in the clean system
  step "scuda --version" says '^scuda' in_root "$@" --version
  step "scuda login" says '.' in_root "$@" login "$address" --token-file /programs/token --fingerprint "$fingerprint"
  step "scuda status" says '.' in_root "$@" status
  # QEMU knows no process without an exit signal, and NVML's library starts such (shim/front/base/connect.c).
  [ "$arch" = arm64 ] ||
    step "scuda run -- nvidia-smi -L" says '^GPU 0: ' in_root "$@" run -- /programs/nvidia-smi -L
  step "scuda run -- julia, a CUDA program" says 'pixels computed' in_root "$@" run -- /programs/julia \
    /programs/julia.ptx /tmp/julia.png
  step "scuda logout" in_root "$@" logout
  rm -rf "$root/root/.config" "$root/root/.cache" # the user's own
}

# Upgrades both packages and goes back while a server of them has a session: the session goes on until it ends by
# itself, and who has logged in once is let in by each server.
installed_server() { # ADDRESS
  : >"$work/own" # before the server is there: what the last one wrote is not to be read as its words
  chroot "$root" "${clean[@]}" scuda serve "$1" --gpu sim --tls always --cache-dir none --state-dir /tmp/state \
    --token-file /etc/scuda/token >"$work/own" 2>&1 &
  own=$!
  pids+=("$own")
  for ((i = 0; i < 300; i++)); do
    at=$(awk '/^listening on / {print $3; exit}' "$work/own")
    [ -z "$at" ] || return 0
    sleep 0.1
  done
  cat "$work/own"
  return 1
}
newer() { # ARCHITECTURE: the same packages as a later release
  local kind
  for kind in client server; do
    rm -rf "$work/repacked"
    dpkg-deb -R "$release/$(one "scuda-${kind}_*_$1.deb")" "$work/repacked" &&
      sed -i '/^$/d' "$work/repacked/DEBIAN/conffiles" &&
      sed -i -E 's/^Version: .*/Version: 99/; s/(scuda-client) \(= [^)]*\)/\1 (= 99)/' \
        "$work/repacked/DEBIAN/control" &&
      dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/repacked" "$work/programs-$1/$kind.deb" || return
  done
}
session() { # starts a program that computes until its input ends
  rm -f "$work/input"
  mkfifo "$work/input"
  : >"$work/session"
  chroot "$root" "${clean[@]}" scuda run -- /programs/bystander /programs <"$work/input" >"$work/session" 2>&1 &
  program=$!
  exec 7>"$work/input"
  for ((i = 0; i < 300; i++)); do
    ! grep -q '^ready$' "$work/session" || return 0
    sleep 0.1
  done
  cat "$work/session"
  return 1
}
drained() { # the server is told to end, and the session ends in its own time
  kill -TERM "$own"
  for ((i = 0; i < 100; i++)); do
    ! grep -q 'msg=draining' "$work/own" || break
    sleep 0.1
  done
  grep 'msg=draining' "$work/own" && kill -0 "$program" && exec 7>&- && wait "$program" && cat "$work/session" &&
    grep -q '^bystander ok$' "$work/session" && wait "$own"
}
upgrade_and_back() { # ARCHITECTURE
  local own at= program old=("/release/$(one "scuda-client_*_$1.deb")" "/release/$(one "scuda-server_*_$1.deb")")
  step "the same packages as a later release" newer "$1"
  step "a server of the installed package" installed_server 127.0.0.1:0
  step "scuda login" in_root scuda login "$at" --token-file /etc/scuda/token \
    --fingerprint "$(grep -oE 'sha256:[^ ]+' "$work/own" | head -n 1)"
  step "a program on it" session
  step "upgrade beneath it" in_root apt-get install -y /programs/client.deb /programs/server.deb
  step "a new program on the old server" says 'pixels computed' in_root scuda run -- /programs/julia \
    /programs/julia.ptx /tmp/julia.png
  step "the server drains" drained
  step "the newer server, at the same address" installed_server "$at"
  step "it knows who logged in before" in_root scuda info
  step "a program on it" session
  step "back to the older packages" in_root apt-get install -y --allow-downgrades "${old[@]}"
  step "the server drains" drained
  step "the older server" installed_server "$at"
  step "it knows who logged in before" in_root scuda info
  kill "$own" && wait "$own" || true
  rm -rf "$root/root/.config" "$root/root/.cache"
}

one() { # PATTERN: the file of the release that it names
  local found=("$release"/$1)
  [ ${#found[@]} -eq 1 ] && [ -e "${found[0]}" ] || { echo "which file is $1?" >&2; exit 1; }
  basename "${found[0]}"
}

serve() { # a simulated GPU on loopback
  build/scuda token create -o "$work/token" >/dev/null
  build/scuda serve 127.0.0.1:0 --gpu sim --tls always --cache-dir none --state-dir "$work/state" \
    --token-file "$work/token" --log warn >"$work/server" 2>&1 &
  pids+=($!)
  for ((i = 0; i < 300; i++)); do
    address=$(awk '/^listening on / {print $3; exit}' "$work/server")
    fingerprint=$(grep -oE 'sha256:[^ ]+' "$work/server" | head -n 1) || true
    [ -z "$address" ] || [ -z "$fingerprint" ] || return 0
    sleep 0.1
  done
  cat "$work/server"
  return 1
}

try() { # SYSTEM
  local arch=${1#*-} machine=x86_64
  [ "$arch" = amd64 ] || machine=aarch64
  echo "== $1"
  [ -e "$systems/$1" ] || step "the system itself" make_system "$1"
  if [ ! -e "$work/programs-$arch" ]; then
    local compiler=cc
    [ "$arch" = amd64 ] || compiler=aarch64-linux-gnu-gcc
    step "programs to run there" programs "$arch" $compiler $machine
  fi

  part "Debian packages"
  fresh "$1"
  list >"$work/before"
  step "apt install ./scuda-client….deb" in_root apt-get install -y --no-install-recommends \
    "/release/$(one "scuda-client_*_$arch.deb")"
  uses scuda
  step "man pages, completions, changelog" in_root sh -c 'ls /usr/share/bash-completion/completions/scuda \
    /usr/share/doc/scuda-client/copyright || dpkg -L scuda-client | grep -q man1/scuda-run'
  step "no server beside the program: units, /etc" in_root sh -c '! dpkg -L scuda-client | grep -E "systemd|^/etc"'
  step "apt install ./scuda-server….deb" in_root apt-get install -y --no-install-recommends \
    "/release/$(one "scuda-server_*_$arch.deb")"
  step "its token is for root alone" says '^600$' in_root stat -c %a /etc/scuda/token
  step "the program that the unit starts is there" in_root sh -c \
    'test -x "$(sed -n "s/^ExecStart=\([^ ]*\).*/\1/p" /usr/lib/systemd/system/scuda.service)"'
  [ "$arch" = arm64 ] || upgrade_and_back "$arch" # no GPU is simulated fast enough there
  step "apt install ./scuda-pool….deb" in_root apt-get install -y --no-install-recommends \
    "/release/$(one "scuda-pool_*_$arch.deb")"
  step "scuda-pool --version" says "^scuda-pool version" in_root scuda-pool --version
  step "apt purge" in_root apt-get purge -y scuda-pool scuda-server scuda-client
  step "nothing is left" nothing_left
  stale

  part "Debian packages, from an apt source"
  [ -e "$work/programs-$arch/apt" ] || step "the source" source_for_apt "$arch"
  fresh "$1"
  list >"$work/before"
  local only=(-o Dir::Etc::sourcelist=/etc/apt/sources.list.d/scuda.list -o Dir::Etc::sourceparts=-) # no mirror's
  echo "deb [signed-by=/programs/apt/scuda.asc] file:/programs/apt stable main" \
    >"$root/etc/apt/sources.list.d/scuda.list"
  step "apt update" says 'stable InRelease' in_root apt-get "${only[@]}" --error-on=any update
  step "apt install scuda-client" in_root apt-get "${only[@]}" install -y --no-install-recommends scuda-client
  uses scuda
  step "apt purge" in_root apt-get purge -y scuda-client
  rm "$root/etc/apt/sources.list.d/scuda.list"
  step "nothing is left" nothing_left
  stale

  part "Archive, by install.sh"
  fresh "$1"
  list >"$work/before"
  step "sh install.sh --from …" in_root sh /release/install.sh --from /release --prefix /usr/local
  uses /usr/local/bin/scuda
  step "sh install.sh --remove" in_root sh /release/install.sh --remove --prefix /usr/local
  step "nothing is left" nothing_left
  stale

  part "One file"
  fresh "$1"
  list >"$work/before"
  step "cp" in_root cp "/release/$(one "scuda-*-linux-$machine")" /usr/local/bin/scuda
  uses scuda
  step "rm" in_root rm /usr/local/bin/scuda
  step "nothing is left" nothing_left
  stale

  part "RPM packages, by Debian's rpm (there is no clean system that has them here)"
  fresh "$1"
  # The folders that such a system's base package has, and so ours do not own.
  mkdir -p "$root/var/lib/rpm" "$root/usr/share/fish/vendor_completions.d" "$root/usr/share/zsh"
  list >"$work/before"
  local rpm=(rpm "--root=$root" --dbpath=/var/lib/rpm --nodeps) install=(-i --ignorearch)
  step "rpm -i scuda-client….rpm" "${rpm[@]}" "${install[@]}" "$release/$(one "scuda-client-*.$machine.rpm")"
  uses scuda
  step "rpm -i scuda-server….rpm" "${rpm[@]}" "${install[@]}" \
    "$release/$(one "scuda-server-*.$machine.rpm")"
  step "rpm -i scuda-pool….rpm" "${rpm[@]}" "${install[@]}" "$release/$(one "scuda-pool-*.$machine.rpm")"
  step "rpm -e" "${rpm[@]}" -e scuda-pool scuda-server scuda-client
  step "nothing is left" nothing_left
  stale
}

image() { # builds what the images have, of what .dockerignore lets through
  mkdir "$work/context"
  comm -23 <(git ls-files | sort) <(git ls-files -ci -X .dockerignore | sort) |
    tar -cf - -T - | tar -C "$work/context" -xf - && "$work/context/deploy/docker/build.sh" "$work/image"
}
try_image() {
  echo "== what the container images have, on bookworm-amd64"
  system=bookworm-amd64 now="Container image"
  step "the build" image
  fresh bookworm-amd64
  cp -r "$work/image/." "$root/usr/"
  local arch=amd64
  uses scuda
  stale
}

step "a server with a simulated GPU" serve
[[ " $* " != *-arm64\ * ]] || emulation
for system; do try "$system"; done
[[ " $* " != *\ bookworm-amd64\ * ]] || try_image
table
echo "all packages were installed, used and removed in $* ($SECONDS s)"
