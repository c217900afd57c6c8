// Package residency holds the tests of what a fault of unified memory brings (shim/front/uvm/residency.c) of what comes
// with a wait (shim/front/uvm/thrashing.c), and of what is known of a range's pages (shim/front/uvm/advice.c), which
// hold no lock and move nothing: the rules that must hold for any state of a range, and what programs of known patterns
// cost.
package residency
