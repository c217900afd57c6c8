package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/driver/real"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/sim"
)

// newBenchStaging measures the server's staging for RDMA without a network; it is for those who work on scuda.
func newBenchStaging() *cobra.Command {
	var kind string
	var slots, feeders, rounds int
	size := byteSize(1 << 30)
	memory := byteSize(executor.DefaultRDMASlots << 20)
	cmd := &cobra.Command{
		Use:    "staging",
		Short:  "Measure the staging between RDMA's slots and a GPU, with memory in the place of the network",
		Args:   noArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var gpu cuda.GPU
			var err error
			if kind == "sim" {
				gpu, err = sim.Open(sim.Config{})
			} else {
				gpu, err = real.Open("")
			}
			if err != nil {
				return err
			}
			slots = int(memory >> 20)
			r, err := executor.MeasureStaging(gpu, int(size), slots, feeders, rounds)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{
				"upload_gb_per_s": round(r.Upload), "download_gb_per_s": round(r.Download), "bytes": r.Bytes, "slots": r.Slots, "feeders": r.Feeders,
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "gpu", "real", "`KIND` of GPU: real or sim")
	f.Var(&size, "size", "`SIZE` of a copy")
	f.Var(&memory, "rdma-memory", "`SIZE` of the pinned memory")
	f.IntVar(&feeders, "feeders", 0, "`N` threads that copy between slots and other memory; 0: the slots count as written and read by a network card")
	f.IntVar(&rounds, "rounds", 5, "`N` rounds; the best counts")
	return cmd
}

func round(v float64) json.Number { return json.Number(fmt.Sprintf("%.1f", v/1e9)) }
