/* Connections that the fronts need without the Go core: a process whose Go runtime runs cannot be forked. Another
 * program, scuda-connect, makes them and hands them over; settings, dialling and handshake are implemented there alone
 * (docs/decisions/0009-a-program-connects.md).
 * Failures are logged with cause and remedy. */
#ifndef SCUDA_CONNECT_H
#define SCUDA_CONNECT_H
#include <stddef.h>
#include <stdint.h>

#include "gen/connect_gen.h"

struct scuda_bytes { const void *data; size_t n; };

/* Opens a session of that kind with the server of that number, 0 being the first that is configured; the connected
 * socket or -1. One call at a time for a number. What is to be said `first` (SCUDA_CONNECT_FIRST bytes at
 * most) goes with the greeting. `quiet`: why there is no connection is not logged. */
int scuda_connect_session(uint32_t number, const char *kind, const char *digest, struct scuda_bytes first,
                          int quiet, struct scuda_connect_answer *answer);

/* Closes what scuda_connect_session gave. Where the connection has TLS, scuda-connect goes on as long as it is open and
 * passes its bytes on; that ends then, too. */
void scuda_connect_close(int fd, uint32_t number);

/* What the first server's cuDriverGetVersion answers; 0 or -1. */
int scuda_connect_driver_version(int32_t *version);
#endif
