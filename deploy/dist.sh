#!/usr/bin/env bash
# Makes of what make build made, in a folder (build/dist if none is named):
#   scuda-VERSION-linux-ARCH.tar.gz  bin/, lib/scuda/, share/ (man pages, completions), the files of deploy/ and the
#                                    documents, for any prefix
#   scuda-VERSION-linux-ARCH         one file, the program with the libraries inside
#   scuda_VERSION_ARCH.deb           the same below /usr, with the units where systemd finds them
# The same build gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(./version.sh)
out=${1:-build/dist}
rm -rf "$out"
mkdir -p "$out"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

programs() { # PREFIX
  install -D -t "$1/bin" build/scuda build/scuda-bench build/scuda-load
  install -d "$1/lib/scuda"
  cp -P build/lib/*.so* "$1/lib/scuda/"
  find "$1/lib/scuda" -type f -exec chmod 644 {} +
  install -t "$1/lib/scuda" build/lib/scuda-connect # started by the libraries beside it
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

name=scuda-$version-linux-$(uname -m)
top=$out/$name
programs "$top"
mkdir -p "$top/deploy"
install -D -m 644 -t "$top/deploy/grafana" deploy/grafana/scuda.json
cp -r deploy/prometheus "$top/deploy/"
install -D -m 644 -t "$top/deploy/systemd" deploy/systemd/*.service
cp -r LICENSE README.md docs "$top/"
tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
  gzip -n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
rm -rf "$top"
build/scuda bundle "$out/$name"
echo "$out/$name"

command -v dpkg-deb >/dev/null || { echo "no dpkg-deb here: no Debian package" >&2; exit 0; }
root=$out/root
programs "$root/usr"
install -D -m 644 -t "$root/usr/lib/systemd/system" deploy/systemd/*.service
install -D -m 644 -t "$root/usr/share/scuda/prometheus" deploy/prometheus/*
install -D -m 644 -t "$root/usr/share/scuda/grafana" deploy/grafana/scuda.json
install -D -m 644 -t "$root/usr/share/doc/scuda" README.md
cp -r docs/. "$root/usr/share/doc/scuda/"
install -D -m 644 LICENSE "$root/usr/share/doc/scuda/copyright"
libc=$(objdump -T build/scuda build/scuda-bench build/scuda-load build/lib/*.so* | grep -oE 'GLIBC_[0-9.]+' |
  cut -d_ -f2 | sort -uV | tail -1)
arch=$(dpkg --print-architecture)
debian=$(printf '%s' "$version" | sed 's/^\([0-9.]*\)-/\1~/' | tr -c 'A-Za-z0-9.+~' .)
case $debian in [0-9]*) ;; *) debian=0+$debian ;; esac
install -d -m 755 "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: scuda
Version: $debian
Architecture: $arch
Maintainer: scuda maintainers <maintainers@scuda.dev>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: libc6 (>= $libc)
Suggests: prometheus, libibverbs1
Section: utils
Priority: optional
Homepage: https://scuda.dev
Description: GPUs of other machines for programs that use NVIDIA's CUDA
 scuda replaces the CUDA driver library on a machine without a GPU; the calls
 are carried out by a GPU of another machine, where scuda is the server.
 The client's libraries lie in /usr/lib/scuda, where only "scuda run" and those
 who set LD_LIBRARY_PATH find them. Neither service is started by itself.
END
chmod -R u=rwX,go=rX "$root"
dpkg-deb --root-owner-group -Zgzip -b "$root" "$out/scuda_${debian}_$arch.deb" >/dev/null
rm -rf "$root"
echo "$out/scuda_${debian}_$arch.deb"
