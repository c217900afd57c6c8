// Package lab is the test of docs/nomad.md, without Nomad: the jobs of the page are read by HCL's parser, their names
// are those of Nomad's API, and their tasks are done as processes, in the order that Nomad documents, with scuda's own
// server and its simulated GPU.
package lab
