package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const mostOfConfig = 64 << 10

// applyFile sets the options that the command line left alone from a file of YAML, which has one of them a line:
//
//	listen: 0.0.0.0:14833
//	token-file: /etc/scuda/token
func applyFile(flags *pflag.FlagSet, path string) error {
	bad := func(line int, format string, args ...any) error {
		return usage(fmt.Errorf("--config %s: line %d: %w", path, line, fmt.Errorf(format, args...)))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if len(text) > mostOfConfig {
		return usage(fmt.Errorf("--config %s: it is longer than 64 KiB", path))
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return usage(fmt.Errorf("--config %s: %w", path, err))
	}
	if len(document.Content) == 0 {
		return nil // nothing but comments
	}
	top := document.Content[0]
	if top.Kind != yaml.MappingNode {
		return bad(top.Line, "write OPTION: VALUE, one a line")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		name, value := top.Content[i].Value, top.Content[i+1]
		f := flags.Lookup(name)
		switch {
		case f == nil || name != "listen" && !slices.Contains(serveFlags, name):
			return bad(top.Content[i].Line, "there is no option %.60q; scuda serve --help lists them", name)
		case seen[name]:
			return bad(top.Content[i].Line, "%s stands there twice", name)
		case value.Kind != yaml.ScalarNode:
			return bad(value.Line, "%s: write one value", name)
		}
		seen[name] = true
		if f.Changed {
			continue
		}
		if err := f.Value.Set(value.Value); err != nil {
			if e := (*pflag.InvalidValueError)(nil); errors.As(err, &e) {
				err = e.Unwrap()
			}
			return bad(value.Line, "%s: %w", name, err)
		}
	}
	return nil
}
