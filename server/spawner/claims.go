package spawner

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A user id of the range is to be nobody's but a tenant's: who has it, too, can stop that tenant's workers, and change
// the code that is kept for them.

// DefaultRange is where nothing else is said. It lies beyond what useradd hands out for containers (100000-600100000),
// what systemd does (up to 1879048191), and what directories derive by default (up to 2000200000).
var DefaultRange = Range{2_100_000_000, 2_100_009_999}

// formerRange was the default of the first releases. It lies in what the second login user of many machines gets for
// containers.
var formerRange = Range{200_000, 209_999}

// UsualRange is the default for a folder of workers: the former one where tenants have folders of it, unless somebody
// else has it by now.
func UsualRange(folder string) Range { return usualRange(folder, "/etc") }

func usualRange(folder, etc string) Range {
	if folder == "" || !formerRange.hasFolders(folder) || len(formerRange.claims(etc)) > 0 {
		return DefaultRange
	}
	return formerRange
}

// hasFolders says whether a tenant has a folder with a user of the range.
func (r Range) hasFolders(folder string) bool {
	entries, _ := os.ReadDir(folder) // one that cannot be read has nothing to keep
	for _, e := range entries {
		first, _, _ := strings.Cut(e.Name(), "-")
		uid, err := strconv.ParseUint(first, 10, 32)
		var st unix.Stat_t
		if err == nil && r.Has(uint32(uid)) && unix.Lstat(filepath.Join(folder, e.Name()), &st) == nil &&
			st.Uid == uint32(uid) {
			return true
		}
	}
	return false
}

// claims says who has ids of the range by the files of a folder like /etc. Users and groups of a directory service are
// not seen.
func (r Range) claims(etc string) (claims []string) {
	for _, file := range []struct {
		name         string
		first, count int // fields; no count: it is one
	}{{"subuid", 1, 2}, {"subgid", 1, 2}, {"passwd", 2, 0}, {"group", 2, 0}} {
		path := filepath.Join(etc, file.name)
		f, err := os.Open(path)
		if err != nil {
			continue // there are none
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Split(lines.Text(), ":")
			if len(fields) <= max(file.first, file.count) {
				continue
			}
			first, err := strconv.ParseUint(fields[file.first], 10, 32)
			count := uint64(1)
			if err == nil && file.count > 0 {
				count, err = strconv.ParseUint(fields[file.count], 10, 33)
			}
			if err != nil || count == 0 || first > uint64(r.Last) || first+count-1 < uint64(r.First) {
				continue
			}
			claims = append(claims, fmt.Sprintf("%s has %d-%d by %s", fields[0], first, first+count-1, path))
		}
		f.Close()
	}
	return claims
}

// warnOfClaims tells the operator whose the range is, too.
func (l *Local) warnOfClaims(etc string) {
	if l.cfg.UIDs.Empty() {
		return
	}
	const most = 5
	claims := l.cfg.UIDs.claims(etc)
	for _, c := range claims[:min(len(claims), most)] {
		l.log.Warn("user ids of tenants are somebody else's, too, who can disturb their workers", "range",
			l.cfg.UIDs.String(), "claim", c, "remedy", "another --worker-uids")
	}
}
