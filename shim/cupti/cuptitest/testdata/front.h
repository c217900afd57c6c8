// What the test programs ask of the front that stands in.
#include "base/profile.h"
#include "gen/wire_gen.h"

uint64_t front_real(void);           // ns since 1970
void front_spin(uint64_t until);
// From now on there are n servers, whose clocks are off by so many ns each, and by a rate; their answers take so many
// us each way.
void front_server(const int64_t *ns, uint32_t n, double rate, uint32_t to, uint32_t back);
// A kernel that really ran then.
void front_work(uint32_t server, uint32_t correlation, uint32_t stream, uint64_t start, uint64_t end);
const struct scuda_profiler *front_profiler(void);
