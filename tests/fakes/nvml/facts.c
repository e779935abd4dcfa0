/* What does not change about a GPU, and its health. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "stand_in.h"

#define FEATURES 3

typedef struct { char legacy_id[16]; u32 domain, bus, device, chip, subsystem; char id[32]; } Pci;
typedef struct { u32 year; u16 month, day, hour, minute, second; unsigned char status; } Expiry;
typedef struct { u32 code, state; char info[128], product[128]; u32 enabled; Expiry expiry; } Feature;
typedef struct { int is_supported; u32 count; Feature features[FEATURES]; } Features;

SIZE(Pci, nvmlPciInfo_t)
SIZE(Features, c_nvmlGridLicensableFeatures_v4_t)

NUMBER(Architecture)
NUMBER(GpuMaxPcieLinkGeneration)
NUMBER(MaxPcieLinkGeneration)
NUMBER(MaxPcieLinkWidth)
NUMBER(MemoryBusWidth)
NUMBER(PcieReplayCounter)
NUMBER(PowerManagementDefaultLimit)
NUMBER(PowerSource)
NUMBER(VirtualizationMode)

API int nvmlDeviceGetName(Gpu gpu, char *out, u32 size) { return ask_text(gpu, "Name", out, size); }
API int nvmlDeviceGetUUID(Gpu gpu, char *out, u32 size) { return ask_text(gpu, "UUID", out, size); }

API int nvmlDeviceGetMaxClockInfo(Gpu gpu, u32 clock, u32 *out) {
    return ask_indexed(gpu, "MaxClockInfo", clock, out);
}

API int nvmlDeviceGetTemperatureThreshold(Gpu gpu, u32 threshold, u32 *out) {
    return ask_indexed(gpu, "TemperatureThreshold", threshold, out);
}

API int nvmlDeviceGetPowerManagementLimitConstraints(Gpu gpu, u32 *least, u32 *most) {
    return ask_pair(gpu, "PowerManagementLimitConstraints", least, most);
}

/* `domain:bus:device`, in hexadecimal digits */
API int nvmlDeviceGetPciInfo_v3(Gpu gpu, Pci *out) {
    char text[LINE];
    int error = ask(gpu, "PciInfo", text);
    if (error) return error;
    sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return OK;
}

/* The kind of error and of counter are part of the key: `TotalEccErrors.1.1`. */
API int nvmlDeviceGetTotalEccErrors(Gpu gpu, u32 kind, u32 counter, u64 *out) {
    char name[32];
    snprintf(name, sizeof name, "TotalEccErrors.%u.%u", kind, counter);
    return ask_number(gpu, name, out);
}

/* `corrected uncorrected pending failed` */
API int nvmlDeviceGetRemappedRows(Gpu gpu, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    char text[LINE];
    int error = ask(gpu, "RemappedRows", text);
    if (!error) sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return error;
}

/* Whether licences exist at all, then 0 or 1 for each feature: `1 0 1` */
API int nvmlDeviceGetGridLicensableFeatures_v4(Gpu gpu, Features *out) {
    char text[LINE], *rest, *word;
    int error = ask(gpu, "GridLicensableFeatures", text);
    if (error) return error;
    word = strtok_r(text, " ", &rest);
    out->is_supported = *word == '1';
    for (out->count = 0; (word = strtok_r(NULL, " ", &rest)) && out->count < FEATURES; out->count++)
        out->features[out->count].state = *word == '1';
    return OK;
}
