/* Writes each line of its standard input to the log. */
#include "common.h"
#include <stdio.h>
#include <string.h>

int main(void) {
  static char line[4096];
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    scuda_log(SCUDA_ERROR, "%s", line);
  }
  return 0;
}
