package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// elsewhere are the lines of hand-written code that answer CUDA_ERROR_NOT_SUPPORTED and are no part of
// docs/compatibility.md, with what they are.
var elsewhere = map[string]string{
	"shim/front/base/server.c: return CUDA_ERROR_NOT_SUPPORTED;":  "any call with things of two servers",
	"shim/front/uvm/home.c: return CUDA_ERROR_NOT_SUPPORTED;":     "unified memory of another server",
	"shim/front/calls/entry.c: return CUDA_ERROR_NOT_SUPPORTED;":  "scuda_refuse itself, and whole functions",
	"shim/front/calls/tables.c: return CUDA_ERROR_NOT_SUPPORTED;": "logged with PART_private_slot",
	"shim/front/calls/device.c: return scuda_device_ok(dev) ? " +
		"CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE;": "the driver's answer outside Windows",
	"server/executor/base.go: return cuda.CUDA_ERROR_NOT_SUPPORTED":               "refuse itself",
	"server/executor/command.go: const noAddress = cuda.CUDA_ERROR_NOT_SUPPORTED": "not sent by scuda's client",
	"server/executor/share_unsafe.go: return cuda.CUDA_ERROR_NOT_SUPPORTED, " +
		"unix.Close(fd)": "a session without a server's shelf: tests alone",
	"server/executor/share_unsafe.go: return 0, cuda.CUDA_ERROR_NOT_SUPPORTED": "a session without a server's " +
		"shelf: tests alone",
	"server/executor/hostmap.go: return cuda.CUDA_ERROR_NOT_SUPPORTED": "the caller maps the memory at another " +
		"address",
}

// TestPartsAreListed: no hand-written refusal without a part of the API description, whose text is logged and stands in
// docs/compatibility.md; no part without a refusal; a function that refuses a part by its own name stands with it.
func TestPartsAreListed(t *testing.T) {
	parts := spec(t).CUDA.Parts
	if len(parts) == 0 {
		t.Fatal("no parts")
	}
	var all strings.Builder
	seen := map[string]bool{}
	answers := regexp.MustCompile(`(return|=) .*CUDA_ERROR_NOT_SUPPORTED`)
	asks := regexp.MustCompile(`[!=]= (cuda\.)?CUDA_ERROR_NOT_SUPPORTED`)
	for _, pattern := range []string{"shim/front/*/*.c", "server/executor/*.go"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(files) < 10 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "_gen.c") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
			for line := range strings.Lines(string(text)) {
				if !answers.MatchString(line) || asks.MatchString(line) {
					continue
				}
				key := filepath.ToSlash(file[len("../../"):]) + ": " + strings.TrimSpace(line)
				if seen[key] = true; elsewhere[key] == "" {
					t.Errorf("%s\nis not by scuda_refuse or Session.refuse with a part of api/cuda.semantics", key)
				}
			}
		}
	}
	for key := range elsewhere {
		if !seen[key] {
			t.Errorf("%s\nis not there: remove the line", key)
		}
	}
	for _, p := range parts {
		if !regexp.MustCompile(`\b(PART_` + p.Key + `|cuda\.Part` + camel(p.Key) + `)\b`).MatchString(all.String()) {
			t.Errorf("part %s is refused nowhere", p.Key)
		}
		for _, m := range regexp.MustCompile(`scuda_refuse\(I_(\w+), PART_`+p.Key+`\)`).FindAllStringSubmatch(all.String(),
			-1) {
			if !slices.Contains(p.Funcs, m[1]) {
				t.Errorf("%s refuses part %s, which does not name it", m[1], p.Key)
			}
		}
	}
}
