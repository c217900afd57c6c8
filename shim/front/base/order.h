/* Order between processes that share memory of the GPU (order.c). */
#ifndef SCUDA_ORDER_H
#define SCUDA_ORDER_H
#include "base/base.h"

enum { SCUDA_ORDER_MOST = 1024 }; /* processes */

/* The process is about to share memory or an event: from here on its commands come behind what others were told of. */
void scuda_order_join(void);
/* All calls up to end have returned. */
void scuda_order_tell(uint64_t end);
/* How far others have got since the last time, under the ring's lock; gives how many have. */
uint32_t scuda_order_news(struct wire_order_after *list);
void scuda_order_end(void);
#endif
