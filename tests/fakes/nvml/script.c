/* Reads the script anew at each call, so that a test changes the GPU by replacing the file.
 *
 * NVML_STAND_IN names it. A line is `[@seconds] key = value`; the last line of a key whose time has
 * come counts, and a key without a line is not supported. Times run from the line `epoch`, on
 * CLOCK_MONOTONIC. A value may begin with `~250` (block for 250 ms) or `~250us` (spin, as a driver
 * does); `!15` is error 15; `100 +5/s` grows with time. With NVML_STAND_IN_ONCE the file is read
 * once, without its timed lines, and kept in a table: for measuring what others cost.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stand_in.h"

double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

u64 wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Reads a line; returns whether it has a key and a value. */
static int parse(char *line, double *at_s, char *name, char *text) {
    char *rest = line;
    *at_s = 0;
    if (*rest == '@') *at_s = strtod(rest + 1, &rest);
    return sscanf(rest, " %[^= ] = %[^\n]", name, text) == 2;
}

#define PLACES 4096 /* a power of two; 16 GPUs have about 800 keys */

static struct { char *key, *value; } table[PLACES];

static unsigned place_of(const char *key) {
    unsigned place = 2166136261u; /* FNV-1a */
    for (const char *c = key; *c; c++) place = (place ^ (unsigned char)*c) * 16777619u;
    place &= PLACES - 1;
    while (table[place].key && strcmp(table[place].key, key)) place = (place + 1) & (PLACES - 1);
    return place;
}

static void fill_table(FILE *script) {
    char line[LINE], name[LINE], text[LINE];
    double at_s;
    while (fgets(line, sizeof line, script)) {
        if (!parse(line, &at_s, name, text) || at_s) continue;
        unsigned place = place_of(name);
        if (!table[place].key) table[place].key = strdup(name);
        table[place].value = strdup(text);
    }
}

static int look_up_kept(const char *key, char *value, double *elapsed_s) {
    static double epoch_s = -1;
    const char *text;
    if (epoch_s < 0) {
        FILE *script = fopen(getenv("NVML_STAND_IN"), "r");
        if (!script) return 0;
        fill_table(script);
        fclose(script);
        text = table[place_of("epoch")].value;
        epoch_s = text ? atof(text) : 0;
    }
    *elapsed_s = monotonic_s() - epoch_s;
    text = table[place_of(key)].value;
    if (text) strcpy(value, text);
    return text != NULL;
}

/* Finds a key; gives its value and the seconds since the epoch. Returns whether it was there. */
static int look_up(const char *key, char *value, double *elapsed_s) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *script;
    char line[LINE], name[LINE], text[LINE];
    double at_s, epoch_s = 0;
    int found = 0;
    if (path && getenv("NVML_STAND_IN_ONCE")) return look_up_kept(key, value, elapsed_s);
    script = path ? fopen(path, "r") : NULL;
    if (!script) return 0;
    while (fgets(line, sizeof line, script)) {
        if (!parse(line, &at_s, name, text)) continue;
        if (!strcmp(name, "epoch")) epoch_s = atof(text);
        if (strcmp(name, key) || monotonic_s() - epoch_s < at_s) continue;
        strcpy(value, text);
        found = 1;
    }
    fclose(script);
    *elapsed_s = monotonic_s() - epoch_s;
    return found;
}

/* Blocks as a value's `~` says; returns what follows. */
static char *block(char *rest) {
    long time = strtol(rest + 1, &rest, 10);
    if (!strncmp(rest, "us", 2)) {
        double end_s = monotonic_s() + time / 1e6;
        while (monotonic_s() < end_s) continue;
        rest += 2;
    } else {
        struct timespec pause = {time / 1000, time % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    while (*rest == ' ') rest++;
    return rest;
}

int read_text(const char *key, char *text, double *elapsed_s) {
    char value[LINE], *rest = value;
    if (!look_up(key, value, elapsed_s)) return UNSUPPORTED;
    if (*rest == '~') rest = block(rest);
    if (*rest == '!') return atoi(rest + 1);
    strcpy(text, rest);
    return OK;
}

static int ask_timed(Gpu gpu, const char *what, char *text, double *elapsed_s) {
    char key[LINE];
    int error, length;
    if (users < 1) return UNINITIALIZED;
    if (!gpu || gpu->gpu < 0 || gpu->gpu >= GPUS) return INVALID;
    length = snprintf(key, sizeof key, "gpu%d", gpu->gpu);
    error = read_text(key, text, elapsed_s);
    if (error != OK && error != UNSUPPORTED) return error;
    if (gpu->slice >= 0) length += snprintf(key + length, sizeof key - length, ".mig%d", gpu->slice);
    snprintf(key + length, sizeof key - length, ".%s", what);
    return read_text(key, text, elapsed_s);
}

int ask(Gpu gpu, const char *what, char *text) {
    double elapsed_s;
    return ask_timed(gpu, what, text, &elapsed_s);
}

int ask_number(Gpu gpu, const char *what, u64 *number) {
    char text[LINE], *rest;
    double elapsed_s, per_s = 0;
    int error = ask_timed(gpu, what, text, &elapsed_s);
    if (error) return error;
    *number = text[0] == '-' ? (u64)strtoll(text, &rest, 0) : strtoull(text, &rest, 0);
    if (sscanf(rest, " +%lf/s", &per_s) == 1) *number += (u64)(per_s * elapsed_s);
    return OK;
}

int ask_u32(Gpu gpu, const char *what, u32 *out) {
    u64 number;
    int error = ask_number(gpu, what, &number);
    if (!error) *out = (u32)number;
    return error;
}

int ask_pair(Gpu gpu, const char *what, u32 *first, u32 *second) {
    char text[LINE];
    int error = ask(gpu, what, text);
    if (!error) sscanf(text, "%u %u", first, second);
    return error;
}

int ask_indexed(Gpu gpu, const char *what, u32 index, u32 *out) {
    char name[LINE];
    snprintf(name, sizeof name, "%s.%u", what, index);
    return ask_u32(gpu, name, out);
}

int ask_text(Gpu gpu, const char *what, char *out, u32 size) {
    char text[LINE];
    int error = ask(gpu, what, text);
    if (!error) snprintf(out, size, "%s", text);
    return error;
}
