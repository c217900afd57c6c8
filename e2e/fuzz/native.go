package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

// nativeTime is how long one function of Go's own fuzzing gets at a time. The compiler's part comes on top.
const nativeTime = 20 * time.Second

// fuzzFunction is one of them.
type fuzzFunction struct{ pkg, name string }

var (
	fuzzOnce  sync.Once
	fuzzList  []fuzzFunction
	fuzzError error
	nativeOne sync.Mutex // one at a time: each has processes of its own
)

var fuzzDecl = regexp.MustCompile(`(?m)^([^:]+)/[^/:]+_test\.go:func (Fuzz\w+)\(f \*testing\.F\)`)

// listFuzz finds the fuzz functions of the repository.
func listFuzz(ctx context.Context, root string) ([]fuzzFunction, error) {
	cmd := exec.CommandContext(ctx, "git", "grep", "-E", `^func Fuzz[A-Za-z0-9_]+\(f \*testing\.F\)`, "--",
		"*_test.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("looking for fuzz functions: %w", err)
	}
	var list []fuzzFunction
	for _, m := range fuzzDecl.FindAllStringSubmatch(string(out), -1) {
		list = append(list, fuzzFunction{"./" + m[1], m[2]})
	}
	return list, nil
}

// tryNative runs the next fuzz function for a while.
func (f *fuzzer) tryNative(ctx context.Context, c *trial) {
	nativeOne.Lock()
	defer nativeOne.Unlock()
	fuzzOnce.Do(func() { fuzzList, fuzzError = listFuzz(ctx, f.root) })
	if ctx.Err() != nil {
		return
	}
	if fuzzError != nil {
		c.fault("%v", fuzzError)
		return
	}
	x := fuzzList[int(c.number)%len(fuzzList)]
	c.says(nil, "%s of %s", x.name, x.pkg)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+x.name+"$", "-fuzztime", nativeTime.String(),
		"-parallel", "1", x.pkg)
	cmd.Dir, cmd.Env = f.root, cleanEnv()
	if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
		text := string(out)
		if i := strings.Index(text, "--- FAIL"); i >= 0 {
			text = text[i:]
		}
		c.fault("%s of %s: %v\n%s", x.name, x.pkg, err, text)
	}
}
