package tunnel

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHosts(t *testing.T) {
	home := t.TempDir()
	for name, text := range map[string]string{
		"config": "# Host none\nhost=gpu1 gpu2 # mine\n  HostName 192.0.2.1\nHost *.lan !gpu3 gpu?\n" +
			"HOST\t\"gpu 4\" \"gpu5\"\nInclude more/*.conf ~/else\nInclude nowhere [ pipe config\nMatch host gpu9\n" +
			"Host -oProxyCommand=x gpu1\nHost\nHost = gpu6",
		"more/a.conf": "Host gpu7\nInclude config more/a.conf\n",
		"more/b.conf": "Host gpu1 gpu8\n",
		"more/c.md":   "Host none\n",
		"../else":     "Host else\r\n",
	} {
		path := filepath.Join(home, ".ssh", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(home, ".ssh", "pipe"), 0o600); err != nil { // nobody writes to it
		t.Fatal(err)
	}
	want := []string{"gpu1", "gpu2", "gpu5", "gpu6", "gpu7", "gpu8", "else"}
	if got := Hosts(home); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Hosts(t.TempDir()); len(got) != 0 {
		t.Errorf("without a file: %q", got)
	}
}

// However much there is, a shell gets an answer soon.
func TestHostsBounds(t *testing.T) {
	home := t.TempDir()
	folder := filepath.Join(home, ".ssh")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxFiles {
		var text strings.Builder
		fmt.Fprintf(&text, "Include f*\nHost first%d\n", i)
		for k := range 50 {
			fmt.Fprintf(&text, "Host h%d-%d\n", i, k)
		}
		if err := os.WriteFile(fmt.Sprintf("%s/f%03d", folder, i), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := "Include f*\n" + strings.Repeat("# far\n", maxConfig/6) + "Host far\n"
	if err := os.WriteFile(folder+"/config", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := Hosts(home)
	if len(got) != maxHosts || got[0] != "first0" || slices.Contains(got, "far") {
		t.Errorf("%d hosts, the first is %q", len(got), got[0])
	}
}

func FuzzParseHosts(f *testing.F) {
	f.Add("Host a b\nInclude c\n")
	f.Add("host=\"a b\" c#d #e")
	f.Fuzz(func(t *testing.T, text string) {
		hosts, includes := ParseHosts(text)
		if len(hosts) > maxHosts || len(includes) > maxFiles {
			t.Fatalf("%d hosts, %d files", len(hosts), len(includes))
		}
		for _, host := range hosts {
			if w, err := ParseWay(host); err != nil && !strings.Contains(host, "://") {
				t.Fatalf("%q: %v, %v", host, w, err)
			}
		}
	})
}
