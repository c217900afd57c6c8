package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocsNameWhatIsThere: tests, files and cases that the documentation names in `…` exist.
func TestDocsNameWhatIsThere(t *testing.T) {
	tests := testNames(t)
	check, err := os.ReadFile(filepath.Join(root, "perf/gpu/check.py"))
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(more) == 0 {
			t.Fatal(pattern, more, err)
		}
		pages = append(pages, more...)
	}
	decisions, err := filepath.Glob(filepath.Join(root, "docs/decisions/*.md"))
	if err != nil || len(decisions) == 0 {
		t.Fatal(decisions, err)
	}
	pages = append(pages, decisions...)
	top, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	isTest, isCase := regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`), regexp.MustCompile(`^(c|cuda):(\w+)$`)
	found := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
			name := m[1]
			var there bool
			first, _, isPath := strings.Cut(name, "/")
			switch {
			case isTest.MatchString(name):
				there = tests[name]
			case isCase.MatchString(name):
				c := isCase.FindStringSubmatch(name)
				if there = strings.Contains(string(check), `"`+c[2]+`"`); c[1] == "cuda" {
					_, err := os.Stat(filepath.Join(root, "perf/gpu/cuda", c[2]+".cu"))
					there = err == nil
				}
			case isPath && first != "build" && slices.ContainsFunc(top, func(e fs.DirEntry) bool { return e.Name() == first }) &&
				!strings.ContainsAny(name, " {*…<"):
				_, err := os.Stat(filepath.Join(root, name))
				there = err == nil
			default:
				continue
			}
			if found++; !there {
				t.Errorf("%s names `%s`, which is not there", filepath.Base(page), name)
			}
		}
	}
	if found < 100 {
		t.Errorf("%d names were found", found)
	}
}

// testNames are the tests of all packages.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "grep", "-hoE", `^func (Test|Fuzz|Benchmark)[A-Za-z0-9_]+`, "--",
		"*_test.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		names[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	return names
}

// block is what stands between two fences of a page.
type block struct{ kind, text string }

func blocks(page string) (found []block) {
	for _, m := range regexp.MustCompile("(?ms)^```([a-z ]+)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		found = append(found, block{m[1], m[2]})
	}
	return found
}

// TestTutorials does what the tutorials say, in a home of its own: blocks of kind sh are run by a shell, those of kind
// "sh server" start a server. Other blocks are for reading. gpu1.example.org is the last server that was started, and
// comes with TLS although it is on this machine. Pages with blocks for Slurm are done by the test of deploy/slurm.
func TestTutorials(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/tutorials/*.md"))
	if err != nil || len(pages) < 6 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		t.Run(filepath.Base(page), func(t *testing.T) {
			beside(t)
			b, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), "\n```slurm") {
				return
			}
			if said := follow(t, string(b)); len(said) < 2 {
				t.Errorf("%d blocks were run", len(said))
			}
		})
	}
}

// follow does what a page says, and gives what each block of kind sh has printed. The commands have more in their
// environment.
func follow(t *testing.T, page string, more ...string) (said []string) {
	t.Helper()
	folder := t.TempDir()
	env := append(os.Environ(), "HOME="+folder, "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=", "XDG_STATE_HOME=",
		"PATH="+filepath.Dir(scuda)+":"+os.Getenv("PATH"))
	env = append(env, more...)
	address, fingerprint := "", ""
	for _, b := range blocks(page) {
		switch b.kind {
		case "sh server":
			words := strings.Fields(b.text)
			if len(words) < 3 || words[0] != "scuda" || words[1] != "serve" {
				t.Fatalf("not the command of a server: %s", b.text)
			}
			args := append([]string{"-C", folder, scuda, "serve", "127.0.0.1:0", "--drain", "0", "--state-dir",
				t.TempDir(), "--cache-dir", t.TempDir()}, words[3:]...)
			if !strings.Contains(b.text, "--gpu") {
				args = append(args, "--gpu", gpu, "--sim-memory", "1GiB")
			}
			if strings.HasPrefix(words[2], "0.0.0.0:") {
				args = append(args, "--tls", "always")
			}
			s := start(t, nil, "env", args...)
			address = s.await(s.out, `^listening on (\S+)$`)[1]
			if slices.Contains(args, "always") {
				fingerprint = s.await(s.out, `^fingerprint (\S+)$`)[1]
			}
		case "sh":
			text := strings.NewReplacer("gpu1.example.org:14833", address, "gpu1.example.org", address,
				"127.0.0.1:14833", address, "sha256:…", fingerprint).Replace(b.text)
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", text)
			cmd.Dir, cmd.Env = folder, env
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, text, out)
			}
			said = append(said, string(out))
		}
	}
	if address == "" {
		t.Error("the page starts no server")
	}
	return said
}

// TestRay does what docs/ray.md says, with a module that stands for Ray (testdata/ray). The program's task has a GPU,
// and nothing is left of it.
func TestRay(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/ray.md"))
	if err != nil {
		t.Fatal(err)
	}
	list := "\n```sh\nexport SCUDA_FINGERPRINT=sha256:… SCUDA_TOKEN_FILE=batch.token\n" +
		"scuda lease list --server gpu1.example.org:14833\n```\n"
	said := follow(t, string(page)+list, "PYTHONPATH="+filepath.Join(root, "e2e/testdata/ray"),
		"PYTHONDONTWRITEBYTECODE=1")
	if len(said) != 5 {
		t.Fatalf("%d blocks were run", len(said))
	}
	if !strings.Contains(said[1], "1 GPU, 200 MiB\n") {
		t.Errorf("the program says\n%s", said[1])
	}
	if strings.Count(said[2], "\nGPU ") != 1 {
		t.Errorf("the node has\n%s", said[2])
	}
	if said[4] != "no leases\n" {
		t.Errorf("in the end there are\n%s", said[4])
	}
}
