package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What docs/pool.md says is done, in a folder of its own.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/pool.md")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	env := []string{"HOME=" + folder, "PATH=" + filepath.Dir(pool) + ":" + filepath.Dir(scuda) + ":" + os.Getenv("PATH"),
		"PWD=" + folder}
	address, ran := "127.0.0.1:14833", 0
	for _, m := range regexp.MustCompile("(?ms)^```([a-z ]+)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		command := "cd " + folder + "\n" + strings.ReplaceAll(m[2], "127.0.0.1:14833", address)
		switch m[1] {
		case "sh server":
			command = strings.Replace(command, "scuda serve "+address, "exec scuda serve 127.0.0.1:0 --state-dir $PWD "+
				"--cache-dir none --drain 0", 1)
			address = begin(t, env, "bash", "-ec", command).await(`^listening on (\S+)$`)[1]
		case "sh pool":
			begin(t, env, "bash", "-ec", strings.Replace(command, "scuda-pool serve", "exec scuda-pool serve", 1)).
				await("the server is announced")
		case "sh":
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", command)
			cmd.Env = append(os.Environ(), env...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, command, out)
			}
			if strings.Contains(command, "scuda-pool status") && strings.Count(string(out), " free") != 4 {
				t.Errorf("not all is free before and after:\n%s", out)
			}
		default:
			t.Fatalf("a block of the kind %q", m[1])
		}
		ran++
	}
	if ran != 4 {
		t.Errorf("%d blocks", ran)
	}
}
