package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"scuda.dev/scuda/perf/baseline"
)

// counted is a result of perf/gpu/baseline.py.
type counted struct {
	Date, Machine, Kernel, Torch string
	Programs                     []struct {
		Name           string
		First          map[string]uint64
		Native, Remote struct{ Base, Run *baseline.Run }
	}
}

// systemCalls writes a line for each program and system call: what the first SCUDA published, what the program does
// natively and over scuda, what of it PyTorch's loading alone does, and how much more scuda does on the network and on
// files.
func systemCalls(b []byte) (string, error) {
	var c counted
	if err := json.Unmarshal(b, &c); err != nil {
		return "", err
	}
	var t strings.Builder
	fmt.Fprintf(&t, "%s, PyTorch %s, counted with %s on %s.\n\n", c.Machine, c.Torch, c.Programs[0].Remote.Run.Counter,
		c.Date)
	t.WriteString(
		"| | call | the first SCUDA | native | over scuda | of it loading PyTorch | scuda's own on the network |\n" +
			"|---|---|---|---|---|---|---|\n")
	for _, p := range c.Programs {
		for i, row := range baseline.Rows {
			network := int64(p.Remote.Run.Sum(row.Calls, "network")) - int64(p.Remote.Base.Sum(row.Calls, "network"))
			own := fmt.Sprint(network)
			if slices.Contains(row.Calls, "openat") {
				own = ""
			}
			first, name := "", ""
			if n, published := p.First[row.Calls[0]]; published && len(row.Calls) == 1 {
				first = fmt.Sprint(n)
			}
			if i == 0 {
				name = "`" + p.Name + "`"
			}
			fmt.Fprintf(&t, "| %s | %s | %s | %d | %d | %d | %s |\n", name, row.Name, first, p.Native.Run.Sum(row.Calls, ""),
				p.Remote.Run.Sum(row.Calls, ""),
				p.Remote.Base.Sum(row.Calls, ""), own)
		}
	}
	return t.String(), nil
}
