/* Order between processes that share memory of the GPU (order.c). */
#ifndef SCUDA_ORDER_H
#define SCUDA_ORDER_H
#include "base/base.h"

enum { SCUDA_ORDER_MOST = 1024 }; /* processes */

/* The process is about to share memory or an event: from here on its commands come behind what others were told of. */
void scuda_order_join(void);
/* A command for a server ends there. Under the ring's lock. */
void scuda_order_sent(uint32_t server, uint64_t end);
/* All calls for a server up to end have returned. */
void scuda_order_tell(uint32_t server, uint64_t end);
/* How far others have got since a server was told last, under the ring's lock; gives how many have. */
uint32_t scuda_order_news(uint32_t server, struct wire_order_after *list);
void scuda_order_end(void);
#endif
