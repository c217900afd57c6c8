package config

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestUser(t *testing.T) {
	nobody := strconv.Itoa(os.Getuid())
	if nobody == "0" {
		nobody = "root"
	}
	for _, c := range []struct{ user, logname, want string }{
		{"ada", "ben", "ada"}, {"", "ben", "ben"}, {"", "", nobody}, {strings.Repeat("x", 65), "", nobody},
	} {
		t.Setenv("USER", c.user)
		t.Setenv("LOGNAME", c.logname)
		if got := User(); got != c.want {
			t.Errorf("%q, %q: %s, not %s", c.user, c.logname, got, c.want)
		}
	}
}
