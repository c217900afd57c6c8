// Package node is the part of the Kubernetes driver that runs on each node, beside the kubelet: it makes CDI devices of
// claims. A [Plugin] reads the secret that the controller (package claims) has written for a claim, lays the
// credential into a folder of its own, and describes in a CDI file what the containers get: that folder, scuda's client
// libraries, and the variables that name them.
//
// The files are all its memory, so it may be ended at any time, and the kubelet too. DATA/claims/UID has a claim's
// files, DATA/lib-VERSION the libraries, CDI/gpu.scuda.dev-UID.json the device. A file appears as a whole or not at
// all. No locks: the kubelet's questions about one claim come one after the other, and what Refresh writes is the same.
package node
