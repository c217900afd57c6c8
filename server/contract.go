package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"

	"scuda.dev/scuda/server/commons"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/turn"
)

// meaning is to be raised when messages between supervisor and worker, or what they share, get another meaning without
// another form.
const meaning = 2

// contract tells what a worker and its supervisor have in common from what those of other releases have: the forms of
// their messages and of the memory that they share. A supervisor takes over workers of its own contract.
var contract = contractOf(
	workerConfig{}, readyInfo{}, sessionInfo{}, commonsInfo{}, joinInfo{}, endedInfo{}, noticeInfo{}, shareInfo{},
	sharedInfo{}, imageInfo{}, sessionRecord{}, changing{}, metrics.Page{}, turn.Slot{}, commons.Place{},
)

func contractOf(all ...any) string {
	sum := sha256.New()
	fmt.Fprintln(sum, meaning, metrics.Names(), commons.Places, msgAdopt, msgAdopted, msgGo)
	for _, x := range all {
		describe(sum, reflect.TypeOf(x), map[reflect.Type]bool{})
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// describe writes the form of a type: the names, types and places of all fields in it.
func describe(w io.Writer, t reflect.Type, seen map[reflect.Type]bool) {
	fmt.Fprintln(w, t.Kind(), t.Size())
	if seen[t] {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		describe(w, t.Elem(), seen)
	case reflect.Map:
		describe(w, t.Key(), seen)
		describe(w, t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.Type.PkgPath() == "os" || f.Type.Kind() == reflect.Pointer && f.Type.Elem().PkgPath() == "os" {
				continue // it travels beside the rest
			}
			fmt.Fprintln(w, f.Name, f.Tag, f.Offset)
			describe(w, f.Type, seen)
		}
	}
}
