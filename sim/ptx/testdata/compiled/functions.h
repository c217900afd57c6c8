// Functions from u32 to u32 that a compiler turns into as many kinds of code as possible. They are compiled twice: by
// clang for NVPTX, which gives functions.ptx, and for the host, which gives functions.want.
typedef unsigned int u32;
typedef unsigned long u64;
typedef unsigned char u8;
typedef unsigned short u16;

static u32 rotl(u32 x, int n) { return x << n | x >> (32 - n); }

// Sorting in a local array, with a loop whose length depends on the data.
static u32 sorting(u32 x) {
	u32 a[24];
	for (int i = 0; i < 24; i++) { x = x * 1664525u + 1013904223u; a[i] = x >> 7; }
	for (int i = 1; i < 24; i++) {
		u32 v = a[i];
		int j = i;
		while (j > 0 && a[j - 1] > v) { a[j] = a[j - 1]; j--; }
		a[j] = v;
	}
	u32 h = 0;
	for (int i = 0; i < 24; i++) h = h * 31 + a[i];
	return h;
}

// A switch that becomes a jump table.
static u32 machine(u32 x) {
	u32 acc = 1, pc = x;
	for (int steps = 0; steps < 64; steps++) {
		switch (pc % 11) {
		case 0: acc += x; break;
		case 1: acc ^= x << 3; break;
		case 2: acc *= 5; break;
		case 3: acc = rotl(acc, 7);
		case 4: acc -= 9; break;
		case 5: acc |= 1; break;
		case 6: acc = acc / 3 + pc; break;
		case 7: acc = acc % 1000003; break;
		case 8: if (acc & 4) return acc; break;
		case 9: acc = ~acc; break;
		default: acc += acc >> 5;
		}
		pc = pc / 2 + acc * 7 + 3;
	}
	return acc;
}

static u32 divisions(u32 x) {
	long a = (long)x * 0x123456789l - 0x7000000000l;
	int b = (int)x - 77777;
	u64 c = (u64)x << 31 | x;
	long q = a / (b ? b : 1), r = a % (b ? b : 1);
	u64 s = c / (x % 1000 + 1) ^ c % (x % 977 + 3);
	return (u32)(q ^ r >> 3 ^ s ^ s >> 32) + (u32)((u16)x / 7) + (u32)((signed char)x / 3) + (u32)(b % 31);
}

static u32 wide(u32 x) {
	unsigned __int128 p = (unsigned __int128)x * 0xfedcba9876543210ul;
	p = p * p + 12345;
	p = p - ((unsigned __int128)x << 77);
	__int128 s = (__int128)p >> 13;
	return (u32)(u64)s ^ (u32)(u64)(s >> 64) ^ (u32)((u64)s >> 32) ^ (p < ((unsigned __int128)x << 90) ? 0x55 : 0xaa);
}

static u32 bitwise(u32 x) {
	u64 y = (u64)x * 0x9e3779b97f4a7c15ul;
	u32 r = __builtin_popcountl(y) + 64 * __builtin_clz(x | 1) + 4096 * __builtin_ctzl(y | 1ul << 60);
	r ^= __builtin_bswap32(x) ^ rotl(x, x & 15 | 1);
	for (int i = 0; i < 5; i++) r = r >> (x >> (4 * i) & 7) ^ (u32)(y << (i * 9) >> 13);
	return r + (u32)(y ^ y >> 32);
}

static u32 floating(u32 x) {
	float f = (float)(int)(x & 0xffff) / 37.0f - 300.0f;
	double d = (double)x * 1e-3 - 1e5;
	float g = f * f + 1.5f;
	double e = d / (g + 1.0) + d * f;
	float m = f < g ? f : g;
	if (e != e) m = 0;
	int i = (int)(g * 3.25f), j = (int)d;
	u64 l = (u64)(long)(e * 4.0);
	float back = (float)l + (float)(u32)(j + 200000) * 0.5f;
	u32 bits;
	__builtin_memcpy(&bits, &back, 4);
	return bits ^ (u32)i ^ (u32)j * 3 ^ (u32)l ^ (u32)(long)(m * 1000.0f);
}

struct point { u8 tag; short x; int y[3]; u64 z; };

static __attribute__((noinline)) struct point move(struct point p, int by) {
	p.tag += by;
	p.x -= by;
	for (int i = 0; i < 3; i++) p.y[i] += by * p.x;
	p.z = p.z * 3 + p.tag;
	return p;
}

static u32 structures(u32 x) {
	struct point p = {(u8)x, (short)(x >> 8), {1, (int)x, -3}, x};
	for (int i = 0; i < 4; i++) p = move(p, (int)(x & 31) + i);
	return p.tag + (u32)p.x * 7 + p.y[0] + p.y[1] * 3 + p.y[2] * 5 + (u32)(p.z ^ p.z >> 32);
}

static __attribute__((noinline)) u32 ackermann(u32 m, u32 n) {
	if (m == 0) return n + 1;
	if (n == 0) return ackermann(m - 1, 1);
	return ackermann(m - 1, ackermann(m, n - 1));
}

static u32 recursion(u32 x) { return ackermann(x % 3, x % 7) * 1000 + ackermann(2, x % 5); }

static u32 search(u32 x) {
	for (u32 i = 2; i < 50; i++) {
		for (u32 j = i; j < 60; j++) {
			if ((i * j + x) % 211 == 7) return i * 100 + j;
			if (j > i + x % 9) break;
		}
		if ((x >> (i & 31) & 3) == 3) continue;
		x += i;
	}
	return x;
}

static u32 bytes(u32 x) {
	u8 buf[40];
	for (int i = 0; i < 40; i++) buf[i] = (u8)(x * i >> 3);
	u32 h = 2166136261u;
	for (int i = 0; i + 4 <= 40; i += 3) {
		u16 s;
		__builtin_memcpy(&s, buf + i, 2);
		h = (h ^ s ^ buf[39 - i]) * 16777619u;
		buf[(h >> 5) % 40] ^= (u8)h;
	}
	return h;
}

#define FUNCTIONS(F) F(sorting) F(machine) F(divisions) F(wide) F(bitwise) F(floating) F(structures) F(recursion) \
    F(search) F(bytes)
