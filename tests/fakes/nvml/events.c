/* Events. `Xids` lists a GPU's critical errors so far: `79 31`, or `none`. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stand_in.h"

#define XID_EVENT 8
#define LOOK_NS 5000000

typedef struct { Gpu gpu; u64 type, data; u32 gpu_instance, compute_instance; } Event;
typedef struct { int is_registered[GPUS]; u32 told[GPUS]; } EventSet;

SIZE(Event, c_nvmlEventData_t)

static int live;

/* Not NVML: how many sets were created and not freed. */
API int stand_in_live_events(void) { return live; }

/* Gives the last of a GPU's errors up to `most`; returns how many that is. */
static u32 list_xids(Gpu gpu, u32 most, u64 *xid) {
    char text[LINE], *rest, *word;
    u32 count = 0;
    if (ask(gpu, "Xids", text) || text[0] == 'n') return 0;
    for (word = strtok_r(text, " ", &rest); word && count < most; word = strtok_r(NULL, " ", &rest)) {
        *xid = strtoull(word, NULL, 0);
        count++;
    }
    return count;
}

API int nvmlEventSetCreate(EventSet **out) {
    char text[LINE];
    double elapsed_s;
    int error = read_text("EventSetCreate", text, &elapsed_s);
    if (error != OK && error != UNSUPPORTED) return error;
    *out = calloc(1, sizeof **out);
    live++;
    return OK;
}

API int nvmlEventSetFree(EventSet *set) {
    free(set);
    live--;
    return OK;
}

/* What happened before is not told. */
API int nvmlDeviceRegisterEvents(Gpu gpu, u64 types, EventSet *set) {
    char text[LINE];
    u64 xid;
    int error = ask(gpu, "Xids", text);
    if (error) return error;
    if (types != XID_EVENT || gpu->slice >= 0) return INVALID;
    set->told[gpu->gpu] = list_xids(gpu, ~0u, &xid);
    set->is_registered[gpu->gpu] = 1;
    return OK;
}

static int next_event(EventSet *set, Event *out) {
    for (int i = 0; i < GPUS; i++) {
        Gpu gpu = whole_gpu(i);
        u64 xid;
        if (!set->is_registered[i] || list_xids(gpu, set->told[i] + 1, &xid) <= set->told[i]) continue;
        set->told[i]++;
        *out = (Event){gpu, XID_EVENT, xid, ~0u, ~0u};
        return 1;
    }
    return 0;
}

API int nvmlEventSetWait_v2(EventSet *set, Event *out, u32 timeout_ms) {
    struct timespec pause = {0, LOOK_NS};
    double end_s = monotonic_s() + timeout_ms / 1e3, elapsed_s;
    char text[LINE];
    int error = read_text("EventSetWait", text, &elapsed_s);
    if (error != OK && error != UNSUPPORTED) return error;
    if (users < 1) return UNINITIALIZED;
    while (!next_event(set, out)) {
        if (monotonic_s() >= end_s) return TIMED_OUT;
        nanosleep(&pause, NULL);
    }
    return OK;
}
