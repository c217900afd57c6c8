package stdio

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The process of the test keeps its streams; a copy of it captures its own.
func TestMain(m *testing.M) {
	if os.Getenv("STDIO_TEST_CHILD") != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.NewFile(3, "report"), err)
		}
		return
	}
	os.Exit(m.Run())
}

func child() error {
	own := Private()
	c, err := Redirect()
	if err != nil {
		return err
	}
	if b := c.Take(Output, 10); b != nil {
		return fmt.Errorf("text before anything was printed: %q", b)
	}
	fmt.Print("one two")
	fmt.Fprint(os.Stderr, "error")
	for _, want := range []string{"one ", "two", ""} {
		if b := c.Take(Output, 4); string(b) != want {
			return fmt.Errorf("got %q, want %q", b, want)
		}
	}
	if b := c.Take(Error, 100); string(b) != "error" {
		return fmt.Errorf("standard error: got %q", b)
	}
	big := strings.Repeat("0123456789abcdef", 3*discardFrom/16)
	fmt.Print(big)
	var got bytes.Buffer
	for b := c.Take(Output, 1<<18); b != nil; b = c.Take(Output, 1<<18) {
		got.Write(b)
	}
	if got.String() != big {
		return fmt.Errorf("%d bytes came back wrong", got.Len())
	}
	fmt.Print("after")
	if b := c.Take(Output, 100); string(b) != "after" {
		return fmt.Errorf("after a discard: %q", b)
	}
	_, err = fmt.Fprint(own, "not captured")
	return err
}

func TestCapture(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "STDIO_TEST_CHILD=1")
	cmd.ExtraFiles = []*os.File{w}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	w.Close()
	var report bytes.Buffer
	if _, e := report.ReadFrom(r); e != nil || err != nil {
		t.Fatal(err, e)
	}
	if report.Len() > 0 {
		t.Error(report.String())
	}
	if out.Len() > 0 || errs.String() != "not captured" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
}
