# Compiles the front's rooms, which are folders of shim/front: a C file belongs to a library because it lies in one of
# its rooms. To be sourced after compat.sh, with $shim set to this folder.
front=$shim/front
(cd "$shim/.." && GOARCH='' CGO_ENABLED=0 "${GO:-go}" run -trimpath ./api/gen -build) # stubs, encodings, tables
cc=${CC:-cc}
# Probes attach to the entries: a one-byte nop in front of them, no endbr64, as the kernel emulates that one. It would
# replace a five-byte nop (Linux 6.18) and save 0.1 us a probed call, but a forked child of the program has the call and
# not the page that it leads to, and ends by SIGSEGV. Nothing runs and no thread starts at load.
flags="-std=c11 -O2 -g -fPIC -fvisibility=hidden -fcf-protection=none -fpatchable-function-entry=1 -ffunction-sections"
flags="$flags -Wall -Wextra -Werror"

# What is compiled is kept for a day in build/objects, under a name made of all that it depends on: libraries have rooms
# in common, and tests build the libraries again.
objects_kept=$shim/../build/objects
depends=$({ echo "$cc $flags $shim" && "$cc" --version && cat "$shim/rooms.sh" &&
  find "$shim" -name '*.[ch]' -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -c1-32)
mkdir -p "$objects_kept"
find "$objects_kept" -mindepth 1 -maxdepth 1 -mtime +0 -exec rm -rf {} +

# kept NAME FOLDER COMMAND…: a folder gets the objects that a command makes in an empty one.
kept() (
  objects=$objects_kept/$depends-$(echo "$1" | tr / -) folder=$2
  shift 2
  if ! test -d "$objects"; then
    made=$(mktemp -d "$objects.XXXXXX")
    trap 'rm -rf "$made"' EXIT
    (cd "$made" && "$@")
    mv -T "$made" "$objects" 2>/dev/null || test -d "$objects" # which another build made meanwhile
  fi
  touch "$objects"
  mkdir -p "$folder"
  cp "$objects"/*.o "$folder"
)

# compile SOURCE…: the objects of sources, in the current folder.
compile() {
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" "$cc" $flags -include "$front/base/compat.h" "-I$front" $more -c
}

# room NAME FOLDER: the objects of a room, in a folder.
room() (
  more=
  kept "$1" "$2" compile "$front/$1"/*.c
)

# stand_in NAME FOLDER: the objects of the library in shim/NAME, which stands in for one of NVIDIA's, in a folder.
stand_in() (
  more="-I$shim/$1 -I$shim/$1/gen"
  kept "$1" "$2" compile "$shim/$1"/*.c "$shim/$1"/gen/*.c "$front/base/common.c"
)
