/* Connections that the fronts open themselves (net.c). Failures are logged with cause and remedy. */
#ifndef SCUDA_NET_H
#define SCUDA_NET_H
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 1u

/* Connects to "host:port"; the descriptor (non-blocking) or -1. */
int scuda_net_dial(const char *server);

/* What a connection has brought and nobody has taken yet: a system call takes all that is there. Zeroed at first. */
struct scuda_inbox { size_t r, w; unsigned char bytes[8 << 10]; };

/* Shakes hands as a client of that kind; 0 or -1. What is to be said `first` goes with the greeting. The welcome's JSON is returned in new memory where it is
 * asked for. */
struct scuda_bytes { const void *data; size_t n; };
int scuda_net_hello(int fd, struct scuda_inbox *in, const char *server, const char *kind, const char *digest, struct scuda_bytes first, char **welcome);

/* The version of the server's driver in a welcome; 0 where it is not said. */
int32_t scuda_net_version_in(const char *welcome);

/* All of the bytes, until a time of the monotonic clock in ms (0: for ever); 0 or -1 with errno. What is sent is in two parts. */
int scuda_net_send(int fd, const void *data, size_t n, const void *more, size_t m, int64_t until);
int scuda_net_recv(int fd, struct scuda_inbox *in, void *data, size_t n, int64_t until);
int scuda_net_skip(int fd, struct scuda_inbox *in, size_t n, int64_t until);

/* What the server's cuDriverGetVersion answers, asked over a connection of its own; 0 or -1. */
int scuda_net_driver_version(int32_t *version);
#endif
