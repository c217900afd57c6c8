package lease

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string) *Book {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func of(tenant string) Lease { return Lease{Tenant: tenant, Terms: Usual()} }

func grant(t testing.TB, b *Book, l Lease, lasts time.Duration) (Lease, string) {
	t.Helper()
	l, credential, err := b.Grant(l, lasts)
	if err != nil {
		t.Fatal(err)
	}
	return l, credential
}

func TestBook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "leases")
	b := open(t, path)
	l := of("vision")
	l.Label, l.Memory, l.Sessions, l.Class, l.Share = "job 7", 1<<30, 2, High, 300
	l.GPUs = []string{UUID([16]byte{1})}
	a, first := grant(t, b, l, time.Hour)
	c, second := grant(t, b, of("text"), time.Hour)
	if a.ID == c.ID || first == second || a.Expires.Sub(a.Created) != time.Hour || a.Name() != a.ID+" (job 7)" {
		t.Errorf("%+v, %+v", a, c)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), strings.TrimPrefix(first, prefix)) {
		t.Errorf("the file has a credential, or is not there: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	for _, b := range []*Book{b, open(t, path)} { // and after a restart
		if got, err := b.Find([]byte(first)); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%+v, %v; granted was %+v", got, err, a)
		}
		if list := b.Leases(); len(list) != 2 || b.ByTenant()["text"] != 1 || b.Taken()[l.GPUs[0]] != 300 {
			t.Errorf("%+v", list)
		}
	}
	for _, wrong := range []string{
		"", first[:len(first)-1], first + "0", a.ID, sumOf([]byte(first)), strings.ToUpper(first),
	} {
		if _, err := b.Find([]byte(wrong)); !errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := b.Revoke(a.ID, "the job was cancelled"); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*Book{b, open(t, path)} {
		_, err := b.Find([]byte(first))
		if !errors.Is(err, ErrRevoked) || !strings.Contains(err.Error(), "the job was cancelled; ask") {
			t.Errorf("of a lease that was revoked: %v", err)
		}
		if _, err := b.Get(a.ID); !errors.Is(err, ErrRevoked) {
			t.Error(err)
		}
		if _, err := b.Revoke(a.ID, ""); !errors.Is(err, ErrNone) {
			t.Errorf("revoked again: %v", err)
		}
		if len(b.Leases()) != 1 {
			t.Errorf("%+v", b.Leases())
		}
	}
}

func TestBadTerms(t *testing.T) {
	b := open(t, "")
	for name, change := range map[string]func(*Lease){
		"tenant":     func(l *Lease) { l.Tenant = "a b" },
		"no tenant":  func(l *Lease) { l.Tenant = "" },
		"label":      func(l *Lease) { l.Label = "a\x1b[2J" },
		"long label": func(l *Lease) { l.Label = strings.Repeat("x", mostLabel+1) },
		"no text":    func(l *Lease) { l.Label = "\xff" },
		"share":      func(l *Lease) { l.Share = 0 },
		"big share":  func(l *Lease) { l.Share = MostShare + 1 },
		"class":      func(l *Lease) { l.Class = 7 },
		"GPU":        func(l *Lease) { l.GPUs = []string{"0"} },
		"GPU twice":  func(l *Lease) { l.GPUs = []string{UUID([16]byte{1}), UUID([16]byte{1})} },
		"many GPUs":  func(l *Lease) { l.GPUs = make([]string, MostGPUs+1) },
	} {
		l := of("a")
		if change(&l); name == "" {
			continue
		}
		if _, _, err := b.Grant(l, time.Hour); err == nil {
			t.Errorf("%s: it is granted", name)
		}
	}
	for _, lasts := range []time.Duration{0, -1, time.Millisecond, MostTime + 1} {
		if _, _, err := b.Grant(of("a"), lasts); !errors.Is(err, ErrTerms) {
			t.Errorf("%v: %v", lasts, err)
		}
	}
	if n := len(b.Leases()); n != 0 {
		t.Errorf("%d leases", n)
	}
}

// A lease that cannot be kept is not made; one that is revoked ends all the same.
func TestCannotBeKept(t *testing.T) {
	folder := t.TempDir()
	b := open(t, filepath.Join(folder, "in", "leases"))
	l, credential := grant(t, b, of("a"), time.Hour)
	if err := os.RemoveAll(filepath.Join(folder, "in")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "in"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Grant(of("a"), time.Hour); !errors.Is(err, ErrKept) {
		t.Errorf("granted: %v", err)
	}
	if len(b.Leases()) != 1 {
		t.Errorf("%+v", b.Leases())
	}
	if _, err := b.Revoke(l.ID, ""); !errors.Is(err, ErrKept) {
		t.Errorf("revoked: %v", err)
	}
	if _, err := b.Find([]byte(credential)); !errors.Is(err, ErrRevoked) {
		t.Errorf("it holds: %v", err)
	}
	if _, _, err := open(t, b.path).Grant(of("a"), time.Hour); !errors.Is(err, ErrKept) { // a server serves without
		t.Errorf("granted by a book whose folder cannot be: %v", err)
	}
}

// A GPU that a lease has to itself is in no other one, until that is over; nor does a lease get one to itself that
// another has.
func TestExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases")
	b := open(t, path)
	on := func(exclusive bool, gpus ...byte) Lease {
		l := of("a")
		l.Exclusive = exclusive
		for _, g := range gpus {
			l.GPUs = append(l.GPUs, UUID([16]byte{g}))
		}
		return l
	}
	first, _ := grant(t, b, on(true, 1, 2), time.Hour)
	shared, _ := grant(t, b, on(false, 3), time.Hour)
	grant(t, b, on(false, 3), time.Hour)
	for _, b := range []*Book{b, open(t, path)} { // and after a restart
		for _, l := range []Lease{on(true, 2, 4), on(false, 1), on(true, 3), on(false)} {
			if _, _, err := b.Grant(l, time.Hour); !errors.Is(err, ErrTaken) {
				t.Errorf("%+v: %v", l, err)
			}
		}
		if _, _, err := b.Grant(on(true), time.Hour); !errors.Is(err, ErrTerms) {
			t.Errorf("all GPUs: %v", err)
		}
	}
	if _, err := b.Revoke(first.ID, ""); err != nil {
		t.Fatal(err)
	}
	grant(t, b, on(true, 2, 4), time.Hour)
	if _, err := b.Revoke(shared.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Grant(on(true, 3), time.Hour); !errors.Is(err, ErrTaken) {
		t.Errorf("another one has it still: %v", err)
	}
}

// Many ask for the same GPU at once, and one has it.
func TestExclusiveAtOnce(t *testing.T) {
	b := open(t, "")
	l := of("a")
	l.Exclusive, l.GPUs = true, []string{UUID([16]byte{1})}
	got := make(chan error)
	for range 32 {
		go func() {
			_, _, err := b.Grant(l, time.Hour)
			got <- err
		}()
	}
	n := 0
	for range 32 {
		if err := <-got; err == nil {
			n++
		} else if !errors.Is(err, ErrTaken) {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("%d leases", n)
	}
}

// A lease that is renewed in time goes on, and ends when nobody does any more.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, filepath.Join(t.TempDir(), "leases"))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan time.Time)
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Watch(ctx, func(e *OverError) { over <- e.When })
		}()
		l, credential := grant(t, b, of("a"), time.Minute)
		for range 5 {
			time.Sleep(40 * time.Second)
			got, err := b.Renew(l.ID, time.Minute)
			if err != nil || time.Until(got.Expires) != time.Minute {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		if got, err := b.Renew(l.ID, time.Second); err != nil || time.Until(got.Expires) != time.Minute {
			t.Errorf("it has become shorter: %+v, %v", got, err)
		}
		if _, err := open(t, b.path).Find([]byte(credential)); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		if when := <-over; when.Sub(l.Created) != 260*time.Second {
			t.Errorf("it is over after %v", when.Sub(l.Created))
		}
		if _, err := b.Renew(l.ID, time.Minute); !errors.Is(err, ErrNone) {
			t.Errorf("of one that is over: %v", err)
		}
		for _, lasts := range []time.Duration{0, MostTime + 1} {
			if _, err := b.Renew(l.ID, lasts); !errors.Is(err, ErrTerms) {
				t.Errorf("%v: %v", lasts, err)
			}
		}
		l, _ = grant(t, b, of("a"), time.Minute)
		b.path = filepath.Join(b.path, "none")
		if _, err := b.Renew(l.ID, time.Hour); !errors.Is(err, ErrKept) {
			t.Errorf("it cannot be kept: %v", err)
		}
		if got, err := b.Get(l.ID); err != nil || time.Until(got.Expires) != time.Minute {
			t.Errorf("%+v, %v", got, err)
		}
		cancel()
		<-done
	})
}

func TestFull(t *testing.T) {
	b := open(t, "")
	var last Lease
	for range MostLeases {
		last, _ = grant(t, b, of("a"), time.Hour)
	}
	if _, _, err := b.Grant(of("a"), time.Hour); !errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
	if _, err := b.Revoke(last.ID, ""); err != nil {
		t.Fatal(err)
	}
	grant(t, b, of("a"), time.Hour)
}

// Each lease ends when its time is up, those that came while nobody looked among them, and what is over is forgotten.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, "")
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan string, 4)
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Watch(ctx, func(e *OverError) { over <- e.Lease.Label })
		}()
		began := time.Now()
		for label, lasts := range map[string]time.Duration{"long": 3 * time.Hour, "short": 90 * time.Second} {
			l := of("a")
			l.Label = label
			grant(t, b, l, lasts)
			synctest.Wait()
		}
		_, credential := grant(t, b, of("a"), time.Second)
		for _, want := range []struct {
			label string
			after time.Duration
		}{{"", time.Second}, {"short", 90 * time.Second}, {"long", 3 * time.Hour}} {
			if got := <-over; got != want.label || time.Since(began) != want.after {
				t.Errorf("%q ends after %v", got, time.Since(began))
			}
		}
		_, err := b.Find([]byte(credential))
		if !errors.Is(err, ErrExpired) || !strings.Contains(err.Error(), "has expired at ") {
			t.Error(err)
		}
		time.Sleep(remembered)
		grant(t, b, of("a"), time.Hour)
		if _, err := b.Find([]byte(credential)); !errors.Is(err, ErrNone) {
			t.Errorf("after %v: %v", remembered, err)
		}
		cancel()
		<-done
	})
}

// A lease whose time is up holds nobody's, even before somebody looks.
func TestExpiredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, "")
		l, credential := grant(t, b, of("a"), time.Hour)
		time.Sleep(time.Hour - 1)
		if _, err := b.Find([]byte(credential)); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := b.Find([]byte(credential)); !errors.Is(err, ErrExpired) {
			t.Error(err)
		}
		if _, err := b.Revoke(l.ID, ""); !errors.Is(err, ErrNone) || len(b.Leases()) != 0 {
			t.Error(err)
		}
	})
}

// Whatever is granted, revoked and restarted in whatever order: the book says of each credential what a list says.
func TestBookAgainstAList(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := open(t, "")
		type known struct {
			Lease
			credential string
			over       bool
		}
		var all []*known
		r.Repeat(map[string]func(*rapid.T){
			"grant": func(r *rapid.T) {
				l := of(rapid.SampledFrom([]string{"a", "b"}).Draw(r, "tenant"))
				l.Class = Class(rapid.IntRange(-1, 1).Draw(r, "class"))
				l.Share = rapid.Uint32Range(1, MostShare).Draw(r, "share")
				l, credential := grant(t, b, l, time.Hour)
				all = append(all, &known{l, credential, false})
			},
			"revoke": func(r *rapid.T) {
				if len(all) == 0 {
					r.Skip()
				}
				k := rapid.SampledFrom(all).Draw(r, "lease")
				if _, err := b.Revoke(k.ID, "why"); (err == nil) == k.over {
					r.Fatalf("revoked, over %v: %v", k.over, err)
				}
				k.over = true
			},
			"restart": func(r *rapid.T) {
				text, err := b.text()
				if err != nil {
					r.Fatal(err)
				}
				if b = open(t, ""); b.read(text) != nil {
					r.Fatalf("what was kept cannot be read\n%s", text)
				}
			},
			"": func(r *rapid.T) {
				live, others := 0, 0
				for _, k := range all {
					got, err := b.Find([]byte(k.credential))
					if (err == nil) == k.over || !reflect.DeepEqual(got, k.Lease) {
						r.Fatalf("%+v: %+v, %v", k, got, err)
					}
					if !k.over {
						live++
						if k.Tenant != "a" {
							others++
						}
					}
				}
				if b.Only("a") != (others == 0) {
					r.Fatalf("only a's: %v, with %d of others", b.Only("a"), others)
				}
				if n := len(b.Leases()); n != live || b.live != live {
					r.Fatalf("%d leases, %d counted, of %d", n, b.live, live)
				}
			},
		})
	})
}
