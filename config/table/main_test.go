package main

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/config"
)

const root = "../.."

// ours are the variables that no user sets: of the build, of tests, and of the hooks of Slurm among themselves.
var ours = []string{"SCUDA_VERSION", "SCUDA_SKIP_CORE", "SCUDA_SLURM_JOB", "SCUDA_SLURM_GPUS"}

func TestTablesAreUpToDate(t *testing.T) {
	if err := run(root, true); err != nil {
		t.Error(err)
	}
}

// ofTests are variables that pages name and that only tests and the build read.
var ofTests = []string{"SCUDA_APT_KEY", "SCUDA_CUT_STRIDE", "SCUDA_CUTS", "SCUDA_E2E_GPU", "SCUDA_ENDURANCE",
	"SCUDA_FRAMEWORKS", "SCUDA_HOSTILE", "SCUDA_KILLS", "SCUDA_POOL_LEASES", "SCUDA_POOL_PROCESSES",
	"SCUDA_RELEASE_KEY", "SCUDA_TINYGRAD", "SCUDA_TOGETHER", "SCUDA_VERSION"}

// TestSettingsAreWhole: what the code reads is in the list, and what is in the list is read.
func TestSettingsAreWhole(t *testing.T) {
	listed := map[string]config.Setting{}
	for _, s := range config.Settings {
		if _, twice := listed[s.Name]; twice || s.Meaning == "" && (!s.Server || s.Common) {
			t.Errorf("%s stands there twice, or nothing says what it means", s.Name)
		}
		listed[s.Name] = s
	}
	read := names(t, `"SCUDA_[A-Z0-9_]+"`, "*.go", "*.c", ":!*_test.go", ":!*/testdata/*", ":!api/gen",
		":!config/settings.go", ":!config/table")
	for name := range read {
		if _, ok := listed[name]; !ok && !slices.Contains(ours, name) {
			t.Errorf("%s is read and not listed in config/settings.go", name)
		}
	}
	for name, s := range listed {
		if !read[name] && !s.Server { // package main of cmd/scuda compares the options
			t.Errorf("%s is listed and nothing reads it", name)
		}
	}
	// No page speaks of a setting that is not there.
	for name := range names(t, `SCUDA_[A-Z0-9_]+`, "README.md", "docs", "deploy/docker", "deploy/systemd") {
		_, ok := listed[name]
		if !ok && !strings.HasPrefix(name, "SCUDA_TEST_") &&
			!slices.Contains(ofTests, name) {
			t.Errorf("a page speaks of %s, which is no setting", name)
		}
	}
	if len(read) < 15 {
		t.Errorf("only %d were found: %q", len(read), slices.Sorted(maps.Keys(read)))
	}
}

// names finds variables' names in the files of the repository.
func names(t *testing.T, pattern string, paths ...string) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"grep", "-hoE", pattern, "--"}, paths...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range regexp.MustCompile(`SCUDA_[A-Z0-9_]+`).FindAllString(string(out), -1) {
		found[name] = true
	}
	return found
}

func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for _, c := range []struct {
		text, want string
		check      bool
		err        error
	}{
		{"a\n" + begin + "old\n" + end + "b\n", "a\n" + begin + "new\n" + end + "b\n", false, nil},
		{"a\n" + begin + "old\n" + end + "b\n", "a\n" + begin + "old\n" + end + "b\n", true, errStale},
		{begin + "new\n" + end, begin + "new\n" + end, true, nil},
		{"a\n" + begin, "a\n" + begin, false, errMarks},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := page(path, "new\n", c.check)
		if got, _ := os.ReadFile(path); string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q: %q, %v", c.text, got, err)
		}
	}
}
