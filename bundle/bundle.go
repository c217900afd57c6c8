// Package bundle lets one file be enough: the client's libraries, packed behind the program scuda, and unpacked from
// there on machines where nothing else is installed. The command line uses it, where it finds no libraries beside it.
//
// Behind the program comes a gzipped tar of plain files and links without folders, then a trailer: the archive's
// SHA-256, its length in eight bytes, little endian, and eight bytes of magic. Who unpacks trusts the file as much as
// the program that it is; the hash names the folder of the cache and tells a damaged copy.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Errors of this package.
var (
	ErrNone    = errors.New("the program carries no libraries")
	ErrDamaged = errors.New("the libraries that the program carries are damaged; copy it anew")
	ErrFolder  = errors.New("the cache is not safe")
)

const (
	magic       = "scuda\x00\x01\n"
	trailerSize = sha256.Size + 8 + len(magic)
	maxArchive  = 256 << 20
	maxFile     = 256 << 20
	maxFiles    = 64
)

// Trailer says what lies behind a program.
type Trailer struct {
	Sum  [sha256.Size]byte // of the archive
	Size int64
}

// Append appends the trailer.
func (t Trailer) Append(b []byte) []byte {
	b = append(b, t.Sum[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Size))
	return append(b, magic...)
}

// ParseTrailer reads the trailer from the end of a file; without one it is [ErrNone].
func ParseTrailer(b []byte) (t Trailer, err error) {
	if len(b) < trailerSize || string(b[len(b)-len(magic):]) != magic {
		return t, ErrNone
	}
	b = b[len(b)-trailerSize:]
	copy(t.Sum[:], b)
	size := binary.LittleEndian.Uint64(b[sha256.Size:])
	if size > maxArchive {
		return t, fmt.Errorf("%w: it says to have %d bytes", ErrDamaged, size)
	}
	t.Size = int64(size)
	return t, nil
}

// Write writes a program with the files of a folder behind it. What the program carries already is left out.
func Write(w io.Writer, program, folder string) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	start, err := Bare(f)
	if err != nil {
		return err
	}
	archive, err := pack(folder)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, io.NewSectionReader(f, 0, start)); err != nil {
		return err
	}
	if _, err := w.Write(archive); err != nil {
		return err
	}
	_, err = w.Write(Trailer{sha256.Sum256(archive), int64(len(archive))}.Append(nil))
	return err
}

// pack makes the archive. The same files give the same bytes.
func pack(folder string) ([]byte, error) {
	entries, err := os.ReadDir(folder) // by name
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(z)
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		switch e.Type() {
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return nil, err
			}
			if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: e.Name(), Linkname: to}); err != nil {
				return nil, err
			}
		case 0:
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.Name(), Mode: 0o755, Size: int64(len(text))})
			if err != nil {
				return nil, err
			}
			if _, err := t.Write(text); err != nil {
				return nil, err
			}
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// find reads a program's trailer, and says where the archive begins.
func find(f *os.File) (t Trailer, start int64, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return t, 0, err
	}
	end := make([]byte, min(size, int64(trailerSize)))
	if _, err := f.ReadAt(end, size-int64(len(end))); err != nil {
		return t, 0, err
	}
	if t, err = ParseTrailer(end); err != nil {
		return t, 0, err
	}
	if start = size - int64(trailerSize) - t.Size; start < 0 {
		return t, 0, fmt.Errorf("%w: the archive would be longer than the file", ErrDamaged)
	}
	return t, start, nil
}

// Carried says whether a program carries libraries; if not it is [ErrNone].
func Carried(program string) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, err = find(f)
	return err
}

// Bare is how long a program is without the libraries that it carries.
func Bare(f *os.File) (int64, error) {
	_, start, err := find(f)
	if errors.Is(err, ErrNone) {
		return f.Seek(0, io.SeekEnd)
	}
	return start, err
}

// Unpack gives the folder with the libraries that a program carries: below cache, named after what they are. It is
// made the first time; processes that do so at once get the same one.
func Unpack(program, cache string) (folder string, err error) {
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	t, start, err := find(f)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	if err := sheltered(cache); err != nil {
		return "", err
	}
	folder = filepath.Join(cache, hex.EncodeToString(t.Sum[:16]))
	if err := ours(folder); !errors.Is(err, fs.ErrNotExist) {
		return folder, err
	}
	archive := make([]byte, t.Size)
	if _, err := f.ReadAt(archive, start); err != nil {
		return "", err
	}
	if sha256.Sum256(archive) != t.Sum {
		return "", ErrDamaged
	}
	fresh, err := os.MkdirTemp(cache, ".new-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh) // nothing is left of it after the rename
	if err := extract(bytes.NewReader(archive), fresh); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, folder); err != nil && ours(folder) != nil { // else another process was faster
		return "", err
	}
	return folder, nil
}

// sheltered says whether nobody else can put another folder in the place of one in the cache: the cache is the user's
// alone, and the folders above it are not everybody's, but for sticky ones such as /tmp.
func sheltered(cache string) error {
	path, err := filepath.EvalSymlinks(cache)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		err = ours(path)
	}
	for err == nil && path != filepath.Dir(path) {
		path = filepath.Dir(path)
		var info fs.FileInfo
		if info, err = os.Lstat(path); err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
			err = fmt.Errorf("%w: every user can write to %s; set XDG_CACHE_HOME to a folder of your own", ErrFolder, path)
		}
	}
	return err
}

// ours says whether a folder is the user's alone: whoever writes there runs in the user's programs.
func ours(folder string) error {
	info, err := os.Lstat(folder)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 || !ok || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s is not a folder that belongs to this user alone; remove it", ErrFolder, folder)
	}
	return nil
}

// extract writes the files of an archive into a folder.
func extract(r io.Reader, folder string) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	t := tar.NewReader(z)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if n == maxFiles || h.Size > maxFile || !plain(h.Name) {
			return fmt.Errorf("%w: it has a file %.80q of %d bytes", ErrDamaged, h.Name, h.Size)
		}
		path := filepath.Join(folder, h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			if !plain(h.Linkname) {
				return fmt.Errorf("%w: %.80q leads to %.80q", ErrDamaged, h.Name, h.Linkname)
			}
			err = os.Symlink(h.Linkname, path)
		case tar.TypeReg:
			err = write(path, t)
		default:
			err = fmt.Errorf("%w: %.80q is neither a file nor a link", ErrDamaged, h.Name)
		}
		if err != nil {
			return err
		}
	}
}

// plain says whether a name is that of a file in the same folder.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func write(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
