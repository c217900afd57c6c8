package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// envName is the environment's twin of an option.
func envName(flag string) string {
	return "SCUDA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// withEnv names each option's twin in its help text.
func withEnv(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		f.Usage += " [$" + envName(name) + "]"
		f.Annotations = map[string][]string{"env": {envName(name)}}
	}
}

// applyEnv sets the options that the command line left alone from their twins.
func applyEnv(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		twin := f.Annotations["env"]
		if f.Changed || len(twin) == 0 || err != nil {
			return
		}
		if !lookupEnv(twin[0]) {
			return
		}
		if e := f.Value.Set(os.Getenv(twin[0])); e != nil {
			err = usage(fmt.Errorf("%s=%q: %w", twin[0], os.Getenv(twin[0]), e))
		}
	})
	return err
}

func lookupEnv(name string) bool {
	value, ok := os.LookupEnv(name)
	return ok && value != ""
}
