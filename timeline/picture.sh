#!/bin/sh
# Makes the picture of a timeline's page: picture.sh SCUDA PICTURE. A server with the simulated GPU serves scuda's
# demonstration, a small GPT; Chromium draws the page. `make pictures` calls it.
set -eu
test $# = 2 || { echo "usage: picture.sh SCUDA PICTURE" >&2; exit 2; }
build=$(cd "$(dirname "$1")" && pwd)
scuda=$build/$(basename "$1")
picture=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$build"
folder=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server"; rm -rf "$folder"' EXIT
"$scuda" serve -l 127.0.0.1:0 --gpu sim --cache-dir "$folder/cache" --admin none >"$folder/log" 2>&1 &
server=$!
address=
for _ in $(seq 100); do
  address=$(sed -n 's/^listening on //p' "$folder/log")
  test -z "$address" || break
  sleep 0.1
done
test -n "$address" || { cat "$folder/log" >&2; exit 1; }
"$scuda" trace --server "$address" --kernels --html "$folder/page.html" -- ./scuda-demo 5 \
  >/dev/null 2>"$folder/table" || { cat "$folder/table" >&2; exit 1; }
chromium --headless --no-sandbox --hide-scrollbars --window-size=920,760 --screenshot="$picture" "$folder/page.html" \
  2>/dev/null
