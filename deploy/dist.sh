#!/usr/bin/env bash
# Packs what make build made, in a folder (build/dist if none is named):
#   scuda-VERSION-linux-ARCH.tar.gz        bin/, lib/scuda/, share/ (man pages, completions), the files of deploy/, the
#                                          documents and the changelog, for any prefix
#   scuda-VERSION-linux-ARCH               one file, the program with the libraries inside
#   scuda-client_VERSION_ARCH.deb, .rpm    the same below /usr, without a server in the program and what one needs
#   scuda-server_VERSION_ARCH.deb, .rpm    the whole program, units, a token, alert rules, the dashboard
#   scuda-pool_VERSION_ARCH.deb, .rpm      scuda-pool and its units, where it was built (make pool)
# The same build gives the same bytes (but .rpm, which names the machine that packed it).
#
#   dist.sh [FOLDER [BUILD]]               BUILD: the folder with what was built, build; for another processor too
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(./version.sh)
out=${1:-build/dist}
build=${2:-build}
mkdir -p "$out"
epoch=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$epoch}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $(readelf -h "$build/scuda" | awk '/Machine:/ {print $NF}') in
  AArch64) machine=aarch64 arch=arm64 strip=aarch64-linux-gnu-strip ;;
  *) machine=x86_64 arch=amd64 strip=strip ;;
esac
[ "$(uname -m)" != $machine ] || strip=strip

program() { # PREFIX: the program, what it starts, the client's libraries, man pages, completions
  install -D -t "$1/bin" "$build/scuda"
  install -D -t "$1/lib/scuda" "$build/scuda-bench" "$build/scuda-load" "$build/scuda-demo" "$build/lib/scuda-connect"
  cp -P "$build"/lib/*.so* "$1/lib/scuda/"
  "$strip" "$1/bin/scuda"
  find "$1/lib/scuda" -type f -name '*.so*' -exec chmod 644 {} + -exec "$strip" --strip-unneeded {} +
  build/scuda man "$1/share/man/man1"
  gzip -9n "$1"/share/man/man1/*
  local shell file
  for shell in bash:bash-completion/completions/scuda zsh:zsh/vendor-completions/_scuda \
    fish:fish/vendor_completions.d/scuda.fish; do
    file=$1/share/${shell#*:}
    install -d "${file%/*}"
    build/scuda completion "${shell%%:*}" >"$file"
  done
}

# Links of documents to what is not packed become plain text.
links() { # FOLDER
  find "$1" -name '*.md' -exec perl -i -pe 'BEGIN { use File::Basename }
    s{(!?)\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)}{-e dirname($ARGV) . "/$3" ? $& : $2}ge' {} +
}

# The version as packages have it: 0.3.0-dev+g1a2b3c is before 0.3.0, and a later commit's is after an earlier one's.
date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)
packaged=$(printf '%s' "$version" | sed -E "s/^([0-9.]+)-/\1~/; s/^([0-9.]+~dev)\+/\1$date+/" |
  tr -c 'A-Za-z0-9.+~' .)
case $packaged in [0-9]*) ;; *) packaged=0+$packaged ;; esac

name=scuda-$version-linux-$machine
top=$work/$name
program "$top"
mkdir "$top/deploy"
cp -r deploy/docker deploy/prometheus "$top/deploy/"
slurm() { # FOLDER: what a site copies beside its slurm.conf
  install -D -t "$1" deploy/slurm/{prolog,epilog,task-prolog,epilog-slurmctld}
  install -D -m 644 -t "$1" deploy/slurm/*.lua deploy/slurm/*.conf deploy/slurm/*.yaml
}
slurm "$top/deploy/slurm"
install -D -m 644 -t "$top/deploy/grafana" deploy/grafana/*.json
install -D -m 644 -t "$top/deploy/systemd" deploy/systemd/*.service
cp -r LICENSE CHANGELOG.md README.md docs "$top/"
rm -r "$top/docs/site" # what makes a site of them
links "$top"
chmod -R u=rwX,go=rX "$top"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
  gzip -9n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
SCUDA_LIB=$top/lib/scuda build/scuda bundle --program "$top/bin/scuda" "$out/$name"
echo "$out/$name"

install -d "$work/client" "$work/server"
cp -r "$top/bin" "$top/lib" "$top/share" "$work/client/"
paper() { # PACKAGE: what each has to bring
  local doc=$work/$1/share/doc/scuda-$1
  install -D -m 644 LICENSE "$doc/copyright"
  gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
}
paper client
paper server
# The client's program has the one with the server do what it cannot do itself (cmd/scuda/clientonly.go).
install -D "$top/bin/scuda" "$work/server/lib/scuda/scuda-Linux-$machine"
install "$build/scuda-client" "$work/client/bin/scuda"
"$strip" "$work/client/bin/scuda"
install -d "$work/server/share/man/man1"
for verb in serve service perf exporter; do
  find "$work/client/share/man/man1" \( -name "scuda-$verb.*" -o -name "scuda-$verb-*" \) \
    -exec mv -t "$work/server/share/man/man1" {} +
done
cp -r "$top/docs" "$work/client/share/doc/scuda-client/docs"
links "$work/client/share/doc"
slurm "$work/client/share/scuda/slurm"
install -D -m 644 -t "$work/server/lib/systemd/system" deploy/systemd/*.service
install -D -m 644 -t "$work/server/share/scuda/prometheus" deploy/prometheus/*
install -D -m 644 -t "$work/server/share/scuda/grafana" deploy/grafana/*.json
kinds=(client server)
if [ -x "$build/scuda-pool" ]; then # stripped by its build
  kinds+=(pool)
  paper pool
  install -D -t "$work/pool/bin" "$build/scuda-pool"
  install -D -m 644 -t "$work/pool/lib/systemd/system" deploy/pool/systemd/*.service
  install -D -m 644 -t "$work/pool/share/scuda-pool/prometheus" deploy/prometheus/scuda-pool.rules.yml
  install -D -m 644 -t "$work/pool/share/scuda-pool/grafana" deploy/grafana/scuda-pool.json
  install -D -m 644 -t "$work/pool/share/doc/scuda-pool/docs" docs/pool.md
  links "$work/pool/share/doc"
fi
for kind in "${kinds[@]}"; do chmod -R u=rwX,go=rX "$work/$kind"; done
GLIBC=$(find "$top/bin" "$top/lib" -type f -exec readelf -VW {} + 2>/dev/null | grep -oE 'GLIBC_[0-9.]+' | cut -d_ -f2 |
  sort -uV | tail -1)

# It writes both kinds of packages. Built once.
nfpm=v2.41.3
tool=$PWD/build/tools/nfpm-$nfpm
if [ ! -x "$tool" ]; then
  GOBIN=$work/bin GOFLAGS='' GOARCH='' "${GO:-go}" install github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm
  mkdir -p "${tool%/*}"
  mv "$work/bin/nfpm" "$tool"
fi
export GLIBC PACKAGE_VERSION=$packaged ROOT=$work ARCH=$arch
for kind in "${kinds[@]}"; do
  for file in "deb scuda-${kind}_${packaged}_$arch.deb" "rpm scuda-$kind-$packaged.$machine.rpm"; do
    "$tool" package -f deploy/package/$kind.yaml -p "${file% *}" -t "$out/${file#* }" >"$work/said" ||
      { cat "$work/said" >&2; exit 1; }
    echo "$out/${file#* }"
  done
done
