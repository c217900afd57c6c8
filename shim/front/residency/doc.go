// Package residency holds the tests of what a fault of unified memory brings (shim/front/residency.c), which holds no lock and moves nothing: the
// rules that must hold for any state of a range, and what programs of known patterns cost.
package residency
