# Flags for programs and libraries that run on systems with an older glibc than this one. To be sourced with $shim set
# to this folder. Go's build cache does not see changes of a force-included file, so its hash stands among the flags.
compat="-include $shim/front/base/compat.h"
export CGO_ENABLED=1 \
  CGO_CFLAGS="-O2 $compat -DSCUDA_COMPAT_HASH=0x$(sha256sum "$shim/front/base/compat.h" | cut -c1-12)"
# The tables through which programs and libraries find each other's functions are filled in at the start and then
# read-only.
hardened="-Wl,-z,relro -Wl,-z,now"
# libdl and libpthread are named for systems whose libc does not contain them (glibc before 2.34).
old_libraries="-Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0"
