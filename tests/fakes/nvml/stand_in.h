/* What the parts of the stand-in share: NVML's types as nvidia-ml-py lays them out, and the script.
 *
 * Keys of the script are `gpu0.` (or `gpu0.mig1.` for a slice) and the function's name without
 * `nvmlDeviceGet`; `gpu0` alone speaks for all calls of that GPU.
 */
#ifndef STAND_IN_H
#define STAND_IN_H

#define API __attribute__((visibility("default")))
#define LINE 1024
#define GPUS 16
#define SLICES 8

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

/* What a handle points to; `slice` is -1 for a whole GPU. */
typedef struct { int gpu, slice; } Device;
typedef Device *Gpu;

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10,
       WRONG_VERSION = 25 };

extern int users; /* how often NVML was initialised and not shut down */

double monotonic_s(void);
u64 wall_us(void);
Gpu whole_gpu(int index);

/* Each gives what the script says, after blocking for as long as it says, or its error. */
int read_text(const char *key, char *text, double *elapsed_s);
int ask(Gpu gpu, const char *what, char *text);
int ask_number(Gpu gpu, const char *what, u64 *number);
int ask_u32(Gpu gpu, const char *what, u32 *out);
int ask_pair(Gpu gpu, const char *what, u32 *first, u32 *second);
int ask_indexed(Gpu gpu, const char *what, u32 index, u32 *out);
int ask_text(Gpu gpu, const char *what, char *out, u32 size);

#define NUMBER(name) API int nvmlDeviceGet##name(Gpu gpu, u32 *out) { return ask_u32(gpu, #name, out); }

/* For the test of the layouts: the parts name their structs' sizes. */
#define SIZE(type, name) \
    API unsigned long stand_in_size_##name(void) { return sizeof(type); }

#endif
