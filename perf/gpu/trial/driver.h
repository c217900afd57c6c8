// What a process asks of the driver in a trial. Each function gives NULL, or what went wrong.
#ifndef TRIAL_DRIVER_H
#define TRIAL_DRIVER_H

// What a worker does before it is isolated: a context, and memory with numbers in it.
const char *trial_open(void);
// Compiles PTX, launches it, and looks at the numbers.
const char *trial_ptx(void);
// The same on unified memory.
const char *trial_managed(void);
// Locks a process, takes its GPU memory away, gives it back, and lets the process go on.
const char *trial_checkpoint(int pid);
// Has CUPTI count kernels.
const char *trial_cupti(const char *library);

#endif
