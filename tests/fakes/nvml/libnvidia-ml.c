/* A stand-in for NVIDIA's libnvidia-ml.so.1 that answers from a text file.
 *
 * Strategy: every call reads the file named by NVML_STAND_IN anew, so a test changes the GPU by
 * replacing the file. Only the functions that slowtok calls exist; any other is a missing symbol,
 * as in a driver that is too old. OLD_DRIVER leaves out the newest of them.
 *
 * A line is `[@seconds] key = value`; the last line of a key whose time has come counts, and a key
 * without a line is not supported. Times run from the line `epoch`, on CLOCK_MONOTONIC. Keys are
 * `gpu0.` and the function's name without `nvmlDeviceGet`; `gpu0` alone speaks for all its calls.
 * A value may begin with `~250` (block for 250 ms); `!15` is error 15; `100 +5/s` grows with time.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define LINE 1024
#define GPUS 16

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef int *Gpu;

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, WRONG_VERSION = 25 };
enum { TYPE_U32 = 1, TYPE_U64 = 3 };

typedef struct { u32 gpu, memory; } Utilization;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory_v2;
typedef struct { u32 version, sensor; int celsius; } Temperature_v1;
typedef struct { u32 version; int celsius; } Margin_v1;
typedef struct { u32 pid; u64 bytes; u32 gpu_instance, compute_instance; } Process;
typedef struct { u32 pid; u64 at_us; u32 sm, memory, encoder, decoder; } ProcessUtilization;
typedef struct { u32 id, scope; i64 at_us, latency_us; u32 type; int error;
                 union { u32 u32; u64 u64; } value; } FieldValue;

static int handles[GPUS];
static int users;

static double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static u64 wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Finds a key; gives its value and the seconds since the epoch. Returns whether it was there. */
static int look_up(const char *key, char *value, double *elapsed_s) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *script = path ? fopen(path, "r") : NULL;
    char line[LINE], name[LINE], text[LINE];
    double at_s, epoch_s = 0;
    int found = 0;
    if (!script) return 0;
    while (fgets(line, sizeof line, script)) {
        char *rest = line;
        at_s = 0;
        if (*rest == '@') at_s = strtod(rest + 1, &rest);
        if (sscanf(rest, " %[^= ] = %[^\n]", name, text) != 2) continue;
        if (!strcmp(name, "epoch")) epoch_s = atof(text);
        if (strcmp(name, key) || monotonic_s() - epoch_s < at_s) continue;
        strcpy(value, text);
        found = 1;
    }
    fclose(script);
    *elapsed_s = monotonic_s() - epoch_s;
    return found;
}

/* Gives a key's text, after blocking for as long as it says, or its error. */
static int read_text(const char *key, char *text, double *elapsed_s) {
    char value[LINE], *rest = value;
    if (!look_up(key, value, elapsed_s)) return UNSUPPORTED;
    if (*rest == '~') {
        long ms = strtol(rest + 1, &rest, 10);
        struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
        while (*rest == ' ') rest++;
    }
    if (*rest == '!') return atoi(rest + 1);
    strcpy(text, rest);
    return OK;
}

static int ask(Gpu gpu, const char *what, char *text, double *elapsed_s) {
    char key[LINE];
    int error;
    if (users < 1) return UNINITIALIZED;
    if (gpu < handles || gpu >= handles + GPUS) return INVALID;
    snprintf(key, sizeof key, "gpu%d", (int)(gpu - handles));
    error = read_text(key, text, elapsed_s);
    if (error != OK && error != UNSUPPORTED) return error;
    snprintf(key, sizeof key, "gpu%d.%s", (int)(gpu - handles), what);
    return read_text(key, text, elapsed_s);
}

static int ask_number(Gpu gpu, const char *what, u64 *number) {
    char text[LINE], *rest;
    double elapsed_s, per_s = 0;
    int error = ask(gpu, what, text, &elapsed_s);
    if (error) return error;
    *number = text[0] == '-' ? (u64)strtoll(text, &rest, 0) : strtoull(text, &rest, 0);
    if (sscanf(rest, " +%lf/s", &per_s) == 1) *number += (u64)(per_s * elapsed_s);
    return OK;
}

static int ask_u32(Gpu gpu, const char *what, u32 *out) {
    u64 number;
    int error = ask_number(gpu, what, &number);
    if (!error) *out = (u32)number;
    return error;
}

static int ask_text(Gpu gpu, const char *what, char *out, u32 size) {
    char text[LINE];
    double elapsed_s;
    int error = ask(gpu, what, text, &elapsed_s);
    if (!error) snprintf(out, size, "%s", text);
    return error;
}

static int ask_indexed(Gpu gpu, const char *what, u32 index, u32 *out) {
    char name[LINE];
    snprintf(name, sizeof name, "%s.%u", what, index);
    return ask_u32(gpu, name, out);
}

#define NUMBER(name) API int nvmlDeviceGet##name(Gpu gpu, u32 *out) { return ask_u32(gpu, #name, out); }

NUMBER(CurrPcieLinkGeneration)
NUMBER(CurrPcieLinkWidth)
NUMBER(EnforcedPowerLimit)
NUMBER(GpuMaxPcieLinkGeneration)
NUMBER(MaxPcieLinkGeneration)
NUMBER(MaxPcieLinkWidth)
NUMBER(MemoryBusWidth)
NUMBER(PerformanceState)
NUMBER(PowerManagementDefaultLimit)
NUMBER(PowerUsage)

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
    *out = handles + index;
    return OK;
}

API int nvmlDeviceGetName(Gpu gpu, char *out, u32 size) { return ask_text(gpu, "Name", out, size); }
API int nvmlDeviceGetUUID(Gpu gpu, char *out, u32 size) { return ask_text(gpu, "UUID", out, size); }

API int nvmlDeviceGetClockInfo(Gpu gpu, u32 clock, u32 *out) {
    return ask_indexed(gpu, "ClockInfo", clock, out);
}

API int nvmlDeviceGetMaxClockInfo(Gpu gpu, u32 clock, u32 *out) {
    return ask_indexed(gpu, "MaxClockInfo", clock, out);
}

API int nvmlDeviceGetTemperature(Gpu gpu, u32 sensor, u32 *out) {
    return ask_indexed(gpu, "Temperature", sensor, out);
}

API int nvmlDeviceGetTotalEnergyConsumption(Gpu gpu, u64 *out) {
    return ask_number(gpu, "TotalEnergyConsumption", out);
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu gpu, u64 *out) {
    return ask_number(gpu, "CurrentClocksThrottleReasons", out);
}

/* `pid:bytes ...` or `none`; `-` stands for memory that the driver hides. */
static int ask_processes(Gpu gpu, const char *what, u32 *count, Process *out) {
    char text[LINE], *rest, *word;
    double elapsed_s;
    u32 room = *count;
    int error = ask(gpu, what, text, &elapsed_s);
    if (error) return error;
    *count = 0;
    for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(word, ':');
        if (!colon) continue;
        u64 bytes = colon[1] == '-' ? ~0ull : strtoull(colon + 1, NULL, 0);
        if (out && *count < room) out[*count] = (Process){(u32)atoi(word), bytes, ~0u, ~0u};
        ++*count;
    }
    return *count > (out ? room : 0) ? TOO_SMALL : OK;
}

/* The second version has the same layout. */
API int nvmlDeviceGetComputeRunningProcesses_v2(Gpu gpu, u32 *count, Process *out) {
    return ask_processes(gpu, "ComputeRunningProcesses", count, out);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(Gpu gpu, u32 *count, Process *out) {
    return ask_processes(gpu, "GraphicsRunningProcesses", count, out);
}

#ifndef OLD_DRIVER
API int nvmlDeviceGetComputeRunningProcesses_v3(Gpu gpu, u32 *count, Process *out) {
    return ask_processes(gpu, "ComputeRunningProcesses", count, out);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu gpu, u32 *count, Process *out) {
    return ask_processes(gpu, "GraphicsRunningProcesses", count, out);
}

API int nvmlDeviceGetCurrentClocksEventReasons(Gpu gpu, u64 *out) {
    return ask_number(gpu, "CurrentClocksEventReasons", out);
}

API int nvmlDeviceGetTemperatureV(Gpu gpu, Temperature_v1 *out) {
    if (out->version != (sizeof *out | 1u << 24)) return WRONG_VERSION;
    return ask_indexed(gpu, "TemperatureV", out->sensor, (u32 *)&out->celsius);
}

API int nvmlDeviceGetMarginTemperature(Gpu gpu, Margin_v1 *out) {
    if (out->version != (sizeof *out | 1u << 24)) return WRONG_VERSION;
    return ask_u32(gpu, "MarginTemperature", (u32 *)&out->celsius);
}

API int nvmlDeviceGetMemoryInfo_v2(Gpu gpu, Memory_v2 *out) {
    char text[LINE];
    double elapsed_s;
    int error;
    if (out->version != (sizeof *out | 2u << 24)) return WRONG_VERSION;
    if ((error = ask(gpu, "MemoryInfo_v2", text, &elapsed_s))) return error;
    sscanf(text, "%llu %llu %llu %llu", &out->total, &out->reserved, &out->free, &out->used);
    return OK;
}
#endif

API int nvmlDeviceGetMemoryInfo(Gpu gpu, Memory *out) {
    char text[LINE];
    double elapsed_s;
    int error = ask(gpu, "MemoryInfo", text, &elapsed_s);
    if (!error) sscanf(text, "%llu %llu %llu", &out->total, &out->free, &out->used);
    return error;
}

static int ask_pair(Gpu gpu, const char *what, u32 *first, u32 *second) {
    char text[LINE];
    double elapsed_s;
    int error = ask(gpu, what, text, &elapsed_s);
    if (!error) sscanf(text, "%u %u", first, second);
    return error;
}

API int nvmlDeviceGetUtilizationRates(Gpu gpu, Utilization *out) {
    return ask_pair(gpu, "UtilizationRates", &out->gpu, &out->memory);
}

API int nvmlDeviceGetPowerManagementLimitConstraints(Gpu gpu, u32 *least, u32 *most) {
    return ask_pair(gpu, "PowerManagementLimitConstraints", least, most);
}

API int nvmlDeviceGetMigMode(Gpu gpu, u32 *current, u32 *pending) {
    return ask_pair(gpu, "MigMode", current, pending);
}

API int nvmlDeviceGetFieldValues(Gpu gpu, int count, FieldValue *fields) {
    char name[32], text[LINE];
    double elapsed_s;
    int error = ask(gpu, "FieldValues", text, &elapsed_s);
    if (error != OK && error != UNSUPPORTED) return error;
    for (int i = 0; i < count; i++) {
        u64 number = 0;
        snprintf(name, sizeof name, "Field%u", fields[i].id);
        fields[i].error = ask_number(gpu, name, &number);
        fields[i].at_us = (i64)wall_us();
        /* the PCIe byte counters and the power are 32 bits wide, times and the rest are 64 */
        fields[i].type = fields[i].id >= 186 && fields[i].id <= 198 ? TYPE_U32 : TYPE_U64;
        if (fields[i].type == TYPE_U32) fields[i].value.u32 = (u32)number;
        else fields[i].value.u64 = number;
    }
    return OK;
}

/* `pid:sm:memory:age_ms ...` or `none`; as some drivers do, it gives samples that are too old. */
API int nvmlDeviceGetProcessUtilization(Gpu gpu, ProcessUtilization *out, u32 *count, u64 since_us) {
    char text[LINE], *rest, *word;
    double elapsed_s;
    u32 room = *count;
    (void)since_us;
    int error = ask(gpu, "ProcessUtilization", text, &elapsed_s);
    if (error) return error;
    *count = 0;
    for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        u32 pid, sm, memory;
        u64 age_ms, at_us;
        if (sscanf(word, "%u:%u:%u:%llu", &pid, &sm, &memory, &age_ms) != 4) continue;
        at_us = wall_us() - age_ms * 1000;
        if (out && *count < room) out[*count] = (ProcessUtilization){pid, at_us, sm, memory, 0, 0};
        ++*count;
    }
    return *count > (out ? room : 0) ? TOO_SMALL : OK;
}

/* Not NVML: what the test of the layouts asks for. */
API size_t stand_in_size(const char *name) {
    struct { const char *name; size_t size; } sizes[] = {
        {"c_nvmlUtilization_t", sizeof(Utilization)},
        {"c_nvmlMemory_t", sizeof(Memory)},
        {"c_nvmlMemory_v2_t", sizeof(Memory_v2)},
        {"c_nvmlTemperature_v1_t", sizeof(Temperature_v1)},
        {"c_nvmlMarginTemperature_v1_t", sizeof(Margin_v1)},
        {"c_nvmlProcessInfo_v3_t", sizeof(Process)},
        {"c_nvmlProcessUtilizationSample_t", sizeof(ProcessUtilization)},
        {"c_nvmlFieldValue_t", sizeof(FieldValue)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name)) return sizes[i].size;
    return 0;
}
