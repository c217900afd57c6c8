package cupti

import (
	"fmt"
	"strings"
	"testing"
)

// TestLayout compares the records with what a program that was compiled with CUDA 13.0's headers printed on an H200:
// sizes by generation, and offsets.
func TestLayout(t *testing.T) {
	sizes := map[string]int{"API": 40, "Kernel9": 208, "Kernel10": 216, "Memset4": 88, "MemcpyPtoP4": 96, "Memcpy6": 96,
		"ExternalCorrelation": 24, "Synchronization2": 56, "Overhead3": 56, "CudaEvent2": 56, "Context3": 32, "Device5": 184,
		"Memory4": 128}
	known := map[string]int{}
	for _, f := range Families {
		for _, g := range f.Generations {
			known[fmt.Sprint(f.Name, g.Number)] = g.Size
		}
	}
	for _, r := range Records {
		known[strings.TrimPrefix(r.Name, "CUpti_Activity")] = r.Size
	}
	for name, size := range sizes {
		if known[name] != size {
			t.Errorf("%s has %d bytes, on the H200 %d", name, known[name], size)
		}
	}
	for place, offset := range map[string]int{
		"Kernel11.start": 16, "Kernel11.correlationId": 92, "Kernel11.name": 104, "Kernel11.graphNodeId": 144,
		"Kernel11.graphId": 156, "Kernel11.channelID": 168, "Kernel11.clusterX": 176, "Kernel11.isDeviceLaunched": 208,
		"Overhead3.objectId": 12, "Overhead3.start": 24, "Overhead3.correlationId": 40,
	} {
		name, field, _ := strings.Cut(place, ".")
		r, _ := Of("CUpti_Activity" + name)
		if f, ok := r.Field(field); !ok || f.Offset != offset {
			t.Errorf("%s is at %d, on the H200 at %d", place, f.Offset, offset)
		}
	}
}

// TestGenerations: the newest generation is the one that is written, and each holds the one before.
func TestGenerations(t *testing.T) {
	if len(Records) < 20 || len(Families) < 10 {
		t.Fatalf("%d records, %d families", len(Records), len(Families))
	}
	for _, f := range Families {
		last := f.Generations[len(f.Generations)-1]
		r, ok := Of(fmt.Sprintf("CUpti_Activity%s%d", f.Name, last.Number))
		if !ok || r.Size != last.Size {
			t.Errorf("%s: generation %d has %d bytes, the record %d", f.Name, last.Number, last.Size, r.Size)
		}
		// where a generation ends, no field of the newest goes on, but structures within a record that grew, too
		for _, g := range f.Generations {
			for _, field := range r.Fields {
				if field.Size <= 8 && field.Offset < g.Size && field.Offset+field.Size > g.Size {
					t.Errorf("%s of %s lies across the end of generation %d", field.Name, r.Name, g.Number)
				}
			}
		}
	}
}
