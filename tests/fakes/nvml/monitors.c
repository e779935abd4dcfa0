/* Performance monitors (GPM): what lies between two samples.
 *
 * `GpmDramBusy` is the percentage that held until a sample was taken.
 */
#include <stdio.h>
#include <stdlib.h>

#include "stand_in.h"

#define METRICS 477
#define DRAM_BUSY 10

typedef struct { int is_taken; double at_s, percent; } Sample;
typedef struct { u32 id; int error; double value; const char *names[3]; } Metric;
typedef struct { u32 version, count; Sample *first, *second; Metric metrics[METRICS]; } Metrics;
typedef struct { u32 version, is_supported; } Support;

SIZE(Metric, c_nvmlGpmMetric_t)
SIZE(Metrics, c_nvmlGpmMetricsGet_t)
SIZE(Support, c_nvmlGpmSupport_t)

static int live;

/* Not NVML: how many samples were allocated and not freed. */
API int stand_in_live_samples(void) { return live; }

#ifndef OLD_DRIVER
API int nvmlGpmQueryDeviceSupport(Gpu gpu, Support *out) {
    return out->version == 1 ? ask_u32(gpu, "GpmQueryDeviceSupport", &out->is_supported) : WRONG_VERSION;
}

API int nvmlGpmSampleAlloc(Sample **out) {
    *out = calloc(1, sizeof **out);
    live++;
    return OK;
}

API int nvmlGpmSampleFree(Sample *sample) {
    free(sample);
    live--;
    return OK;
}

static int take(Gpu gpu, const char *what, Sample *sample) {
    char text[LINE];
    int error = gpu->slice >= 0 ? INVALID : ask(gpu, what, text);
    sample->is_taken = !error;
    sample->at_s = monotonic_s();
    if (!error) sample->percent = atof(text);
    return error;
}

API int nvmlGpmSampleGet(Gpu gpu, Sample *sample) { return take(gpu, "GpmDramBusy", sample); }

/* A slice's key is that of its GPU with the number of its instance: `GpmDramBusy.3`. */
API int nvmlGpmMigSampleGet(Gpu gpu, u32 instance, Sample *sample) {
    char name[32];
    snprintf(name, sizeof name, "GpmDramBusy.%u", instance);
    return take(gpu, name, sample);
}

API int nvmlGpmMetricsGet(Metrics *asked) {
    Sample *first = asked->first, *second = asked->second;
    if (asked->version != 1) return WRONG_VERSION;
    if (!first->is_taken || !second->is_taken || second->at_s <= first->at_s) return INVALID;
    for (u32 i = 0; i < asked->count; i++) {
        Metric *metric = asked->metrics + i;
        metric->error = metric->id == DRAM_BUSY ? OK : UNSUPPORTED;
        metric->value = second->percent;
    }
    return OK;
}
#endif
