package api

import "testing"

func TestLoad(t *testing.T) {
	s, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.CUDA.Funcs) != 707 || len(s.NVML.Funcs) != 404 {
		t.Errorf("%d and %d functions", len(s.CUDA.Funcs), len(s.NVML.Funcs))
	}
}
