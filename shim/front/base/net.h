/* The bytes of a connection that the NVML front reads and writes itself; connect.h opens it. */
#ifndef SCUDA_NET_H
#define SCUDA_NET_H
#include <stddef.h>
#include <stdint.h>

/* What a connection has brought and nobody has taken yet: a system call takes all that is there. Zeroed at first. */
struct scuda_inbox { size_t r, w; unsigned char bytes[8 << 10]; };

/* All of the bytes; 0 or -1 with errno. A server that is alive says so, so it is given up (ETIMEDOUT) when for five
 * beats nothing has come, or gone. What is sent is in two parts. */
int scuda_net_send(int fd, const void *data, size_t n, const void *more, size_t m);
int scuda_net_recv(int fd, struct scuda_inbox *in, void *data, size_t n);
int scuda_net_skip(int fd, struct scuda_inbox *in, size_t n);
#endif
