package lab

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
)

// block is what stands between two fences of the page.
type block struct{ kind, text string }

func page(t *testing.T) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/nomad.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```([a-z ]+)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, block{m[1], m[2]})
	}
	return blocks
}

// task is what of a job is done here.
type task struct {
	name, hook, command string
	args, env           []string
	kill                syscall.Signal // by which it is told to end
}

// of reads a job, in which runtime are what Nomad replaces when a task is started.
func of(t *testing.T, text string, runtime map[string]string) (tasks map[string]task) {
	t.Helper()
	file, wrong := hclsyntax.ParseConfig([]byte(text), "docs/nomad.md", hcl.InitialPos)
	if wrong.HasErrors() {
		t.Fatal(wrong)
	}
	vars := map[string]cty.Value{}
	for name, value := range runtime {
		vars[name] = cty.StringVal(value)
	}
	context := &hcl.EvalContext{Variables: vars}
	value := func(body *hclsyntax.Body, name string) cty.Value {
		t.Helper()
		a := body.Attributes[name]
		if a == nil {
			t.Fatalf("there is no %s in\n%s", name, text)
		}
		v, wrong := a.Expr.Value(context)
		if wrong.HasErrors() {
			t.Fatal(wrong)
		}
		return v
	}
	within := func(body *hclsyntax.Body, kind string) (found []*hclsyntax.Block) {
		for _, b := range body.Blocks {
			if b.Type == kind {
				found = append(found, b)
			}
		}
		return found
	}
	tasks = map[string]task{}
	jobs := within(file.Body.(*hclsyntax.Body), "job")
	if len(jobs) != 1 || len(jobs[0].Labels) != 1 {
		t.Fatalf("%d jobs in\n%s", len(jobs), text)
	}
	known(t, jobs[0].Body, reflect.TypeFor[api.Job]())
	for _, group := range within(jobs[0].Body, "group") {
		for _, b := range within(group.Body, "task") {
			to := task{name: b.Labels[0], kill: syscall.SIGINT} // which is Nomad's usual one
			if b.Body.Attributes["kill_signal"] != nil {
				if s := value(b.Body, "kill_signal").AsString(); s != "SIGTERM" {
					t.Errorf("task %s is ended by %s, which is not done here", to.name, s)
				}
				to.kill = syscall.SIGTERM
			}
			if d := value(b.Body, "driver").AsString(); d != "raw_exec" {
				t.Errorf("task %s has the driver %s, which is not done here", to.name, d)
			}
			for _, l := range within(b.Body, "lifecycle") {
				to.hook = value(l.Body, "hook").AsString()
			}
			for _, c := range within(b.Body, "config") {
				to.command = value(c.Body, "command").AsString()
				for _, a := range value(c.Body, "args").AsValueSlice() {
					to.args = append(to.args, a.AsString())
				}
			}
			for _, e := range within(b.Body, "env") {
				for name := range e.Body.Attributes {
					to.env = append(to.env, name+"="+value(e.Body, name).AsString())
				}
			}
			tasks[to.name] = to
		}
	}
	return tasks
}

// known compares the names in a block with those that the API's type for it has: Nomad's own program reads jobs by the
// same ones. What is a map there may have any.
func known(t *testing.T, body *hclsyntax.Body, kind reflect.Type) {
	t.Helper()
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		kind = kind.Elem()
	}
	if kind.Kind() == reflect.Map {
		return
	}
	fields := map[string]reflect.Type{}
	for f := range kind.Fields() {
		if name, how, found := strings.Cut(f.Tag.Get("hcl"), ","); name != "" {
			if found && how == "block" {
				name += " {}"
			}
			fields[name] = f.Type
		}
	}
	for name, a := range body.Attributes {
		field, there := fields[name]
		if !there {
			t.Errorf("%s: %s has no %s", a.SrcRange, kind, name)
		}
		if field != reflect.TypeFor[*time.Duration]() {
			continue
		}
		if v, wrong := a.Expr.Value(nil); wrong.HasErrors() {
			t.Error(wrong)
		} else if _, err := time.ParseDuration(v.AsString()); err != nil {
			t.Errorf("%s: %v", a.SrcRange, err)
		}
	}
	for _, b := range body.Blocks {
		field, there := fields[b.Type+" {}"]
		if !there {
			t.Errorf("%s: %s has no block %s", b.TypeRange, kind, b.Type)
			continue
		}
		known(t, b.Body, field)
	}
}
