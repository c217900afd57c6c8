package spawner

import (
	"cmp"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A supervisor may be killed, and another be started in its place, while its sessions go on. What they need of it lies
// with the spawner: descriptors that it holds and does not look into. They go to a supervisor of the same user, and to
// nobody else: to the next one that listens at the spawner's socket.

// KeptFiles and HouseFiles are how many descriptors are kept of each worker, and of the server as a whole.
const (
	KeptFiles  = 5
	HouseFiles = 2
)

// KeepTime is how long workers go on without a supervisor.
const KeepTime = time.Minute

// keeper has the workers of one supervisor after the other.
type keeper struct {
	keeps bool // those with descriptors outlive their supervisor
	most  int  // workers
	time  time.Duration
	log   *slog.Logger

	mu      sync.Mutex
	line    *line // to the supervisor that there is
	workers map[uint64]*ward
	house   []*os.File
	owner   uint32 // the user of supervisors
	known   bool   // ... there has been one
	late    *time.Timer
}

// ward is a worker.
type ward struct {
	*Worker
	files []*os.File // none: it ends with its supervisor
	ended *packet    // while there was no supervisor
}

func newKeeper(keeps bool, log *slog.Logger) *keeper {
	return &keeper{keeps: keeps, most: mostOf(unix.Getrlimit), time: KeepTime, log: log,
		workers: make(map[uint64]*ward)}
}

// mostOf is how many workers one spawner may have: each takes what is kept of it, its process, and two more while it
// starts. Without descriptors the spawner would lose its supervisor, and the sessions with that.
func mostOf(limit func(int, *unix.Rlimit) error) int {
	var r unix.Rlimit
	if limit(unix.RLIMIT_NOFILE, &r) != nil {
		return mostWorkers
	}
	return int(max(1, min(mostWorkers, (r.Cur-min(r.Cur, ownFiles))/(KeptFiles+3))))
}

// ownFiles are descriptors of the spawner's own, at most.
const ownFiles = 64

// welcome gives a new supervisor what is kept, and it hears of workers from then on. Who is another user gets nothing.
func (k *keeper) welcome(l line, uid uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.late != nil {
		k.late.Stop()
	}
	if k.known && uid != k.owner {
		k.log.Warn("the server has another user than the one before, whose sessions end", "user", uid, "before", k.owner)
		k.drop()
	}
	k.owner, k.known = uid, true
	if len(k.house) > 0 {
		if err := l.send(&packet{Kind: kindHouse}, k.house...); err != nil {
			return err
		}
	}
	for id, w := range k.workers {
		if err := l.send(&packet{Kind: kindKept, ID: id, PID: uint32(w.PID)}, w.files...); err != nil {
			return err
		}
	}
	if err := l.send(&packet{Kind: kindAll}); err != nil {
		return err
	}
	k.line = &l
	for id, w := range k.workers {
		if w.ended != nil {
			k.forget(id, w)
			if err := l.send(w.ended); err != nil {
				return err
			}
		}
	}
	return nil
}

// add takes a worker that was started, and tells its supervisor.
func (k *keeper) add(id uint64, w *Worker) error {
	k.mu.Lock()
	of := &ward{Worker: w}
	k.workers[id] = of
	var err error
	if k.line != nil {
		err = k.line.send(&packet{Kind: kindStarted, ID: id, PID: uint32(w.PID)})
	}
	k.mu.Unlock()
	go k.follow(id, of)
	return err
}

// follow waits for a worker's end and tells the supervisor: the next one where there is none.
func (k *keeper) follow(id uint64, w *ward) {
	end := &packet{Kind: kindExited, ID: id}
	if err := w.Wait(); err != nil {
		end.Text = err.Error()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.workers[id] != w {
		return
	}
	told := k.line != nil && k.line.send(end) == nil // one that was killed may not have been noticed to be gone
	if !told && len(w.files) > 0 {
		w.ended = end
		return
	}
	k.forget(id, w)
}

// forget lets go of a worker. mu is held.
func (k *keeper) forget(id uint64, w *ward) {
	closeAll(w.files)
	w.files = nil
	delete(k.workers, id)
}

// keep takes descriptors in the place of those before.
func (k *keeper) keep(id uint64, files []*os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[id]; w != nil && k.keeps {
		files, w.files = w.files, files
	}
	closeAll(files)
}

// keepHouse does so for those of the server.
func (k *keeper) keepHouse(files []*os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeps {
		files, k.house = k.house, files
	}
	closeAll(files)
}

// kill ends a worker, unless it is gone already.
func (k *keeper) kill(id uint64) {
	k.mu.Lock()
	w := k.workers[id]
	k.mu.Unlock()
	if w != nil {
		_ = w.Kill()
	}
}

// full says whether a worker can be started under a number.
func (k *keeper) full(id uint64) (full, twice bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, twice = k.workers[id]
	return len(k.workers) >= k.most, twice
}

// farewell is a supervisor's last word: nobody comes after it.
func (k *keeper) farewell() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.empty()
	for _, w := range k.workers {
		closeAll(w.files)
		w.files = nil
	}
}

// empty lets go of what is the server's. mu is held.
func (k *keeper) empty() {
	closeAll(k.house)
	k.house = nil
}

// drop lets go of all that is kept, and ends the workers. mu is held.
func (k *keeper) drop() {
	k.empty()
	for id, w := range k.workers {
		_ = w.Kill()
		k.forget(id, w)
	}
}

// partTime is how long a worker that ends with its supervisor may take to tell its client why.
const partTime = time.Second

// left is called when a supervisor is gone. Workers that nobody needs end, and the others when no supervisor comes. It
// returns when those are gone that end: the next supervisor finds their memory free.
func (k *keeper) left() {
	k.mu.Lock()
	k.line = nil
	var ends []*ward
	for id, w := range k.workers {
		if len(w.files) == 0 {
			k.forget(id, w)
			ends = append(ends, w)
		}
	}
	if len(k.workers) > 0 || len(k.house) > 0 {
		k.log.Info("the server is gone; sessions wait for the next one", "sessions", len(k.workers), "for", k.time)
		k.late = time.AfterFunc(k.time, k.giveUp)
	}
	k.mu.Unlock()
	late := time.AfterFunc(partTime, func() { // they end with their lines, unless they hang or were taken over
		for _, w := range ends {
			_ = w.Kill()
		}
	})
	defer late.Stop()
	for _, w := range ends {
		_ = w.Wait()
	}
}

// giveUp ends what has waited for a supervisor.
func (k *keeper) giveUp() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.line == nil {
		k.log.Warn("no server has come; the sessions of the one before end", "after", k.time)
		k.drop()
	}
}

// Kept is a worker of a supervisor before this one, with what that one had the spawner keep.
type Kept struct {
	*Worker
	Files []*os.File // [KeptFiles], the receiver's
}

// Close ends a worker that nobody takes over.
func (k *Kept) Close() {
	_ = k.Kill()
	closeAll(k.Files)
}

// sortKept sorts by age, as numbers grow.
func sortKept(list []Kept) {
	slices.SortFunc(list, func(a, b Kept) int { return cmp.Compare(a.id, b.id) })
}
