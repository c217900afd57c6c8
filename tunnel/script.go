package tunnel

import "strings"

// Words with which lines for the near side begin. What else comes before [wordHere] is of the shell's own files there,
// and does not count.
const (
	wordHere   = "scuda-here"   // the far side runs; frames come behind this line
	wordNeeds  = "scuda-needs"  // SYSTEM PACKER: there is no copy yet
	wordLacks  = "scuda-lacks"  // SYSTEM: none was offered for the system
	wordFailed = "scuda-failed" // WHAT [STATUS]
)

// Far is the command of scuda that is the far side: `scuda far`.
const Far = "far"

// script runs on the far side, in sh. The user's shell sees it first, which may be csh or fish: no apostrophe, no
// exclamation mark, no backslash, no line end.
//
// It reads the hashes of the copies that the near side has, one "SYSTEM HASH" a line, an empty line, and the folder.
// What it asks for is sent only after it was asked for, as head may read more than it needs.
var script = strings.Join([]string{
	`umask 077`,
	`fail() { echo; echo "` + wordFailed + ` $*"; exit 1; }`,
	`m=$(uname -s)-$(uname -m)`,
	`h=`,
	`while read -r a b && test "$a"; do if test "$a" = "$m"; then h=$b; fi; done`,
	`IFS= read -r d || exit 1`,
	`if test -z "$h"; then echo; echo "` + wordLacks + ` $m"; exit 1; fi`,
	`d=${d:-${XDG_CACHE_HOME:-$HOME/.cache}/scuda/on}`,
	`f=$d/$h`,
	`mkdir -p "$d" || fail folder`,
	`test -O "$d" || fail owner`,
	`case $(ls -ld "$d/.") in ?????w*|????????w*) fail owner;; esac`,
	`if test -x "$f"; then exec "$f" ` + Far + `; fi`,
	`echo`,
	`echo "` + wordNeeds + ` $m $(command -v gzip)"`,
	`read -r n z || exit 1`,
	`t=$(mktemp "$d/.new-XXXXXXXX") || fail folder`,
	`clean() { rm -f "$t"; }`,
	`trap clean 0`,
	`case $z in gzip) head -c "$n" | gzip -dc >"$t";; *) head -c "$n" >"$t";; esac || fail copy`,
	`chmod 700 "$t" || fail copy`,
	`"$t" ` + Far + ` --check "$h" </dev/null || fail run $?`,
	`mv -f "$t" "$f" || fail copy`,
	`exec "$f" ` + Far,
}, "; ")
