package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"scuda.dev/scuda/perf"
)

func TestCalls(t *testing.T) {
	got, err := calls([]byte(`{"calls": {"rounds": 2, "connections": 4,
		"native": {"launch call": 2e-6, "16 MiB up": 1e-3, "4 B to the host": 6e-6},
		"remote": {"launch call": 6e-7, "16 MiB up": 2e-3, "4 B to the host": 1.7e-5, "else": 0.5, "memory (MiB)": 6.25},
		"tcp": {"16 MiB over plain TCP": 1.9e-3, "a round trip over plain TCP": 1e-5},
		"measures": ["launch call", "16 MiB up", "4 B to the host", "else", "memory (MiB)"]}}`))
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
	got, err := models([]byte(`{"programs": [{"rounds": 1, "round trip": 1.25e-5, "rows": [
		{"name": "training", "native": 0.32, "remote": 0.324, "ratio": 1.0125, "asked": "≤ 1.02 ×", "met": true,
			"values": {"native": [0.32], "remote": [0.33, 0.32, 0.324]}},
		{"name": "trips (count)", "native": null, "remote": 8, "ratio": null, "asked": "≤ 0", "met": false},
		{"name": "import", "native": 2.5, "remote": 2.25, "ratio": 0.9, "asked": "", "met": null}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| training | 320.0 ms | 324.0 ms | 1.01 | 3 | ≤ 1.02 × | met |",
		"| trips (count) |  | 8 |  | 0 | ≤ 0 | **missed** |",
		"| import | 2.50 s | 2.25 s | 0.90 | 0 |  |  |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestCosts(t *testing.T) {
	var rows, calls []string
	for _, short := range inShort[:5] {
		rows = append(rows, `{"name": "`+short.name+`", "native": 0.5, "remote": 0.25}`)
	}
	for _, short := range inShort[5:] {
		calls = append(calls, `"`+short.name+`": 2e-6`)
	}
	single := `"calls": {"native": {` + strings.Join(calls, ",") + `}, "remote": {` + strings.Join(calls, ",") + `}}`
	got, err := costs([]byte(`{"programs": [{"rows": [` + strings.Join(rows, ",") + `]}], ` + single + `}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| GPT-2 small generating 64 tokens | 500.0 ms | 250.0 ms | 0.50 |",
		"| `cuLaunchKernel`, time in the call | 2.0 µs | 2.0 µs | 1.00 |"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if _, err := costs([]byte(`{` + single + `}`)); err == nil {
		t.Error("a measure that is not there was not missed")
	}
}

// The chart has a point for each workload, left of the middle where scuda is faster; one that is missing is an error.
func TestPicture(t *testing.T) {
	var rows []string
	for i, w := range inPicture {
		rows = append(rows, fmt.Sprintf(`{"name": %q, "native": 1, "remote": %g}`, w.name, []float64{.5, 1, 9}[i%3]))
	}
	got, err := picture([]byte(`{"machine": "a <GPU>; here", "programs": [{"rows": [` + strings.Join(rows, ",") + `]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{"a &lt;GPU&gt;;": 1, "0.50 ×</text>": 2, "9.00 ×</text>": 2,
		`cx="347.5"`: 2, `cx="455.0"`: 2, `cx="670.0"`: 2, "http": 1} {
		if n := strings.Count(got, text); n != times {
			t.Errorf("%d times %s in\n%s", n, text, got)
		}
	}
	if _, err := picture([]byte(`{"programs": []}`)); err == nil {
		t.Error("a workload that is not there was not missed")
	}
}

// Every row of the table that was asked for is in the result that the documentation is made of.
func TestRowsAreComplete(t *testing.T) {
	b, err := os.ReadFile("../../../" + speed)
	if err != nil {
		t.Fatal(err)
	}
	var r perf.Speed
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for name := range r.Calls.Remote {
		got[name] = r.Calls.Native[name] > 0
	}
	for _, p := range r.Programs {
		for _, row := range p.Rows {
			got[row.Name] = row.Met != nil
		}
	}
	for _, want := range []string{
		"cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuKernelGetAttribute", "launch call",
		"launch call, p99",
		"each of 20000 launches and a synchronise", "each launch of 4 threads on 4 streams", "launch and synchronise",
		"synchronise an idle stream",
		"synchronise a finished event", "record an event", "query a finished event", "query an idle stream",
		"wait for an event", "4 B to the device",
		"64 KiB to the device, pageable", "4 B to the host", "64 KiB to the host, pageable", "16 MiB pinned to the device",
		"16 MiB pinned to the host",
		"16 MiB pageable to the device", "16 MiB pageable to the host", "256 MiB pinned to the device",
		"256 MiB pinned to the host",
		"256 MiB pageable to the device", "256 MiB pageable to the host", "allocate and free 1 MiB",
		"first tensor, from torch.cuda.is_available() on",
		"bytes of modules that a second run uploads (count)", "ResNet-50 training b64, 10 steps",
		"ResNet-50 inference b1, 50 times",
		"GPT-2 training bf16, 10 steps", "GPT-2 generating 64 tokens", "1000 small operations", "1000 item() of a number",
		"CUDA graph (60 kernels) replayed 100 times", "compiled module, 100 times", "Triton kernel, 100 times",
		"JAX jit, 100 times",
		"round trips in a ResNet-50 training step (count)", "round trips for a generated token (count)",
		"CPU of the program while training (cores)",
		"CPU of the server while training (cores)", "resident memory of the program (MiB)",
		"ResNet-50 training b64, 10 steps, 1 ms further",
		"ResNet-50 training b64, 10 steps, 10 ms further", "GPT-2 generating 64 tokens, 1 ms further",
		"GPT-2 generating 64 tokens, 10 ms further",
	} {
		if !got[want] {
			t.Errorf("%q is not measured, or nothing is asked of it", want)
		}
	}
}
