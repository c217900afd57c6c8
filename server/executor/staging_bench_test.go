package executor

import (
	"runtime"
	"testing"
)

// The measured pipeline is the real one; here it has to end and give figures.
func TestMeasureStaging(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, feeders := range []int{0, 2} {
		r, err := MeasureStaging(openSim(t), 40<<20+5, 12, feeders, 1)
		if err != nil {
			t.Fatal(err)
		}
		if r.Upload <= 0 || r.Download <= 0 {
			t.Errorf("%+v", r)
		}
	}
}
