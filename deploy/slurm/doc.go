// Package slurm gives Slurm's jobs GPUs of scuda's servers: it takes a lease for each node of a job, brings it into
// the job's tasks, and gives it back.
//
// The verbs of scuda slurm call it, one for each of Slurm's hooks: the node's prolog, epilog and task prolog, the
// controller's epilog, and the functions of burst_buffer.lua. Slurm counts the GPUs (by licences); the servers know
// only leases. It asks servers by the command line, scuda lease, so it does what an administrator could do by hand.
//
// What it keeps of a job lies in a folder of its own below [Site.Folder], which root (or the controller's user) owns:
// the lease, for everybody to read, and its credential, for the job's user alone. Whoever changes the folder of a job
// holds a lock on it.
package slurm
