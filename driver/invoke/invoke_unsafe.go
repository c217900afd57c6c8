// Package invoke calls a driver's function by the number of its operation, with its arguments as words. The machine's
// own driver takes words itself. A driver that is written in Go (the simulated GPU, those of tests) has a method for
// each function that it knows; which one belongs to an operation is looked up once for each type, by the operation's
// name. The server's dispatch and the stand-alone simulation (sim/lib) call it. A test of package sim holds the
// methods' parameters against the description. It owns the tables of methods, which have no lock of ours.
package invoke

import (
	"reflect"
	"sync"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
)

// CUDA calls the function of an operation. What the driver does not have is not supported.
func CUDA(driver any, op uint16, args *cuda.Words) cuda.CUresult {
	for d := driver; d != nil; d = within(d) {
		if c, ok := d.(cuda.Caller); ok {
			return c.Call(op, args)
		}
		if r, ok := cudaMethods.call(d, op, args); ok {
			return cuda.CUresult(r)
		}
	}
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}

// NVML calls the function of an operation. What the library does not have is not supported.
func NVML(library any, op uint16, args *nvml.Words) nvml.Return {
	for d := library; d != nil; d = within(d) {
		if c, ok := d.(nvml.Caller); ok {
			return c.Call(op, args)
		}
		if r, ok := nvmlMethods.call(d, op, args); ok {
			return nvml.Return(r)
		}
	}
	return nvml.NVML_ERROR_NOT_SUPPORTED
}

// within is the driver that another one has embedded as an interface, of which Go promotes the interface's methods
// alone; nil where there is none.
func within(driver any) any {
	v := reflect.Indirect(reflect.ValueOf(driver))
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Anonymous && f.IsExported() && f.Type.Kind() == reflect.Interface {
			return v.Field(i).Interface()
		}
	}
	return nil
}

// methods finds the methods of the types that implement a library.
type methods struct {
	name func(op uint16) string
	ops  int
	of   sync.Map // reflect.Type → []int: by operation, the index of the method; -1: none
}

var (
	cudaMethods = &methods{name: cuda.OpName, ops: cuda.Ops}
	nvmlMethods = &methods{name: nvml.OpName, ops: nvml.Ops}
)

func (m *methods) index(t reflect.Type) []int {
	if list, ok := m.of.Load(t); ok {
		return list.([]int)
	}
	list := make([]int, m.ops)
	for op := range list {
		list[op] = -1
		if method, ok := t.MethodByName(methodName(m.name(uint16(op)))); ok {
			list[op] = method.Index
		}
	}
	m.of.Store(t, list)
	return list
}

// methodName is the name of the Go method of a C function.
func methodName(function string) string {
	return string(function[0]-'a'+'A') + function[1:]
}

func (m *methods) call(driver any, op uint16, args *[16]uint64) (result int64, ok bool) {
	list := m.index(reflect.TypeOf(driver))
	if int(op) >= len(list) || list[op] < 0 {
		return 0, false
	}
	method := reflect.ValueOf(driver).Method(list[op])
	t := method.Type()
	in := make([]reflect.Value, t.NumIn())
	for i := range in {
		in[i] = value(t.In(i), &args[i])
	}
	return method.Call(in)[0].Int(), true
}

// value is the argument that a word stands for. The machine stores the low bytes first, so small ones lie at the
// word's address.
func value(t reflect.Type, word *uint64) reflect.Value {
	at := unsafe.Pointer(word)
	if t.Size() > 8 {
		at = *(*unsafe.Pointer)(at)
	}
	return reflect.NewAt(t, at).Elem()
}
