// Package residency holds the tests of what a fault of unified memory brings (shim/front/residency.c) and of what comes with a wait (shim/front/habit.c),
// which hold no lock and move nothing: the rules that must hold for any state of a range, and what programs of known patterns cost.
package residency
