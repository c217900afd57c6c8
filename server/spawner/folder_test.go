package spawner

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/isolation"
)

const stranger = 65534

// asStranger does something as a user that has nothing to do with the server.
func asStranger(t *testing.T, f func()) {
	t.Helper()
	isolation.OnThread(func() {
		if err := becomeUser(stranger, nil); err != nil {
			t.Error(err)
			return
		}
		f()
	})
}

// homeOf is the folder that a worker was told.
func homeOf(w *worker) string {
	_, home, _ := strings.Cut(w.ask("env"), "HOME=")
	home, _, _ = strings.Cut(home, "\n")
	return home
}

// Nobody but the spawner makes a name in the folder of workers: the names can be foretold, and who had one first would
// keep a tenant, or the server, from starting.
func TestNamesInTheFolderOfWorkers(t *testing.T) {
	dir := folder(t)
	r := launched(t, Config{Folder: dir})
	alice := Order{Tenant: KeyOf("alice"), UID: users.First}
	bob := Order{Tenant: KeyOf("bob"), UID: users.First + 1}
	path := filepath.Join(dir, bob.folder())
	asStranger(t, func() {
		if err := unix.Mkdir(path, 0o700); !errors.Is(err, unix.EACCES) {
			t.Errorf("a stranger makes %s: %v", path, err)
		}
		if _, err := os.ReadDir(dir); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a stranger lists the folder: %v", err)
		}
	})
	w := start(t, r, alice)
	if got := w.ask("write " + path); got == "done" {
		t.Error("a worker makes a name for another tenant")
	}
	if got, want := homeOf(w), filepath.Join(dir, alice.folder()); got != want {
		t.Errorf("alice's folder is %q, not %q", got, want)
	}
	if got := w.ask("write " + filepath.Join(homeOf(w), "cuda", "file")); got != "done" {
		t.Errorf("alice's worker does not write its folder: %s", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(homeOf(w), &st); err != nil || st.Uid != alice.UID || st.Mode&0o7777 != 0o700 {
		t.Errorf("alice's folder: %v, user %d, mode %o", err, st.Uid, st.Mode)
	}
}

// What lies in a tenant's place, from a time when others could make names there, is set aside. It keeps nobody out.
func TestForeignFolder(t *testing.T) {
	for name, lay := range map[string]func(path string) error{
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":   func(path string) error { return os.Symlink("/", path) },
		"file":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			order := Order{Tenant: KeyOf("alice"), UID: users.First, Enclosed: isolation.Landlock() == nil}
			path := filepath.Join(dir, order.folder())
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, os.ModeSticky|0o733)); err != nil {
				t.Fatal(err)
			}
			asStranger(t, func() {
				if err := lay(path); err != nil {
					t.Error(err)
				}
			})
			r := launched(t, Config{Folder: dir})
			for range 2 { // the second finds the tenant's own
				w := start(t, r, order)
				if got := homeOf(w); got != path {
					t.Errorf("the folder is %q, not %q", got, path)
				}
				if got := w.ask("write " + path + "/file"); got != "done" {
					t.Errorf("the worker does not write its folder: %s", got)
				}
			}
			aside, err := filepath.Glob(path + ".foreign-*")
			if err != nil || len(aside) != 1 {
				t.Errorf("set aside: %q, %v", aside, err)
			}
		})
	}
}

// A worker that opens its folder to others, or shuts it, does not keep its tenant's next worker out.
func TestChangedFolder(t *testing.T) {
	dir := folder(t)
	r := launched(t, Config{Folder: dir})
	order := Order{Tenant: KeyOf("alice"), UID: users.First}
	path := filepath.Join(dir, order.folder())
	start(t, r, order)
	for _, mode := range []os.FileMode{0o777, 0} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got := homeOf(start(t, r, order)); got != path {
			t.Errorf("mode %o: the folder is %q", mode, got)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("mode %o: %v, %v", mode, info.Mode(), err)
		}
	}
}

// No folder is no reason to serve nobody.
func TestNoRoomForAFolder(t *testing.T) {
	dir := folder(t)
	r := launched(t, Config{Folder: dir})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got := homeOf(start(t, r, Order{Tenant: KeyOf("alice"), UID: users.First})); got != "/" {
		t.Errorf("the folder is %q", got)
	}
}

// A folder of workers that leads elsewhere, or belongs to somebody else, is not used, nor is it changed.
func TestFolderOfWorkersElsewhere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root has folders of other users")
	}
	for name, c := range map[string]struct {
		lay  func(path, target string) error
		want string
	}{
		"link": {func(path, target string) error { return os.Symlink(target, path) }, "symbolic link"},
		"file": {func(path, _ string) error { return os.WriteFile(path, nil, 0o600) }, "not a directory"},
		"foreign": {func(path, _ string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, stranger, stranger), os.Chmod(path, os.ModeSticky|0o733))
		}, "belongs to user 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			path, target := folder(t), t.TempDir()
			if err := errors.Join(os.Chmod(target, 0o700), c.lay(path, target)); err != nil {
				t.Fatal(err)
			}
			_, err := NewLocal(Config{UIDs: users, Folder: path, Cgroup: CgroupNone}, quiet)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--worker-folder") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o700 || info.Mode()&os.ModeSticky != 0 {
				t.Errorf("the folder elsewhere is %v now, %v", info.Mode(), err)
			}
		})
	}
}

// Whoever may write a folder above may exchange the folder of workers.
func TestFolderAboveIsWarnedOf(t *testing.T) {
	dir := folder(t)
	for mode, warned := range map[os.FileMode]bool{0o755: false, 0o777: true, 0o777 | os.ModeSticky: false} {
		if err := os.Chmod(filepath.Dir(dir), mode); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		l, err := NewLocal(Config{Folder: dir, Cgroup: CgroupNone}, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if got := strings.Contains(said.String(), "folder="+filepath.Dir(dir)); got != warned {
			t.Errorf("mode %v: warned %v: %s", mode, got, &said)
		}
	}
}
