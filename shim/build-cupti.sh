#!/bin/sh
# Builds libcupti.so.12 and libcupti.so.13 into a folder: build-cupti.sh FOLDER. CC may be set. Both are the same but
# for the name, which is the version of their symbols as well.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
. "$shim/compat.sh"
. "$shim/rooms.sh"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
stand_in cupti "$objects"
for major in 12 13; do
  echo "const int cupti_major = $major;" | "$cc" $flags -x c -c - -o "$objects/major$major.o"
  "$cc" -shared -o "$1/libcupti.so.$major.new" $(ls "$objects"/*.o | grep -v /major) "$objects/major$major.o" \
    -Wl,-soname,"libcupti.so.$major" -Wl,--version-script="$shim/cupti/gen/libcupti$major.map" -Wl,-z,defs $hardened \
    -Wl,--gc-sections -Wl,-Bsymbolic $old_libraries
  mv "$1/libcupti.so.$major.new" "$1/libcupti.so.$major"
done
