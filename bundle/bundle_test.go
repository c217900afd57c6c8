package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// made gives a program with libraries behind it, and the same without.
func made(t *testing.T) (with, without string) {
	t.Helper()
	folder := t.TempDir()
	lib := filepath.Join(folder, "lib")
	without = filepath.Join(folder, "program")
	for path, text := range map[string]string{without: "ELF", lib + "/liba.so.1": "library", lib + "/tool": "tool"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("liba.so.1", lib+"/liba.so"); err != nil {
		t.Fatal(err)
	}
	with = filepath.Join(folder, "one")
	var b bytes.Buffer
	if err := Write(&b, without, lib); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(with, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	// What is bundled again is bundled once.
	var again bytes.Buffer
	if err := Write(&again, with, lib); err != nil || !bytes.Equal(again.Bytes(), b.Bytes()) {
		t.Errorf("%d bytes, then %d, %v", b.Len(), again.Len(), err)
	}
	return with, without
}

func TestUnpack(t *testing.T) {
	with, without := made(t)
	cache := filepath.Join(t.TempDir(), "cache")
	if _, err := Unpack(without, cache); !errors.Is(err, ErrNone) {
		t.Errorf("without: %v", err)
	}
	var folders [8]string
	var all sync.WaitGroup
	for i := range folders {
		all.Go(func() {
			var err error
			if folders[i], err = Unpack(with, cache); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, f := range folders {
		if f != folders[0] {
			t.Errorf("%s and %s", f, folders[0])
		}
	}
	if b, err := os.ReadFile(folders[0] + "/liba.so"); string(b) != "library" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := os.Stat(folders[0] + "/tool"); err != nil || info.Mode()&0o100 == 0 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A folder that others can write to is not used.
	if err := os.Chmod(folders[0], 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(with, cache); !errors.Is(err, ErrFolder) {
		t.Errorf("a folder for everybody: %v", err)
	}
}

// TestCacheOfOthers: where others can put a folder of theirs in the place of ours, nothing is unpacked, and nothing
// taken.
func TestCacheOfOthers(t *testing.T) {
	with, _ := made(t)
	top := t.TempDir()
	cache := filepath.Join(top, "xdg", "scuda", "lib")
	if _, err := Unpack(with, cache); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		folder string
		mode   os.FileMode
		want   error
	}{
		{cache, 0o777, ErrFolder}, {cache, 0o770, ErrFolder}, {cache, 0o755, nil},
		{filepath.Join(top, "xdg"), 0o777, ErrFolder}, {filepath.Join(top, "xdg"), 0o777 | os.ModeSticky, nil},
		{filepath.Join(top, "xdg"), 0o775, nil}, {top, 0o777, ErrFolder}, {top, 0o755, nil},
	} {
		if err := os.Chmod(c.folder, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(with, cache); !errors.Is(err, c.want) {
			t.Errorf("%s with %v: %v", c.folder, c.mode, err)
		}
	}
}

func TestDamaged(t *testing.T) {
	with, _ := made(t)
	b, err := os.ReadFile(with)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   error
	}{
		"a bit":          {func(b []byte) []byte { b[10] ^= 1; return b }, ErrDamaged},
		"cut in front":   {func(b []byte) []byte { return b[10:] }, ErrDamaged},
		"cut at the end": {func(b []byte) []byte { return b[:len(b)-1] }, ErrNone},
		"nothing":        {func([]byte) []byte { return nil }, ErrNone},
		"too long": {func(b []byte) []byte {
			b[len(b)-len(magic)-1] = 1
			return b
		}, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			path, cache := filepath.Join(t.TempDir(), "x"), t.TempDir()
			if err := os.WriteFile(path, c.change(bytes.Clone(b)), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := Unpack(path, cache); !errors.Is(err, c.want) {
				t.Error(err)
			}
			if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// An archive writes nothing outside of its folder.
func TestNames(t *testing.T) {
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "../x"}, {Typeflag: tar.TypeReg, Name: "/x"}, {Typeflag: tar.TypeReg, Name: "a/b"},
		{Typeflag: tar.TypeReg, Name: ".."}, {Typeflag: tar.TypeSymlink, Name: "x", Linkname: "/etc"},
		{Typeflag: tar.TypeSymlink, Name: "x", Linkname: ".."}, {Typeflag: tar.TypeDir, Name: "d"},
		{Typeflag: tar.TypeLink, Name: "x", Linkname: "y"},
	} {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		if err := errors.Join(w.WriteHeader(&h), w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		folder := t.TempDir()
		if err := extract(&b, folder); !errors.Is(err, ErrDamaged) {
			t.Errorf("%+v: %v", h, err)
		}
		if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
			t.Errorf("%+v: left behind: %v, %v", h, left, err)
		}
	}
}

func FuzzParseTrailer(f *testing.F) {
	f.Add(Trailer{Size: 7}.Append([]byte("ELF")))
	f.Fuzz(func(t *testing.T, b []byte) {
		trailer, err := ParseTrailer(b)
		if err == nil && !bytes.HasSuffix(b, trailer.Append(nil)) {
			t.Errorf("%x: %+v", b, trailer)
		}
	})
}
