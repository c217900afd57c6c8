package api

import (
	"fmt"
	"slices"
	"strings"
)

// Flag is a word behind a function's row of a .semantics file, or behind "op" in wire.spec. The head of each of these
// files says what its flags mean.
type Flag string

// Flags without a value.
const (
	FlagAsyncErrors Flag = "async_errors"
	FlagBulk        Flag = "bulk"
	FlagBytes       Flag = "bytes"
	FlagClears      Flag = "clears" // also with a value
	FlagContextless Flag = "contextless"
	FlagDenied      Flag = "denied"
	FlagFills       Flag = "fills"
	FlagFresh       Flag = "fresh"
	FlagGeneric     Flag = "generic"
	FlagLaunches    Flag = "launches"
	FlagOptional    Flag = "optional"
	FlagOutsOnError Flag = "outs_on_error"
	FlagPadded      Flag = "padded"
	FlagPasses      Flag = "passes"
	FlagPools       Flag = "pools"
	FlagPost        Flag = "post"
	FlagPre         Flag = "pre"
	FlagServer      Flag = "server"
	FlagTransfer    Flag = "transfer"
	FlagTakes       Flag = "takes"
	FlagTakesByHand Flag = "takes_by_hand"
	FlagVersioned   Flag = "versioned"
)

// Flags with a value: NAME=VALUE.
const (
	FlagAlias   Flag = "alias"
	FlagArray   Flag = "array"
	FlagLike    Flag = "like"
	FlagSelect  Flag = "select"
	FlagTail    Flag = "tail"
	FlagUnknown Flag = "unknown"
)

// rowFlags are the flags of each library's rows; a value says that one has to follow.
var rowFlags = map[string]map[Flag]valued{
	cudaFiles.soname: {
		FlagAsyncErrors: never, FlagClears: maybe, FlagGeneric: never, FlagLaunches: never, FlagLike: always,
		FlagOutsOnError: never,
		FlagPasses:      never, FlagPools: never, FlagPost: never, FlagPre: never, FlagSelect: always, FlagServer: never,
		FlagTakes:       never,
		FlagTakesByHand: never, FlagUnknown: always,
	},
	nvmlFiles.soname: {
		FlagAlias: always, FlagArray: always, FlagBytes: never, FlagClears: maybe, FlagDenied: never, FlagFills: never,
		FlagFresh:    never,
		FlagOptional: never, FlagPadded: never, FlagTail: always, FlagVersioned: never,
	},
}

// wireFlags are those of the operations in wire.spec.
var wireFlags = map[Flag]valued{FlagBulk: never, FlagContextless: never, FlagLaunches: never, FlagTransfer: never}

// valued says whether a flag has a value.
type valued int

const (
	never valued = iota
	maybe
	always
)

// checkFlag refuses a word that is no flag of the known ones.
func checkFlag(known map[Flag]valued, word string) error {
	name, value, has := strings.Cut(word, "=")
	want, ok := known[Flag(name)]
	switch {
	case !ok:
		return fmt.Errorf("unknown flag %q", name)
	case has && want == never:
		return fmt.Errorf("the flag %s takes no value", name)
	case value == "" && (has || want == always):
		return fmt.Errorf("the flag %s needs a value", name)
	}
	return nil
}

// Flag says whether the operation has a flag.
func (w *WireStruct) Flag(flag Flag) bool { return slices.Contains(w.Flags, flag) }

// Flag says whether the row has a flag, with or without a value.
func (f *Func) Flag(flag Flag) bool {
	_, ok := f.FlagValue(flag)
	return ok
}

// FlagValue is what stands behind the flag's "=", and whether the row has the flag.
func (f *Func) FlagValue(flag Flag) (string, bool) {
	for _, word := range f.Flags {
		if name, value, _ := strings.Cut(word, "="); Flag(name) == flag {
			return value, true
		}
	}
	return "", false
}

// checkMemory wants of every function that is given an address of memory that its row says whether the work uses the
// memory there. The front takes unified memory accordingly.
func (lib *Library) checkMemory(fn *Func) error {
	addresses := slices.ContainsFunc(fn.Params, lib.NamesMemory)
	said := 0
	for _, flag := range []Flag{FlagTakes, FlagTakesByHand, FlagPasses} {
		if fn.Flag(flag) {
			said++
		}
	}
	switch {
	case fn.Class <= Refused, said == 1, said == 0 && !addresses:
		return nil
	case said == 0:
		return fmt.Errorf("is given an address of memory: want one of the flags takes, takes_by_hand and passes")
	}
	return fmt.Errorf("has more than one of the flags takes, takes_by_hand and passes")
}
