package slurm

import (
	"testing"
	"time"
)

func TestParseJob(t *testing.T) {
	for line, want := range map[string]Job{
		"4711|RUNNING|2|scuda:4|5:00\n":      {4711, "RUNNING", 2, "scuda:4", 5 * time.Minute},
		"1|PENDING|1|(null)|UNLIMITED":       {1, "PENDING", 1, "(null)", 0},
		"2|RUNNING|1|a,scuda|1-02:03:04\n":   {2, "RUNNING", 1, "a,scuda", 26*time.Hour + 3*time.Minute + 4*time.Second},
		"3|COMPLETING|1|scuda:1|10:00:00":    {3, "COMPLETING", 1, "scuda:1", 10 * time.Hour},
		"":                                   {},
		"x|RUNNING|1|scuda|5:00":             {},
		"1|RUNNING|1|scuda|5":                {},
		"1|RUNNING|1|scuda|-1:00":            {},
		"1|RUNNING|1|scuda|5:00|more":        {},
		"99999999999|RUNNING|1|scuda:1|5:00": {},
	} {
		got, err := parseJob(line)
		if got != want || (err == nil) != (want.ID != 0) {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
}

func FuzzParseJob(f *testing.F) {
	f.Add("4711|RUNNING|2|scuda:4|1-02:03:04")
	f.Fuzz(func(t *testing.T, line string) {
		j, err := parseJob(line)
		s := Site{Licence: "scuda", Longest: Duration(time.Hour), Grace: Duration(time.Minute)}
		if n, err2 := s.gpus(&j); err == nil && err2 == nil && (n < 0 || n > maxGPUs) {
			t.Errorf("%q: %d GPUs", line, n)
		}
		if d := s.lasts(&j); d <= 0 || d > time.Hour+time.Minute {
			t.Errorf("%q: %v", line, d)
		}
	})
}

func TestGPUs(t *testing.T) {
	s := Site{Licence: "scuda"}
	for _, c := range []struct {
		licences string
		nodes    int
		want     int
	}{
		{"(null)", 1, 0}, {"", 0, 0}, {"scuda", 1, 1}, {"scuda:4", 2, 2}, {"scuda:3", 2, -1}, {"matlab:2,scuda:2", 1, 2},
		{"scuda_vram:80", 1, 0}, {"myscuda:3", 1, 0}, {"scuda@db:2", 1, 2}, {"scuda:65", 1, -1}, {"scuda:x", 1, 0},
	} {
		got, err := s.gpus(&Job{Nodes: c.nodes, Licences: c.licences})
		if err != nil {
			got = -1
		}
		if got != c.want {
			t.Errorf("%q on %d nodes: %d, %v", c.licences, c.nodes, got, err)
		}
	}
}

func TestTasksOn(t *testing.T) {
	for _, c := range []struct {
		list string
		node int
		want int
	}{{"1", 0, 1}, {"2(x3),1", 0, 2}, {"2(x3),1", 2, 2}, {"2(x3),1", 3, 1}, {"2(x3),1", 4, 0}, {"", 0, 0}, {"x", 0, 0},
		{"2(x", 0, 0}, {"4,2", 1, 2}} {
		if got := tasksOn(c.list, c.node); got != c.want {
			t.Errorf("%q on %d: %d", c.list, c.node, got)
		}
	}
}

func TestTotal(t *testing.T) {
	if got, err := total("20GiB", 3); err != nil || got != "60GiB" {
		t.Error(got, err)
	}
}

// Whoever looks at the same leases says the same of who has a place.
func TestAdmitted(t *testing.T) {
	l := func(id string, gpus, second int) Lease {
		return Lease{ID: id, GPUs: make([]string, gpus), Created: time.Unix(int64(second), 0)}
	}
	in := admitted([]Lease{l("late", 1, 9), l("big", 3, 2), l("a", 1, 1), l("same", 1, 1)}, 3)
	if len(in) != 3 || !in["a"] || !in["same"] || !in["late"] {
		t.Error(in)
	}
}
