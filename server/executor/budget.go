package executor

import (
	"log/slog"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/metrics"
)

// budget is how much of a kind of memory a session may have. It belongs to the executor's thread alone.
type budget struct {
	limit, used uint64 // bytes; limit 0: no bound
	of          string
	refused     metrics.Series // counts what was refused
	log         *slog.Logger
	page        *metrics.Page
	said        bool
}

func newBudget(cfg *Config, limit config.Size, of string, refused metrics.Series) budget {
	return budget{limit: uint64(limit), of: of, refused: refused, log: cfg.Log, page: cfg.Metrics}
}

// take says whether so many bytes more may be had, and books them. Where not, the answer to the client is
// CUDA_ERROR_OUT_OF_MEMORY.
func (b *budget) take(bytes uint64) bool {
	if b.limit == 0 || bytes <= b.limit && b.used <= b.limit-bytes {
		b.used += bytes
		return true
	}
	b.refuse(bytes, b.used)
	return false
}

// refuse notes that more was wanted than may be had.
func (b *budget) refuse(wants, has uint64) {
	b.page.Add(b.refused, 1)
	if !b.said {
		b.said = true
		b.log.Warn("all the memory is taken that may be had; CUDA_ERROR_OUT_OF_MEMORY (2) was answered", "limit", b.of,
			"bytes", b.limit, "has", has, "wants", wants)
	}
}

// give takes back what was booked.
func (b *budget) give(bytes uint64) { b.used -= bytes }
