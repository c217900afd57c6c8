#!/bin/sh
# Installs scuda below a folder, without a package manager and without root:
#
#   sh install.sh --from URL-OR-FOLDER [--prefix FOLDER]   the release that lies there (SHA256SUMS beside its archives)
#   sh install.sh --remove [--prefix FOLDER]               takes away what an earlier call installed
#
# The folder is /usr/local for root, else ~/.local. Nothing is unpacked whose checksum is not the one of SHA256SUMS.
# SCUDA_RELEASE may name the place instead of --from. The checksums tell a damaged download, and not the sender. With
# --key KEY (or SCUDA_RELEASE_KEY) nothing is installed unless SHA256SUMS.sig beside them is a signature of the one who
# has that key: a file with a public key of OpenSSH, or its text (ssh-ed25519 AAAA…), or a file of allowed signers, as
# ssh-keygen(1) describes it. That takes ssh-keygen. What was checked, and what was not, is said.
set -eu

fail() {
  echo "install.sh: $1" >&2
  exit "${2:-1}"
}
usage() {
  fail "$1; usage: install.sh --from URL-OR-FOLDER [--key KEY] [--prefix FOLDER] | --remove [--prefix FOLDER]" 2
}

if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
from=${SCUDA_RELEASE:-} key=${SCUDA_RELEASE_KEY:-} remove=
while [ $# -gt 0 ]; do
  case $1 in
    --from | --prefix | --key)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case $1 in --from) from=$2 ;; --prefix) prefix=$2 ;; *) key=$2 ;; esac
      shift 2
      ;;
    --remove) remove=1 && shift ;;
    *) usage "what is $1?" ;;
  esac
done
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
list=$prefix/lib/scuda/installed # what was installed, one a line; folders that were made end with /

if [ -n "$remove" ]; then
  [ -e "$list" ] || fail "nothing of scuda was installed below $prefix by this script"
  sort -r "$list" | while IFS= read -r file; do # what a folder holds stands before it then
    case $file in
      */) rmdir "$prefix/$file" 2>/dev/null || true ;; # another program's files are there
      *) rm -f "$prefix/$file" ;;
    esac
  done
  echo "removed scuda from $prefix"
  exit
fi

[ -n "$from" ] || usage "from where?"
[ "$(uname -s)" = Linux ] || fail "scuda runs on Linux; elsewhere use a Linux container"
machine=$(uname -m)
case $machine in
  x86_64 | aarch64) ;;
  *) fail "there is no release for $machine; there are x86_64 and aarch64" ;;
esac

work=$(mktemp -d)
: >"$work/made"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
get() { # FILE: from the place into the work folder
  case $from in
    http://* | https://*)
      if command -v curl >/dev/null; then
        curl -fsSL --retry 2 -o "$work/$1" "${from%/}/$1"
      elif command -v wget >/dev/null; then
        wget -q -O "$work/$1" "${from%/}/$1"
      else
        fail "neither curl nor wget is here; fetch the release into a folder and name that"
      fi
      ;;
    *) cp "$from/$1" "$work/$1" ;;
  esac || fail "$1 cannot be had from $from"
}

get SHA256SUMS
if [ -n "$key" ]; then
  command -v ssh-keygen >/dev/null || fail "--key needs ssh-keygen, of OpenSSH's client; install that"
  public='^(ssh|ecdsa|sk)-[^ ]* '
  text=$key
  printf '%s\n' "$key" | grep -qE "$public" || text=$(cat "$key") || fail "the key cannot be read"
  # A line that begins with a key is a public key, any other names its signers itself.
  printf '%s\n' "$text" | sed -E "s/$public/release namespaces=\"scuda-release\" &/" >"$work/signers"
  get SHA256SUMS.sig
  who=$(ssh-keygen -Y find-principals -f "$work/signers" -s "$work/SHA256SUMS.sig" 2>/dev/null | head -n 1) &&
    said=$(ssh-keygen -Y verify -f "$work/signers" -I "$who" -n scuda-release -s "$work/SHA256SUMS.sig" \
      <"$work/SHA256SUMS" 2>/dev/null) ||
    fail "SHA256SUMS is not signed with that key: the release is another one's, or was changed; nothing was installed"
  signed="checked: SHA256SUMS is signed with the ${said##* with } of $who"
else
  signed="not checked: who made the release, as no key was given (--key)"
fi
awk -v m="linux-$machine.tar.gz" 'index($2, "scuda-") == 1 && substr($2, length($2) - length(m) + 1) == m' \
  "$work/SHA256SUMS" >"$work/wanted"
[ "$(wc -l <"$work/wanted")" = 1 ] || fail "$from has no archive for $machine"
archive=$(awk '{print $2}' "$work/wanted")
case $archive in */*) fail "SHA256SUMS names a file of another folder: $archive" ;; esac
get "$archive"
(cd "$work" && sha256sum -c wanted >/dev/null 2>&1) ||
  fail "$archive is not what SHA256SUMS says: a damaged download, or another release's; nothing was installed"
echo "checked: $archive is what SHA256SUMS says"
echo "$signed"

mkdir "$work/new"
tar -C "$work/new" --strip-components=1 --no-same-owner -xzf "$work/$archive"
"$work/new/bin/scuda" --version >/dev/null || fail "this machine cannot run the program of $archive"
(cd "$work/new" && find bin lib share -type f -o -type l) >"$work/files"
{ [ ! -e "$list" ] || cat "$list"; } >"$work/old"
# Each file is put beside its place and then moved there, so that programs that use the old one keep it.
while IFS= read -r file; do
  folder=${file%/*}
  while [ ! -d "$prefix/$folder" ]; do
    echo "$folder/" >>"$work/made"
    case $folder in */*) folder=${folder%/*} ;; *) break ;; esac
  done
  { mkdir -p "$prefix/${file%/*}" && cp -P "$work/new/$file" "$prefix/$file.new" &&
    mv -f "$prefix/$file.new" "$prefix/$file"; } ||
    fail "$prefix cannot be written; name another folder with --prefix"
done <"$work/files"
grep '/$' "$work/old" >>"$work/made" || true
{ cat "$work/files" "$work/made"; echo lib/scuda/installed; } | sort -u >"$list"
# What the release before had, and this one has not.
grep -vxF -f "$list" "$work/old" >"$work/gone" || true
while IFS= read -r file; do rm -f "$prefix/$file"; done <"$work/gone"

echo "installed $("$prefix/bin/scuda" --version) below $prefix"
case :$PATH: in
  *":$prefix/bin:"*) ;;
  *) echo "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH" ;;
esac
echo "next, on a machine with a GPU: scuda serve    on the others: scuda login HOST"
