package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// The list of a program names the modules that the linker put into it; a file without such is listed as a file.
func TestWrite(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "libplain.so")
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := write(&out, []string{"1.2.3", self, plain}); err != nil {
		t.Fatal(err)
	}
	var b bill
	if err := json.Unmarshal(out.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	c := b.Metadata.Component
	if b.Format != "CycloneDX" || c.Version != "1.2.3" || len(c.Components) != 2 ||
		c.Components[1].Name != "libplain.so" ||
		c.Components[1].Hashes[0].Content != "77c81fb66a43b886cf465ef2634a071856e9529e7509b908ab5c2e70f6e2ddd9" {
		t.Errorf("the list is of %+v", c)
	}
	found := false
	for _, m := range b.Components {
		found = found || m.Name == "stdlib" && m.Version != "" && m.PURL == "pkg:golang/stdlib@"+m.Version
	}
	if !found {
		t.Errorf("Go's own library is not among %+v", b.Components)
	}
	for _, args := range [][]string{nil, {"1"}, {"1", plain + "x"}} {
		if err := write(&out, args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
