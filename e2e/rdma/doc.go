// Package rdma_test runs a server with the simulated GPU and client programs over RDMA. Its tests have the build tag
// rdma, because they need two RDMA devices; `make test-rdma` runs them in a virtual machine with soft-RoCE.
package rdma_test
