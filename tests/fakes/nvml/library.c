/* The library itself: start and end, its GPUs and their slices (MIG). */
#include <stdio.h>
#include <stdlib.h>

#include "stand_in.h"

int users;

static Device gpus[GPUS], slices[GPUS][SLICES];

Gpu whole_gpu(int index) {
    gpus[index] = (Device){index, -1};
    return gpus + index;
}

API int nvmlInitWithFlags(u32 flags) {
    char text[LINE];
    double elapsed_s;
    int error = read_text("Init", text, &elapsed_s);
    (void)flags;
    if (error != OK && error != UNSUPPORTED) return error;
    users++;
    return OK;
}

API int nvmlShutdown(void) {
    if (users < 1) return UNINITIALIZED;
    users--;
    return OK;
}

API const char *nvmlErrorString(int error) {
    static char text[32];
    snprintf(text, sizeof text, "Stand-in error %d", error);
    return text;
}

API int nvmlSystemGetDriverVersion(char *out, u32 size) {
    char text[LINE];
    double elapsed_s;
    int error = users < 1 ? UNINITIALIZED : read_text("DriverVersion", text, &elapsed_s);
    if (!error) snprintf(out, size, "%s", text);
    return error;
}

API int nvmlDeviceGetCount_v2(u32 *out) {
    char text[LINE];
    double elapsed_s;
    int error = users < 1 ? UNINITIALIZED : read_text("Count", text, &elapsed_s);
    if (!error) *out = (u32)atoi(text);
    return error;
}

API int nvmlDeviceGetHandleByIndex_v2(u32 index, Gpu *out) {
    char key[16], text[LINE];
    u32 count = 0;
    double elapsed_s;
    int error = nvmlDeviceGetCount_v2(&count);
    if (error) return error;
    if (index >= count || index >= GPUS) return INVALID;
    snprintf(key, sizeof key, "gpu%u", index);
    error = read_text(key, text, &elapsed_s);
    if (error != OK && error != UNSUPPORTED) return error;
    *out = whole_gpu((int)index);
    return OK;
}

NUMBER(MaxMigDeviceCount)

API int nvmlDeviceGetMigMode(Gpu gpu, u32 *current, u32 *pending) {
    return ask_pair(gpu, "MigMode", current, pending);
}

/* A slice is there if it has a UUID. */
API int nvmlDeviceGetMigDeviceHandleByIndex(Gpu gpu, u32 index, Gpu *out) {
    char text[LINE];
    int error;
    if (index >= SLICES || gpu->slice >= 0) return INVALID;
    Gpu slice = &slices[gpu->gpu][index];
    *slice = (Device){gpu->gpu, (int)index};
    error = ask(slice, "UUID", text);
    if (error) return error == UNSUPPORTED ? NOT_FOUND : error;
    *out = slice;
    return OK;
}

NUMBER(GpuInstanceId)
