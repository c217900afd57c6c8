#!/usr/bin/env bash
# Puts libcudart.so.11.0 and libcudart.so.12 into a folder, out of Debian's packages (section non-free); nothing is installed.
#
#   runtimes.sh FOLDER
set -euo pipefail

mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() { # RELEASE PACKAGE LIBRARY
  [ -e "$folder/$3" ] && return
  mkdir -p "$work/$1/lists/partial" "$work/$1/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $1 non-free" >"$work/$1/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/$1/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/$1/lists" -o "Dir::Cache=$work/$1/cache" -o APT::Sandbox::User=)
  "${apt[@]}" update
  (cd "$work/$1" && "${apt[@]}" download "$2" && dpkg -x "$2"_*.deb .)
  cp -L "$work/$1/usr/lib/x86_64-linux-gnu/$3" "$folder/$3.part"
  mv "$folder/$3.part" "$folder/$3"
}
fetch bookworm libcudart11.0 libcudart.so.11.0
fetch trixie libcudart12 libcudart.so.12
