package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/spawner"
)

// What a worker writes into the server's log: so much at once, and so much a second. A crash of Go's with all its
// goroutines fits.
const (
	workerBurst = 1 << 20
	workerRate  = 64 << 10
	workerLine  = 16 << 10 // of one line; what the driver wrote to its standard error fits, quoted
)

// lastWords is how long the text of a worker that is gone is waited for: what it started may hold the pipe.
const lastWords = 5 * time.Second

// workerLog copies the lines of a worker into the server's log. The worker has a pipe: with the log's own file it could
// empty the log, or write lines that nobody tells from the supervisor's. A line that the worker's logger made, which
// names the worker, goes on as it is; any other, such as a crash, becomes the text of a line of the supervisor's.
type workerLog struct {
	from *os.File
	to   io.Writer
	log  *slog.Logger
	own  func(line []byte) bool // the worker's logger made it
	pid  int
	done chan struct{}

	room   int // that the worker may write at once, since when
	since  time.Time
	missed int // lines that were left out
}

// follow copies the lines of a worker until nobody has the other end of the pipe.
func (s *supervisor) follow(worker *spawner.Worker, from *os.File) *workerLog {
	l := &workerLog{
		from: from, to: s.cfg.Stderr, log: s.log, own: ownLine(s.cfg.LogFormat, worker.PID), pid: worker.PID,
		done: make(chan struct{}), room: workerBurst, since: time.Now(),
	}
	go func() {
		defer close(l.done)
		defer from.Close()
		l.copy(from)
	}()
	return l
}

// end waits for the last words of a worker that has ended with err.
func (l *workerLog) end(err error) {
	if errors.Is(err, spawner.ErrLost) {
		return // it may go on
	}
	_ = l.from.SetReadDeadline(time.Now().Add(lastWords))
	<-l.done
}

func (l *workerLog) copy(from io.Reader) {
	r := bufio.NewReaderSize(from, workerLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			l.write(line)
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a long line
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			break
		}
	}
	l.sayMissed()
}

func (l *workerLog) write(line []byte) {
	now := time.Now()
	if gone := now.Sub(l.since); gone > time.Second {
		l.room = min(workerBurst, l.room+int(min(gone, time.Minute)/time.Second)*workerRate)
		l.since = now
	}
	if l.room < len(line) {
		l.missed++
		return
	}
	l.room -= len(line)
	l.sayMissed()
	if l.own(line) {
		_, _ = l.to.Write(line) // nobody to tell
		return
	}
	text := door.Clip(strings.TrimSuffix(string(line), "\n"), workerLine)
	if text != "" {
		l.log.Error("a worker wrote", "worker", l.pid, "text", text)
	}
}

func (l *workerLog) sayMissed() {
	if l.missed > 0 {
		l.log.Warn("lines of a worker were left out", "worker", l.pid, "lines", l.missed)
		l.missed = 0
	}
}

// ownLine gives what tells the lines of a worker's own logger. They name the worker first, and no other.
func ownLine(format config.LogFormat, pid int) func([]byte) bool {
	const quoted = `"(?:[^"\\]|\\.)*"`
	text := regexp.MustCompile(fmt.Sprintf(`^time=\S+ level=[A-Z0-9+-]+ msg=(?:%s|[^\s"]*) worker=%d[ \n]`, quoted, pid))
	object := regexp.MustCompile(fmt.Sprintf(`^\{"time":"[^"\\]*","level":"[A-Z0-9+-]+","msg":%s,"worker":%d[,}]`, quoted,
		pid))
	return func(line []byte) bool {
		if len(line) == 0 || line[len(line)-1] != '\n' || !utf8.Valid(line) ||
			strings.ContainsFunc(string(line[:len(line)-1]), func(r rune) bool { return !unicode.IsPrint(r) }) {
			return false
		}
		if format != config.LogJSON {
			return text.Match(line) && strings.Count(string(line), " worker=") == 1
		}
		var said struct{ Worker int } // the last one counts, whatever its case
		return object.Match(line) && json.Unmarshal(line, &said) == nil && said.Worker == pid
	}
}
