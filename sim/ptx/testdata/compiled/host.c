#include <stdio.h>
#include "functions.h"
int main(void) {
#define PRINT(f) for (u32 i = 0; i < 256; i++) printf("%s %08x\n", #f, f(i * 2654435761u + 12345u));
	FUNCTIONS(PRINT)
}
