package config

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// Each rank has a server of the list, those of one server follow each other, and a process of no launcher has the one
// that SCUDA_SERVER names.
func TestSpread(t *testing.T) {
	for name, c := range map[string]struct {
		servers, spread string
		env             []string // name, value
		want, fails     string
	}{
		"no launcher":             {"a", "a,b", nil, "a:14833", ""},
		"nothing":                 {"a", " ", []string{"RANK", "1"}, "a:14833", ""},
		"no server":               {"", "a,b", []string{"RANK", "1"}, "", ""},
		"torchrun":                {"a", "a,b:7", []string{"RANK", "1", "WORLD_SIZE", "2", "LOCAL_RANK", "0"}, "b:7", ""},
		"two of each, first":      {"a", "a,b", []string{"RANK", "1", "WORLD_SIZE", "4"}, "a:14833", ""},
		"two of each, second":     {"a", "a, b", []string{"RANK", "2", "WORLD_SIZE", "4"}, "b:14833", ""},
		"three of two":            {"a", "a,b", []string{"RANK", "2", "WORLD_SIZE", "3"}, "b:14833", ""},
		"fewer than servers":      {"a", "a,b,c", []string{"RANK", "1", "WORLD_SIZE", "2"}, "b:14833", ""},
		"nobody says how many":    {"a", "a,b", []string{"RANK", "3"}, "b:14833", ""},
		"a rank beyond":           {"a", "a,b", []string{"RANK", "7", "WORLD_SIZE", "4"}, "b:14833", ""},
		"Open MPI":                {"a", "a,b", []string{"OMPI_COMM_WORLD_RANK", "1"}, "b:14833", ""},
		"Slurm":                   {"a", "a,b", []string{"SLURM_PROCID", "1", "SLURM_NTASKS", "2"}, "b:14833", ""},
		"MPICH":                   {"a", "a,b", []string{"PMI_RANK", "1", "PMI_SIZE", "2"}, "b:14833", ""},
		"a machine's ranks alone": {"a", "a,b", []string{"LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "2"}, "b:14833", ""},
		"no rank":                 {"a", "a,b", []string{"RANK", "-1"}, "", "RANK is \"-1\""},
		"a large rank":            {"a", "a,b", []string{"RANK", "99999999999"}, "", "no rank"},
		"no address":              {"a", "a,b:x", []string{"RANK", "0"}, "", "b:x"},
		"an empty address":        {"a", "a,", []string{"RANK", "0"}, "", "SCUDA_SPREAD"},
	} {
		t.Run(name, func(t *testing.T) {
			home(t)
			for _, names := range launchers {
				unset(t, names[0])
				unset(t, names[1])
			}
			t.Setenv("SCUDA_SERVER", c.servers)
			t.Setenv("SCUDA_SPREAD", c.spread)
			for i := 0; i+1 < len(c.env); i += 2 {
				t.Setenv(c.env[i], c.env[i+1])
			}
			got, _, err := Server()
			if c.fails != "" {
				if !errors.Is(err, ErrSpread) || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%q, %v", got, err)
				}
			} else if got != c.want || err != nil {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func unset(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "") // what it was comes back
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}

// Whatever ranks and servers there are, there is a server for each rank.
func FuzzServerOf(f *testing.F) {
	f.Add(uint32(3), uint32(4), uint32(2))
	f.Fuzz(func(t *testing.T, rank, ranks, servers uint32) {
		servers = max(servers, 1)
		if got := serverOf(uint64(rank), uint64(ranks), uint64(servers)); got >= uint64(servers) {
			t.Errorf("rank %d of %d has server %d of %d", rank, ranks, got, servers)
		}
	})
}
