package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// MostServers bounds how many servers programs use at a time. Each has PCI domains of its own in what NVML says, and
// of those there are so many.
const MostServers = 16

// Errors of several servers.
var (
	ErrList    = errors.New("bad list of servers")
	ErrSeveral = errors.New("several servers are configured")
)

// List reads the servers that somebody wrote with commas between: addresses, or names of remembered ones.
func List(text string) (servers []string, err error) {
	words := strings.Split(text, ",")
	if len(words) == 1 {
		address, err := Address(strings.Trim(text, blanks))
		return []string{address}, err
	}
	if len(words) > MostServers {
		return nil, fmt.Errorf("%w: there are %d, and at most %d can be used at a time", ErrList, len(words), MostServers)
	}
	for i, word := range words {
		word = strings.Trim(word, blanks)
		if word == "" {
			return nil, fmt.Errorf("%w: element %d of %q is empty; write one comma between two servers", ErrList, i+1, text)
		}
		address, err := Address(word)
		if err != nil {
			return nil, err
		}
		if slices.Contains(servers, address) {
			return nil, fmt.Errorf("%w: %q has the server %s twice", ErrList, text, address)
		}
		servers = append(servers, address)
	}
	return servers, nil
}

// Join writes servers as [List] reads them.
func Join(servers []string) string { return strings.Join(servers, ",") }

// Configured gives the configured servers, each as HOST:PORT, and what configured them; nil where nothing does.
// Programs see the GPUs of all, in this order.
func Configured() (servers []string, source string, err error) {
	var text string
	if value, set := os.LookupEnv("SCUDA_SERVER"); set {
		text, source = strings.Trim(value, blanks), "SCUDA_SERVER"
		if text != "" {
			if of, err := spread(); err != nil {
				return nil, "SCUDA_SPREAD", err
			} else if of != "" {
				return []string{of}, "SCUDA_SPREAD", nil
			}
		}
	} else if source, err = HostFile(); errors.Is(err, ErrFolder) {
		return nil, "", nil
	} else if text, err = line(source); errors.Is(err, errNotOpened) {
		return nil, "", nil
	} else if err != nil {
		return nil, source, err
	}
	if text == "" {
		return nil, "", nil
	}
	if servers, err = List(text); err != nil {
		return nil, source, fmt.Errorf("%s: %w", source, err)
	}
	return servers, source, nil
}

// ofServer gives what a variable says of a server. Where several servers are set, it says one thing of all, or one of
// each: a list with commas between, in the order of SCUDA_SPREAD, else of SCUDA_SERVER or the host file. An empty
// element says nothing, as if the variable were not set. Where one server is set, a comma is a character as others are:
// tokens that people have made may have some.
func ofServer(variable, address string) (text string, err error) {
	text = strings.Trim(os.Getenv(variable), blanks)
	if !strings.Contains(text, ",") {
		return text, nil
	}
	servers, source, err := set()
	if err != nil {
		return "", err
	}
	if len(servers) < 2 {
		return text, nil
	}
	words := strings.Split(text, ",")
	if len(words) != len(servers) {
		return "", fmt.Errorf("%w: %s has %d elements with commas between, and %s has %d servers; write one for all "+
			"servers, or one for each in their order", ErrList, variable, len(words), source, len(servers))
	}
	i := slices.Index(servers, address)
	if i < 0 {
		return "", fmt.Errorf("%w: %s has an element for each server of %s, and %s is none of these; unset it, or name that "+
			"server there", ErrList, variable, source, address)
	}
	return strings.Trim(words[i], blanks), nil
}

// set gives all servers that are set: also those of the other ranks, where each has its own.
func set() (servers []string, source string, err error) {
	if list := strings.Trim(os.Getenv("SCUDA_SPREAD"), blanks); list != "" &&
		strings.Trim(os.Getenv("SCUDA_SERVER"), blanks) != "" {
		servers, err = Spread(list)
		return servers, "SCUDA_SPREAD", err
	}
	return Configured()
}

// Server gives the configured server as HOST:PORT and what configured it, or two empty strings where nothing does. It
// is for what works with one server; several are [ErrSeveral].
func Server() (addr, source string, err error) {
	servers, source, err := Configured()
	switch {
	case err != nil || len(servers) == 0:
		return "", source, err
	case len(servers) > 1:
		return "", source, fmt.Errorf("%w (%s: %s), and this takes one: name it, with --server or SCUDA_SERVER", ErrSeveral,
			source, Join(servers))
	}
	return servers[0], source, nil
}
