package config

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ErrSpread is wrapped by what is wrong with SCUDA_SPREAD, and with the variables that go with it.
var ErrSpread = errors.New("SCUDA_SPREAD")

// launchers are the variables by which launchers of ranks say which rank a process is, and of how many. The first pair
// that is set counts: torchrun's, those of Open MPI, of MPICH and its like, and of Slurm.
var launchers = [...][2]string{{"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}, {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}}

// Spread reads a list of servers, HOST:PORT with commas between.
func Spread(list string) ([]string, error) {
	var servers []string
	for word := range strings.SplitSeq(list, ",") {
		addr, err := Address(strings.Trim(word, blanks))
		if err != nil {
			return nil, err
		}
		servers = append(servers, addr)
	}
	return servers, nil
}

// spread gives this process's server of SCUDA_SPREAD, "" where that says nothing or no launcher started the process.
func spread() (addr string, err error) {
	list := strings.Trim(os.Getenv("SCUDA_SPREAD"), blanks)
	if list == "" {
		return "", nil
	}
	servers, err := Spread(list)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSpread, err)
	}
	for _, names := range launchers {
		word, set := os.LookupEnv(names[0])
		if !set {
			continue
		}
		rank, err := strconv.ParseUint(word, 10, 31)
		if err != nil {
			return "", fmt.Errorf("%w: %s is %q, which is no rank", ErrSpread, names[0], word)
		}
		ranks, err := strconv.ParseUint(os.Getenv(names[1]), 10, 31)
		if err != nil {
			ranks = 0 // nobody says
		}
		return servers[serverOf(rank, ranks, uint64(len(servers)))], nil
	}
	return "", nil
}

// serverOf is the number of a rank's server. Ranks that follow each other have the same where there are more of them
// than servers, as they would on the same machine.
func serverOf(rank, ranks, servers uint64) uint64 {
	if ranks > servers && rank < ranks {
		return rank * servers / ranks
	}
	return rank % servers
}
