// Package nvmltest tests libnvidia-ml.so.1, the C front in the folder above, from outside: through its exported
// functions, against a server in the test process that serves the simulated NVML by the real dispatch.
package nvmltest
