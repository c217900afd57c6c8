// Command gonvml asks everything that NVIDIA's Go bindings of NVML can ask of the system and of each GPU, and prints
// the answers: every getter whose arguments are numbers, with 0 and 1, and every version of those that have several. Of
// what changes by itself only the status is printed. Names of processes are left out: those of the machine that has the
// driver are not told to clients.
package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var (
	getters = regexp.MustCompile(`^(SystemGet|Get|Is|GpmQuery)`)
	// moving is what changes between two calls, as in perf/gpu/management.py.
	moving = regexp.MustCompile(`Power|Temperature|Utilization|Clock|Throughput|Energy|Sample|Process|MemoryInfo|BAR1|` +
		`Violation|PerformanceState|Fan|Pstates|` +
		`Throttle|MemoryUsage|Accounting|ReplayCounter|PerformanceModes|Thermal|LastBBX|PerfModes|NvLinkErrorCounter`)
	success = reflect.TypeFor[nvml.Return]()
)

func main() {
	if err := ask(); err != nil {
		fmt.Fprintln(os.Stderr, "gonvml:", err)
		os.Exit(1)
	}
}

func ask() error {
	if r := nvml.Init(); r != nvml.SUCCESS {
		return fmt.Errorf("nvmlInit: %w", r)
	}
	defer func() { _ = nvml.Shutdown() }()
	show("", reflect.ValueOf(nvml.New()), "SystemGet")
	count, r := nvml.DeviceGetCount()
	fmt.Println("devices:", count, int(r))
	for i := range count {
		device, r := nvml.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			return fmt.Errorf("nvmlDeviceGetHandleByIndex(%d): %w", i, r)
		}
		show(fmt.Sprintf("device %d ", i), reflect.ValueOf(device), "")
		events(device)
	}
	_, r = nvml.DeviceGetHandleByIndex(count)
	fmt.Println("one more device:", int(r))
	return nil
}

// show calls the getters of a value whose names begin with a prefix.
func show(whose string, v reflect.Value, prefix string) {
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		if !getters.MatchString(name) || !strings.HasPrefix(name, prefix) || name == "SystemGetProcessName" {
			continue
		}
		for _, n := range []int{0, 1} {
			args, ok := numbers(v.Method(i).Type(), n)
			if !ok || n > 0 && len(args) == 0 {
				continue
			}
			key := whose + name
			if len(args) > 0 {
				key += fmt.Sprintf("(%d)", n)
			}
			answer(key, v.Method(i).Call(args))
		}
	}
}

// numbers are arguments that are all n, if they all may be.
func numbers(f reflect.Type, n int) ([]reflect.Value, bool) {
	var args []reflect.Value
	for in := range f.Ins() {
		if !in.ConvertibleTo(reflect.TypeFor[uint64]()) {
			return nil, false
		}
		args = append(args, reflect.ValueOf(n).Convert(in))
	}
	return args, true
}

func answer(key string, results []reflect.Value) {
	last := results[len(results)-1]
	if last.Type() != success { // something that has one method for each version of a structure
		for i := range last.NumMethod() {
			if last.Method(i).Type().NumIn() == 0 {
				answer(key+"."+last.Type().Method(i).Name, last.Method(i).Call(nil))
			}
		}
		return
	}
	r := nvml.Return(last.Int())
	text := ""
	if r == nvml.SUCCESS && !moving.MatchString(key) {
		for _, v := range results[:len(results)-1] {
			text += " " + plain(v)
		}
	}
	fmt.Printf("%s: %d%s\n", key, r, text)
}

// plain is a value without addresses.
func plain(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer, reflect.UnsafePointer, reflect.Func, reflect.Interface:
		return v.Type().String()
	case reflect.Struct:
		var parts []string
		for i := range v.NumField() {
			parts = append(parts, v.Type().Field(i).Name+"="+plain(v.Field(i)))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case reflect.Slice, reflect.Array:
		var parts []string
		for i := range v.Len() {
			parts = append(parts, plain(v.Index(i)))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case reflect.String:
		return fmt.Sprintf("%q", v.String())
	}
	return fmt.Sprint(v)
}

// events waits a moment for errors that do not happen.
func events(device nvml.Device) {
	set, r := nvml.EventSetCreate()
	fmt.Println("event set:", int(r))
	if r != nvml.SUCCESS {
		return
	}
	fmt.Println("registered:", int(device.RegisterEvents(nvml.EventTypeXidCriticalError, set)))
	_, r = set.Wait(50)
	fmt.Println("waited:", int(r))
	fmt.Println("freed:", int(set.Free()))
}
