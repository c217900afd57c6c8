package main

import (
	"strings"
	"testing"
)

func TestCalls(t *testing.T) {
	got, err := calls([]byte(`{"rounds": 2, "connections": 4, "native": {"launch call": 2e-6, "16 MiB up": 1e-3, "4 B to the host": 6e-6},
		"remote": {"launch call": 6e-7, "16 MiB up": 2e-3, "4 B to the host": 1.7e-5, "else": 0.5, "memory (MiB)": 6.25},
		"tcp": {"16 MiB over plain TCP": 1.9e-3, "a round trip over plain TCP": 1e-5}, "measures": ["launch call", "16 MiB up", "4 B to the host", "else", "memory (MiB)"]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Medians of 2 rounds.",
		"| launch call | 2.0 µs | 600 ns | 0.30 |  | ≤ 0.5 µs | **missed** |",
		"| 16 MiB up | 1.0 ms | 2.0 ms | 2.00 | 0.95 | ≥ 0.9 of plain TCP | met |",
		"| 4 B to the host | 6.0 µs | 17.0 µs | 2.83 |  | ≤ native + 1.2 round trips | met |",
		"| else |  | 500.0 ms |  |  |  |  |",
		"| memory (MiB) |  | 6.25 MiB |  |  |  |  |",
		"there: 10.0 µs.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestModels(t *testing.T) {
	got, err := models([]byte(`{"rounds": 1, "round trip": 1.25e-5, "rows": [
		{"name": "training", "native": 0.32, "remote": 0.324, "ratio": 1.0125, "asked": "≤ 1.02 ×", "met": true, "values": {"native": [0.32]}},
		{"name": "trips (count)", "native": null, "remote": 8, "ratio": null, "asked": "≤ 0", "met": false},
		{"name": "import", "native": 2.5, "remote": 2.25, "ratio": 0.9, "asked": "", "met": null}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Medians of 1 rounds; a round trip over plain TCP took 12.5 µs.",
		"| training | 320.0 ms | 324.0 ms | 1.01 | ≤ 1.02 × | met |",
		"| trips (count) |  | 8 |  | ≤ 0 | **missed** |",
		"| import | 2.50 s | 2.25 s | 0.90 |  |  |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestCosts(t *testing.T) {
	var rows, calls []string
	for _, name := range []string{"ResNet-50 training b64, 10 steps", "GPT-2 training bf16, 10 steps", "GPT-2 generating 64 tokens", "1000 small operations", "first tensor, from torch.cuda.is_available() on"} {
		rows = append(rows, `{"name": "`+name+`", "native": 0.5, "remote": 0.25}`)
	}
	for _, name := range []string{"launch call", "launch and synchronise", "256 MiB pinned to the device"} {
		calls = append(calls, `"`+name+`": 2e-6`)
	}
	programs, single := []byte(`{"rows": [`+strings.Join(rows, ",")+`]}`), []byte(`{"native": {`+strings.Join(calls, ",")+`}, "remote": {`+strings.Join(calls, ",")+`}}`)
	got, err := costs(programs, single)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| GPT-2 small generating 64 tokens | 500.0 ms | 250.0 ms | 0.50 |", "| `cuLaunchKernel`, time in the call | 2.0 µs | 2.0 µs | 1.00 |"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if _, err := costs([]byte(`{}`), single); err == nil {
		t.Error("a measure that is not there was not missed")
	}
}
