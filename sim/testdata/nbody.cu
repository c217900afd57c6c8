// A step of bodies that attract each other; positions and masses pass through shared memory.
#include "device.h"

typedef float body __attribute__((ext_vector_type(4))); // x, y, z, mass

KERNEL nbody(const body *from, body *to, body *speed, int n, float dt) {
  __shared__ body s[64];
  int i = block * 64 + tid;
  body me = i < n ? from[i] : (body){0, 0, 0, 0};
  float ax = 0, ay = 0, az = 0;
  for (int k = 0; k < n; k += 64) {
    s[tid] = k + tid < n ? from[k + tid] : (body){0, 0, 0, 0};
    sync();
    for (int j = 0; j < 64; j++) {
      float dx = s[j].x - me.x, dy = s[j].y - me.y, dz = s[j].z - me.z;
      float d = __builtin_fmaf(dx, dx, __builtin_fmaf(dy, dy, __builtin_fmaf(dz, dz, 0.01f)));
      float r = __nvvm_rcp_rn_f(__nvvm_sqrt_rn_f(d));
      float w = s[j].w * r * r * r;
      ax = __builtin_fmaf(w, dx, ax), ay = __builtin_fmaf(w, dy, ay), az = __builtin_fmaf(w, dz, az);
    }
    sync();
  }
  if (i >= n) return;
  body v = speed[i];
  v.x = __builtin_fmaf(ax, dt, v.x), v.y = __builtin_fmaf(ay, dt, v.y), v.z = __builtin_fmaf(az, dt, v.z);
  me.x = __builtin_fmaf(v.x, dt, me.x), me.y = __builtin_fmaf(v.y, dt, me.y), me.z = __builtin_fmaf(v.z, dt, me.z);
  speed[i] = v;
  to[i] = me;
}
