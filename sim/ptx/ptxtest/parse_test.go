package ptxtest

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/sim/ptx"
)

// processorTime that the process has used, in seconds: what loading costs, whoever else uses the machine meanwhile.
func processorTime(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkParse loads what compilers have made: megabytes of text a second.
func BenchmarkParse(b *testing.B) {
	for _, name := range []string{"triton", "programs"} {
		bundle, err := Read(filepath.Join("..", "..", "testdata", name+".bundle"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var n int64
			for _, text := range bundle.Modules {
				n += int64(len(text))
			}
			b.SetBytes(n)
			begin := processorTime(b)
			for b.Loop() {
				for _, text := range bundle.Modules {
					if _, err := ptx.Parse([]byte(text)); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(1e3*(processorTime(b)-begin)/float64(b.N), "cpu-ms/op")
		})
	}
}
