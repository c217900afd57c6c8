package main

import (
	"strings"
	"testing"
)

func TestSystemCalls(t *testing.T) {
	got, err := systemCalls([]byte(`{"date": "2026-11-21", "machine": "A GPU, 580", "torch": "2.11",
		"programs": [{"name": "x()", "first": {"read": 2141},
		"native": {"base": {"calls": [{"call": "read", "class": "file", "calls": 8}]},
			"run": {"calls": [{"call": "read", "class": "file", "calls": 12}]}},
		"remote": {"base": {"calls": [{"call": "read", "class": "file", "calls": 8}]}, "run": {"counter": "ebpf", "calls": [
			{"call": "read", "class": "file", "calls": 10}, {"call": "read", "class": "network", "calls": 3},
				{"call": "recvfrom", "class": "network", "calls": 2},
			{"call": "sendmsg", "class": "network", "calls": 1}]}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"A GPU, 580, PyTorch 2.11, counted with ebpf on 2026-11-21.",
		"| `x()` | read | 2141 | 12 | 13 | 8 | 3 |",
		"|  | everything that reads |  | 12 | 15 | 8 | 5 |",
		"|  | everything that writes |  | 0 | 1 | 0 | 1 |",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no line %s in\n%s", want, got)
		}
	}
}
