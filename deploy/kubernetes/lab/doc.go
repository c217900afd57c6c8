// Package lab is the test of the Kubernetes driver in a real cluster (make test-kubernetes): etcd, kube-apiserver,
// kube-scheduler, kube-controller-manager, kubelets with a containerd each, all on this machine's loopback, with
// scuda's own servers and their simulated GPUs. The folder parts names the programs and builds them.
package lab
