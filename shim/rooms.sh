# Compiles the front's rooms, which are folders of shim/front: a C file belongs to a library because it lies in one of
# its rooms. To be sourced after compat.sh, with $shim set to this folder.
front=$shim/front
(cd "$shim/.." && GOARCH='' CGO_ENABLED=0 "${GO:-go}" run ./api/gen -build) # stubs, encodings, tables
cc=${CC:-cc}
# Probes attach to the entries (a patchable NOP in front of them, no endbr64); nothing runs and no thread starts at
# load.
flags="-std=c11 -O2 -g -fPIC -fvisibility=hidden -fcf-protection=none -fpatchable-function-entry=1 -ffunction-sections"
flags="$flags -Wall -Wextra -Werror"

# room NAME FOLDER: the objects of a room, in a folder.
room() (
  mkdir -p "$2"
  cd "$2"
  printf '%s\0' "$front/$1"/*.c | xargs -0 -n 1 -P "$(nproc)" \
    "$cc" $flags -include "$front/base/compat.h" -include "$front/base/entry.h" "-I$front" -c
)

# stand_in NAME FOLDER: the objects of the library in shim/NAME, which stands in for one of NVIDIA's, in a folder.
stand_in() {
  for source in "$shim/$1"/*.c "$shim/$1"/gen/*.c "$front/base/common.c"; do
    "$cc" $flags -include "$front/base/compat.h" "-I$front" "-I$shim/$1" "-I$shim/$1/gen" -c "$source" \
      -o "$2/$(basename "$source" .c).o"
  done
}
