/* Says which level SCUDA_LOG asks for, and writes a line to the log. */
#include "common.h"
#include <stdio.h>

int main(void) {
  static const struct { const char *name; int level; } levels[] = {
      {"DEBUG", SCUDA_DEBUG}, {"INFO", SCUDA_INFO}, {"WARN", SCUDA_WARN}, {"ERROR", SCUDA_ERROR}};
  size_t i = 0;
  while (i < 3 && !scuda_log_enabled(levels[i].level)) i++;
  puts(levels[i].name);
  scuda_log(SCUDA_ERROR, "a line");
  return 0;
}
