/* What changes from moment to moment, and the processes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stand_in.h"

typedef struct { u32 gpu, memory; } Utilization;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory_v2;
typedef struct { u32 version, sensor; int celsius; } Temperature_v1;
typedef struct { u32 version; int celsius; } Margin_v1;
typedef struct { u32 pid; u64 bytes; u32 gpu_instance, compute_instance; } Process;
typedef struct { u32 pid; u64 at_us; u32 sm, memory, encoder, decoder; } ProcessUtilization;
typedef struct { u32 id, scope; i64 at_us, latency_us; u32 type; int error;
                 union { u32 u32; u64 u64; } value; } FieldValue;

SIZE(Utilization, c_nvmlUtilization_t)
SIZE(Memory, c_nvmlMemory_t)
SIZE(Memory_v2, c_nvmlMemory_v2_t)
SIZE(Temperature_v1, c_nvmlTemperature_v1_t)
SIZE(Margin_v1, c_nvmlMarginTemperature_v1_t)
SIZE(Process, c_nvmlProcessInfo_v3_t)
SIZE(ProcessUtilization, c_nvmlProcessUtilizationSample_t)
SIZE(FieldValue, c_nvmlFieldValue_t)

enum { TYPE_U32 = 1, TYPE_U64 = 3 };

NUMBER(CurrPcieLinkGeneration)
NUMBER(CurrPcieLinkWidth)
NUMBER(EnforcedPowerLimit)
NUMBER(PerformanceState)
NUMBER(PowerUsage)

API int nvmlDeviceGetClockInfo(Gpu gpu, u32 clock, u32 *out) {
    return ask_indexed(gpu, "ClockInfo", clock, out);
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

API int nvmlDeviceGetUtilizationRates(Gpu gpu, Utilization *out) {
    return ask_pair(gpu, "UtilizationRates", &out->gpu, &out->memory);
}

API int nvmlDeviceGetMemoryInfo(Gpu gpu, Memory *out) {
    char text[LINE];
    int error = ask(gpu, "MemoryInfo", text);
    if (!error) sscanf(text, "%llu %llu %llu", &out->total, &out->free, &out->used);
    return error;
}

/* `pid:bytes ...` or `none`; `-` stands for memory that the driver hides. */
static int ask_processes(Gpu gpu, const char *what, u32 *count, Process *out) {
    char text[LINE], *rest, *word;
    u32 room = *count;
    int error = ask(gpu, what, text);
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

/* `pid:sm:memory:age_ms ...` or `none`; as some drivers do, it gives samples that are too old. */
API int nvmlDeviceGetProcessUtilization(Gpu gpu, ProcessUtilization *out, u32 *count, u64 since_us) {
    char text[LINE], *rest, *word;
    u32 room = *count;
    (void)since_us;
    int error = ask(gpu, "ProcessUtilization", text);
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

API int nvmlDeviceGetFieldValues(Gpu gpu, int count, FieldValue *fields) {
    char name[32], text[LINE];
    int error = ask(gpu, "FieldValues", text);
    if (error != OK && error != UNSUPPORTED) return error;
    for (int i = 0; i < count; i++) {
        u64 number = 0;
        snprintf(name, sizeof name, "Field%u", fields[i].id);
        fields[i].error = ask_number(gpu, name, &number);
        fields[i].at_us = (i64)wall_us();
        /* the PCIe byte counters, the power and the heat are 32 bits wide, times and the rest 64 */
        int is_u32 = fields[i].id == 82 || (fields[i].id >= 186 && fields[i].id <= 198);
        fields[i].type = is_u32 ? TYPE_U32 : TYPE_U64;
        if (is_u32) fields[i].value.u32 = (u32)number;
        else fields[i].value.u64 = number;
    }
    return OK;
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
    int error;
    if (out->version != (sizeof *out | 2u << 24)) return WRONG_VERSION;
    if ((error = ask(gpu, "MemoryInfo_v2", text))) return error;
    sscanf(text, "%llu %llu %llu %llu", &out->total, &out->reserved, &out->free, &out->used);
    return OK;
}
#endif
