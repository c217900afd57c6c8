#!/usr/bin/env bash
# Makes a source for apt of the packages of a release, a folder that any web server can give out, or apt can read by
# itself (file:). What a call before put there stays, so that a source has several releases.
#
#   apt.sh RELEASE FOLDER      RELEASE: what release.sh or dist.sh made; FOLDER: of the source, made where it is missing
#
# With SCUDA_APT_KEY, a key that gpg has the private part of (an id, a fingerprint, an address), the source is signed,
# and its public key lies in it as scuda.asc. It needs apt-ftparchive (package apt-utils), and gpg to sign.
set -euo pipefail
[ $# = 2 ] || { echo "usage: apt.sh RELEASE FOLDER" >&2; exit 2; }
shopt -s nullglob
packages=("$1"/*.deb)
[ ${#packages[@]} -gt 0 ] || { echo "apt.sh: there are no packages in $1; make release makes them" >&2; exit 1; }
command -v apt-ftparchive >/dev/null || { echo "apt.sh needs apt-ftparchive; install apt-utils" >&2; exit 1; }
mkdir -p "$2/pool"
for package in "${packages[@]}"; do
  there=$2/pool/${package##*/}
  # One version is one file: who has installed it, and who has its checksum, would not get another one.
  if [ -e "$there" ] && ! cmp -s "$package" "$there"; then
    echo "apt.sh: $there is another package of the same version" >&2
    exit 1
  fi
  cp "$package" "$there"
done
cd "$2"
new=$(mktemp -d ./dists.XXXXXX)
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
made=(apt-ftparchive -q -o APT::FTPArchive::MD5=false -o APT::FTPArchive::SHA1=false)
for arch in amd64 arm64; do
  list=$new/stable/main/binary-$arch
  mkdir -p "$list"
  "${made[@]}" --arch $arch packages pool >"$list/Packages"
  gzip -9nk "$list/Packages"
done
about=()
for field in Origin=scuda Label=scuda Suite=stable Codename=stable Components=main Architectures="amd64 arm64"; do
  about+=(-o "APT::FTPArchive::Release::$field")
done
"${made[@]}" "${about[@]}" release "$new/stable" >"$new/Release"
mv "$new/Release" "$new/stable/Release"
rm -f scuda.asc
if [ -n "${SCUDA_APT_KEY:-}" ]; then
  sign=(gpg --batch --yes --quiet --local-user "$SCUDA_APT_KEY" --armor)
  "${sign[@]}" --clearsign -o "$new/stable/InRelease" "$new/stable/Release"
  "${sign[@]}" --detach-sign -o "$new/stable/Release.gpg" "$new/stable/Release"
  gpg --batch --armor --export "$SCUDA_APT_KEY" >scuda.asc
  how="signed by $SCUDA_APT_KEY"
else
  how="not signed: apt takes it only with [trusted=yes]"
fi
rm -rf dists
mv "$new" dists
echo "a source for apt is in $2 ($how)"
