package main

import (
	"scuda.dev/scuda/api"
	"scuda.dev/scuda/shim/connect"
)

// emitConnect writes the layout of what the fronts and scuda-connect say to each other.
func emitConnect(_ *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("#ifndef SCUDA_CONNECT_GEN_H\n#define SCUDA_CONNECT_GEN_H\n#include <stdint.h>\n\n")
	b.WriteString(connect.Header(connect.ABI))
	b.f("\n#endif\n")
	return out.CFile("shim/front/gen/connect_gen.h", b.Bytes())
}
