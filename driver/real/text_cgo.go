package real

// #include <stdio.h>
import "C"

// FlushText writes what the driver has printed with C's stdio.
func (g *GPU) FlushText() { C.fflush(nil) }
