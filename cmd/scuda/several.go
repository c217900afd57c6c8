package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"scuda.dev/scuda/config"
)

// asked is one of the servers that a verb asks, and what came of it.
type asked[T any] struct {
	server string // HOST:PORT; "": that of this machine, over its admin socket
	answer T
	err    error
}

// serversAsked gives the servers that somebody named, else the configured ones, and what says so.
func serversAsked(named string) (servers []string, source string, err error) {
	if named != "" {
		servers, err = config.List(named)
		if err != nil {
			err = usage(err)
		}
		return servers, "--server", err
	}
	servers, source, err = config.Configured()
	if err == nil && len(servers) == 0 {
		err = config.ErrNoServer
	}
	return servers, source, err
}

// askEach asks all servers at once: one that does not answer holds nobody up.
func askEach[T any](servers []string, ask func(server string) (T, error)) []asked[T] {
	list := make([]asked[T], len(servers))
	var done sync.WaitGroup
	for i, server := range servers {
		list[i].server = server
		done.Go(func() { list[i].answer, list[i].err = ask(server) })
	}
	done.Wait()
	return list
}

// failures gives the error of servers that failed: that of the only one as it is, else one that names them and has the
// exit code of the first.
func failures[T any](list []asked[T]) error {
	var first error
	var texts []string
	for _, a := range list {
		if a.err == nil {
			continue
		}
		if first == nil {
			first = a.err
		}
		texts = append(texts, a.server+": "+a.err.Error())
	}
	if len(list) == 1 || first == nil {
		return first
	}
	code := exitFailure
	if e, ok := errors.AsType[*exitError](first); ok {
		code = e.code
	}
	return &exitError{code, fmt.Errorf("%d of %d servers failed: %s", len(texts), len(list), strings.Join(texts, "; "))}
}
