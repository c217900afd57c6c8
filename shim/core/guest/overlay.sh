#!/bin/sh
# Writes the files of Go's runtime that libscuda-core.so has in another form into a folder, and prints what
# `go build -overlay` reads: overlay.sh FOLDER. GO may be set.
#
#   netpoll_epoll.go   is netpoll.go of this folder: a guest has no descriptors of its own.
#   stack.go           A program's signal handler without SA_ONSTACK runs on the stack that its thread has just then,
#                      which is a goroutine's while the thread is inside the core. So goroutines have 32 KiB more than
#                      Go needs (stackSystem, as on Windows), of which the kernel's frame takes 1 to 11.
#   cgocall.go, signal_unix.go   The stacks that are the program's own have no such room set apart: they may be small.
#   sigtab_linux_generic.go      Go's threads take none of the program's SIGCHLD and SIGPROF, either.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
runtime=$("${GO:-go}" env GOROOT)/src/runtime
list="\"$runtime/netpoll_epoll.go\": \"$here/netpoll.go\""

# changed FILE TIMES SCRIPT: so many lines are changed by it, or this is another version of Go.
changed() {
  sed "$3" "$runtime/$1" > "$out/$1"
  n=$(diff "$runtime/$1" "$out/$1" | grep -c '^>') || true
  test "$n" = "$2" || { echo "overlay.sh: $n lines of this Go's $1 are changed, not $2" >&2; exit 1; }
  list="$list, \"$runtime/$1\": \"$out/$1\""
}

out=$(cd "$1" && pwd)
changed stack.go 1 's/^\tstackSystem = /\tstackSystem = 32<<10 + /'
changed cgocall.go 2 's/\(g0\.stackguard0 = .* + stackGuard\)$/\1 - stackSystem/'
changed signal_unix.go 2 's/\(gsignal\.stackguard[01] = .* + stackGuard\)$/\1 - stackSystem/'
changed sigtab_linux_generic.go 2 '/"SIGCHLD:\|"SIGPROF:/s/ + _SigUnblock//'
printf '{"Replace": {%s}}\n' "$list"
