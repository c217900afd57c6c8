package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// envName is the environment variable of an option.
func envName(flag string) string {
	return "SCUDA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// withEnv names each option's variable in its help text.
func withEnv(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		f.Usage += " [$" + envName(name) + "]"
		f.Annotations = map[string][]string{"env": {envName(name)}}
	}
}

// applyEnv sets the options that the command line left alone from their variables.
func applyEnv(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		variable := f.Annotations["env"]
		if f.Changed || len(variable) == 0 || err != nil {
			return
		}
		if !lookupEnv(variable[0]) {
			return
		}
		if e := f.Value.Set(os.Getenv(variable[0])); e != nil {
			err = usage(fmt.Errorf("%s=%q: %w", variable[0], os.Getenv(variable[0]), e))
		}
	})
	return err
}

func lookupEnv(name string) bool {
	value, ok := os.LookupEnv(name)
	return ok && value != ""
}
