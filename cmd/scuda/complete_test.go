//go:build !client

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// What shells complete is what is taken, and what the answer to another value names.
func TestChoices(t *testing.T) {
	for name, values := range choices {
		if name == "worker-uids" || name == "worker-cgroup" || newFlags(new(serveOptions)).Lookup(name) == nil {
			continue // takes root, or is no option of serve
		}
		t.Run(name, func(t *testing.T) {
			_, bad := options(t, name, "nonsense")
			if bad == nil {
				t.Fatal("everything is taken")
			}
			for _, value := range values {
				if name == "transport" && value == "rdma" { // takes a device
					continue
				}
				if _, err := options(t, name, value); err != nil {
					t.Errorf("%s: %v", value, err)
				}
				word, _, _ := strings.Cut(strings.ReplaceAll(value, ",", ":"), ":")
				if !strings.Contains(bad.Error(), word) {
					t.Errorf("%v; but %s is one, too", bad, word)
				}
			}
		})
	}
}

// No choice is of an option that is gone.
func TestChoicesOfOptions(t *testing.T) {
	var has func(*cobra.Command, string) bool
	has = func(cmd *cobra.Command, name string) bool {
		found := cmd.Flags().Lookup(name) != nil
		for _, c := range cmd.Commands() {
			found = found || has(c, name)
		}
		return found
	}
	for name := range choices {
		if !has(newRoot(), name) {
			t.Errorf("no command has --%s", name)
		}
	}
}
