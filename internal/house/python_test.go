package house

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPython has Python read each of its programs: most of them run on a GPU machine alone, where a mistake costs a
// session.
func TestPython(t *testing.T) {
	args := []string{"-c", "import ast, sys\nfor f in sys.argv[1:]: ast.parse(open(f).read(), f)"}
	for _, name := range sources(t) {
		if strings.HasSuffix(name, ".py") {
			args = append(args, filepath.Join(root, name))
		}
	}
	if len(args) < 20 {
		t.Errorf("%d Python programs were looked at", len(args)-2)
	}
	if out, err := exec.CommandContext(t.Context(), "python3", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
