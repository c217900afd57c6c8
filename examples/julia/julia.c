// julia KERNEL.ptx PICTURE.png: an ordinary program over the CUDA driver API. It knows nothing of scuda.
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 640, HEIGHT = 400 };

#define CK(call) \
  do { \
    CUresult r_ = (call); \
    if (r_ != CUDA_SUCCESS) { \
      const char *name_ = "?"; \
      cuGetErrorName(r_, &name_); \
      fprintf(stderr, "%s: %s (%d)\n", #call, name_, (int)r_); \
      exit(1); \
    } \
  } while (0)

static uint32_t crc(uint32_t c, const unsigned char *p, size_t n) {
  for (c = ~c; n--; p++) {
    c ^= *p;
    for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
  }
  return ~c;
}
static unsigned char *put32(unsigned char *p, uint32_t v) {
  for (int k = 3; k >= 0; k--) *p++ = (unsigned char)(v >> (8 * k));
  return p;
}
static void chunk(FILE *f, const char *type, const unsigned char *data, uint32_t n) {
  unsigned char b[8];
  put32(b, n);
  memcpy(b + 4, type, 4);
  fwrite(b, 1, 8, f);
  fwrite(data, 1, n, f);
  put32(b, crc(crc(0, b + 4, 4), data, n));
  fwrite(b, 1, 4, f);
}

static void write_png(const char *path, const unsigned char *rgba) { // zlib data in stored blocks, a row each
  enum { ROW = 1 + WIDTH * 4 };
  unsigned char header[13] = {0}, *data = malloc((size_t)HEIGHT * (ROW + 5) + 6), *p = data;
  uint32_t a = 1, b = 0;
  FILE *f = fopen(path, "wb");
  if (!f || !data) {
    perror(path);
    exit(1);
  }
  *p++ = 0x78;
  *p++ = 0x01;
  for (int y = 0; y < HEIGHT; y++) {
    *p++ = y == HEIGHT - 1;
    *p++ = ROW & 255;
    *p++ = ROW >> 8;
    *p++ = ~ROW & 255;
    *p++ = (~ROW >> 8) & 255;
    unsigned char *row = p;
    *p++ = 0;
    memcpy(p, rgba + (size_t)y * WIDTH * 4, WIDTH * 4);
    p += WIDTH * 4;
    for (; row < p; row++) a = (a + *row) % 65521, b = (b + a) % 65521;
  }
  p = put32(p, b << 16 | a);
  put32(put32(header, WIDTH), HEIGHT);
  header[8] = 8;
  header[9] = 6;
  fwrite("\x89PNG\r\n\x1a\n", 1, 8, f);
  chunk(f, "IHDR", header, 13);
  chunk(f, "IDAT", data, (uint32_t)(p - data));
  chunk(f, "IEND", NULL, 0);
  fclose(f);
  free(data);
}

static void preview(const unsigned char *rgba) { // the mean brightness of each cell
  static const char shades[] = " .:-=+*#%@";
  enum { COLUMNS = 80, ROWS = 25, W = WIDTH / COLUMNS, H = HEIGHT / ROWS };
  for (int row = 0; row < ROWS; row++) {
    for (int column = 0; column < COLUMNS; column++) {
      long sum = 0;
      for (int i = 0; i < W * H; i++) {
        const unsigned char *p = rgba + 4 * ((size_t)(row * H + i / W) * WIDTH + column * W + i % W);
        sum += p[0] + p[1] + p[2];
      }
      putchar(shades[sum * 9 / (W * H * 3 * 255)]);
    }
    putchar('\n');
  }
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: julia KERNEL.ptx PICTURE.png\n");
    return 2;
  }
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction julia;
  CUdeviceptr image;
  CUstream stream;
  CUevent begin, end;
  char name[128];
  CK(cuInit(0));
  CK(cuDeviceGet(&device, 0));
  CK(cuDeviceGetName(name, sizeof name, device));
  CK(cuDevicePrimaryCtxRetain(&context, device));
  CK(cuCtxSetCurrent(context));
  CK(cuModuleLoad(&module, argv[1]));
  CK(cuModuleGetFunction(&julia, module, "julia"));
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  CK(cuEventCreate(&end, CU_EVENT_DEFAULT));
  size_t bytes = (size_t)WIDTH * HEIGHT * 4;
  unsigned char *rgba;
  CK(cuMemAlloc(&image, bytes));
  CK(cuMemAllocHost((void **)&rgba, bytes));
  unsigned width = WIDTH, height = HEIGHT;
  float scale = 0.0048f, cx = -0.7269f, cy = 0.1889f, ms;
  void *args[] = {&image, &width, &height, &scale, &cx, &cy};
  CK(cuEventRecord(begin, stream));
  CK(cuLaunchKernel(julia, (WIDTH + 15) / 16, (HEIGHT + 7) / 8, 1, 16, 8, 1, 0, stream, args, NULL));
  CK(cuEventRecord(end, stream));
  CK(cuMemcpyDtoHAsync(rgba, image, bytes, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuEventElapsedTime(&ms, begin, end));
  write_png(argv[2], rgba);
  preview(rgba);
  printf("%d×%d pixels computed on \"%s\" in %.1f ms, written to %s\n", WIDTH, HEIGHT, name, ms, argv[2]);
  return 0;
}
