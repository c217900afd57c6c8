package tunnel

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/bundle"
)

// Errors of the way to the far side.
var (
	ErrSystem = errors.New("this scuda has no copy for the system there")
	ErrFolder = errors.New("scuda's copy finds no place there")
	ErrCopy   = errors.New("scuda's copy did not arrive there")
	ErrRun    = errors.New("scuda's copy does not run there")
	ErrHello  = errors.New("the other side is no scuda of this release")
)

// maxNoise bounds what the shell there may print before scuda runs, and maxLine what is one line of ours.
const (
	maxNoise = 1 << 20
	maxLine  = 64 << 10
)

// Copy is a program that can be sent to the other side.
type Copy struct {
	System string // as uname names it there: Linux-x86_64
	Path   string
}

// systems are uname's names of the architectures.
var systems = map[string]string{"amd64": "Linux-x86_64", "arm64": "Linux-aarch64"}

// Copies are the programs that can be sent: one for this machine's architecture, and those for other systems that lie
// in a folder, named by [Named].
func Copies(program, folder string) (list []Copy) {
	for arch, system := range systems {
		path := folder + "/" + Named(arch)
		if arch == runtime.GOARCH {
			path = program
		} else if _, err := os.Stat(path); err != nil {
			continue
		}
		list = append(list, Copy{system, path})
	}
	return list
}

// Named is the name of the program for an architecture, as Go calls it, among the client's libraries:
// scuda-Linux-x86_64 and the like.
func Named(arch string) string { return "scuda-" + systems[arch] }

// open gives the program without the libraries that it may carry.
func (c Copy) open() (*os.File, *io.SectionReader, error) {
	f, err := os.Open(c.Path)
	if err != nil {
		return nil, nil, err
	}
	n, err := bundle.Bare(f)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, io.NewSectionReader(f, 0, n), nil
}

// hash names the copy.
func (c Copy) hash() (string, error) {
	f, r, err := c.open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Check says whether the program that runs is the one with the hash.
func Check(hash string) error {
	got, err := Copy{Path: "/proc/self/exe"}.hash()
	if err == nil && got != hash {
		err = fmt.Errorf("%w: it has the hash %.16s…, not %.16s…", ErrCopy, got, hash)
	}
	return err
}

// dialog gets the far side to run.
type dialog struct {
	in       *bufio.Reader
	out      io.Writer
	copies   []Copy
	folder   string
	progress func(done, all int64) // of the copy; all is 0 before it begins
}

// run ends when frames come next.
func (d *dialog) run() error {
	var first strings.Builder
	for _, c := range d.copies {
		hash, err := c.hash()
		if err != nil {
			return err
		}
		fmt.Fprintf(&first, "%s %s\n", c.System, hash)
	}
	fmt.Fprintf(&first, "\n%s\n", d.folder)
	if _, err := io.WriteString(d.out, first.String()); err != nil {
		return ended(err)
	}
	for noise := 0; noise < maxNoise; {
		line, err := readLine(d.in)
		if err != nil {
			return ended(err)
		}
		noise += len(line) + 1
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case wordHere:
			return nil
		case wordNeeds:
			if err := d.send(words[1:]); err != nil {
				return err
			}
		case wordLacks:
			return lacks(strings.Join(words[1:], " "))
		case wordFailed:
			return failure(words[1:])
		}
	}
	return fmt.Errorf("%w: the shell there prints more than %d bytes by itself", ErrHello, maxNoise)
}

// lacks says that there is no copy for a system.
func lacks(system string) error {
	if !strings.HasPrefix(system, "Linux-") {
		return fmt.Errorf("%w: it is %s, and GPUs are served on Linux alone", ErrSystem, system)
	}
	return fmt.Errorf("%w: it is %s, and this build of scuda has only its own architecture; release builds have the "+
		"others: use one here, or run scuda serve there", ErrSystem, system)
}

// failure says what a word of the script means. Programs there have said more on standard error.
func failure(words []string) error {
	words = append(words, "", "")
	switch words[0] {
	case "owner":
		return fmt.Errorf("%w: others may write to the folder for it, or it is another user's; name another one with "+
			"--on-folder FOLDER", ErrFolder)
	case "folder":
		return fmt.Errorf("%w: the folder for it cannot be written, as said above; make room, or name another one with "+
			"--on-folder FOLDER", ErrFolder)
	case "copy":
		return fmt.Errorf("%w: it could not be written, as said above; make room, or name another folder with "+
			"--on-folder FOLDER", ErrCopy)
	}
	const elsewhere = "the file system may be mounted noexec; name a folder on another one with --on-folder FOLDER"
	switch words[1] {
	case "126":
		return fmt.Errorf("%w: %s", ErrRun, elsewhere)
	case "127":
		return fmt.Errorf("%w: the system there lacks the C library glibc (2.27 or newer), which scuda needs; "+
			"use a container with another system, by docker:// or kube://", ErrRun)
	}
	return fmt.Errorf("%w: it ended with status %s, as said above", ErrRun, words[1])
}

// send sends the copy for a system.
func (d *dialog) send(words []string) error {
	words = append(words, "", "")
	for _, c := range d.copies {
		if c.System == words[0] {
			return d.sendCopy(c, words[1] != "")
		}
	}
	return fmt.Errorf("%w: it is %.40q", ErrSystem, words[0])
}

func (d *dialog) sendCopy(c Copy, gzipped bool) error {
	d.progress(0, 0)
	f, r, err := c.open()
	if err != nil {
		return err
	}
	defer f.Close()
	from, n, how := io.Reader(r), r.Size(), "plain"
	if gzipped {
		b, err := pack(r)
		if err != nil {
			return err
		}
		from, n, how = bytes.NewReader(b), int64(len(b)), "gzip"
	}
	if _, err := fmt.Fprintf(d.out, "%d %s\n", n, how); err != nil {
		return ended(err)
	}
	for done := int64(0); done < n; {
		k, err := io.CopyN(d.out, from, min(n-done, maxData))
		if err != nil {
			return ended(err)
		}
		done += k
		d.progress(done, n)
	}
	return nil
}

// packed is how much is packed by itself.
const packed = 2 << 20

// pack packs a program for gzip, which takes several files one behind the other for one: so all processors help.
func pack(r *io.SectionReader) ([]byte, error) {
	parts := make([]bytes.Buffer, (r.Size()+packed-1)/packed)
	errs := make([]error, len(parts))
	var next atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(parts)); i = next.Add(1) - 1 {
				errs[i] = packPart(&parts[i], io.NewSectionReader(r, i*packed, min(packed, r.Size()-i*packed)))
			}
		})
	}
	all.Wait()
	var b []byte
	for i := range parts {
		b = append(b, parts[i].Bytes()...)
	}
	return b, errors.Join(errs...)
}

func packPart(w io.Writer, r io.Reader) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	_, err = io.Copy(z, r)
	return errors.Join(err, z.Close())
}

// readLine reads a line without its end. Of one that is too long it gives the beginning.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		b, err := r.ReadByte()
		switch {
		case err != nil:
			return "", err
		case b == '\n':
			return strings.TrimSuffix(string(line), "\r"), nil
		case len(line) == maxLine:
			return string(line), nil
		}
		line = append(line, b)
	}
}

// Hello is what the near side wants.
type Hello struct {
	Token  string   `json:"token"`            // that the server is to ask for
	Serve  []string `json:"serve,omitempty"`  // options of scuda serve
	Direct bool     `json:"direct,omitempty"` // other machines reach the server, with TLS
}

// Ready is the far side's answer.
type Ready struct {
	Error       string   `json:"error,omitempty"` // why there is no server
	Devices     int      `json:"devices,omitempty"`
	Addresses   []string `json:"addresses,omitempty"`   // HOST:PORT, for a program that goes directly
	Fingerprint string   `json:"fingerprint,omitempty"` // with it
}

// appendLine appends a message as a line.
func appendLine(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(append(b, text...), '\n'), err
}

// ParseHello reads the line of a hello.
func ParseHello(line []byte) (h Hello, err error) {
	if len(line) > maxLine {
		return h, fmt.Errorf("%w: a greeting of %d bytes", ErrHello, len(line))
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("%w: %w", ErrHello, err)
	}
	if len(h.Token) < 32 {
		return h, fmt.Errorf("%w: a token of %s bytes", ErrHello, strconv.Itoa(len(h.Token)))
	}
	return h, nil
}
