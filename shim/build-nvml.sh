#!/bin/sh
# Builds libnvidia-ml.so.1, the NVML front: build-nvml.sh OUTPUT. CC and SCUDA_VERSION may be set.
set -eu
shim=$(cd "$(dirname "$0")" && pwd)
here=$shim/front
. "$shim/compat.sh"
exec "${CC:-cc}" -std=c11 -O2 -g -fPIC -fvisibility=hidden -fcf-protection=none -fpatchable-function-entry=1 \
  -Wall -Wextra -Werror -include "$here/compat.h" -include "$here/entry.h" -DSCUDA_VERSION="\"${SCUDA_VERSION:-dev}\"" \
  -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script="$here/gen/libnvidia-ml.map" -Wl,-z,defs $hardened \
  -o "$1" "$here/nvml_api.c" "$here/nvml_call.c" "$here/nvml_net.c" "$here/net.c" "$here/gen/nvml_gen.c" "$here/common.c" -ldl
