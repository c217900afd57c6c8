package config

import (
	"os"
	"strconv"
)

// User is what the user is called who runs this process, for people to read: what the environment says, since looking
// it up may load libraries into the program; else the user's number.
func User() string {
	for _, name := range []string{"USER", "LOGNAME"} {
		if user := os.Getenv(name); user != "" && len(user) <= 64 {
			return user
		}
	}
	if os.Getuid() == 0 {
		return "root"
	}
	return strconv.Itoa(os.Getuid())
}
