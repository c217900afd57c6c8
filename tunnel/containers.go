package tunnel

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Bounds of what [Containers] asks: a shell waits for it.
const (
	askPatience = 2 * time.Second
	maxNames    = 256 << 10 // bytes
)

// Containers are the destinations that begin with docker://, podman:// or kube:// and go on as word does: what the
// program of that name lists. Who has none, or gets no answer from it soon, is told nothing.
func Containers(ctx context.Context, word string) []string {
	scheme, rest, _ := strings.Cut(word, "://")
	before, command := scheme+"://", []string{scheme, "ps", "--format", "{{.Names}}"}
	switch scheme {
	case "docker", "podman":
	case "kube":
		command = []string{"kubectl", "get", "pods", "--output=name"}
		if namespace, _, ok := strings.Cut(rest, "/"); ok {
			if !plain(namespace) || strings.Count(rest, "/") > 1 { // containers of a pod are few: their names are known
				return nil
			}
			before += namespace + "/"
			command = append(command, "--namespace="+namespace)
		}
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = askPatience
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(out, maxNames)) // what came counts
	cancel()
	_ = cmd.Wait()
	return ParseContainers(before, string(text))
}

// ParseContainers gives the destinations of a list of names, one a line; kubectl writes pod/ before each.
func ParseContainers(before, text string) (list []string) {
	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(strings.TrimSpace(line), "pod/")
		if _, err := ParseWay(before + name); err == nil && len(list) < maxHosts {
			list = append(list, before+name)
		}
	}
	return list
}

// Schemes are the beginnings of destinations that are no host.
func Schemes() []string { return []string{"docker://", "podman://", "kube://"} }
