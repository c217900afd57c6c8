// Package cuptitest tests libcupti.so, in the folder above, over a front that answers in the test's process: with a
// server whose clock is wrong, and whose answers take longer one way than the other.
package cuptitest
