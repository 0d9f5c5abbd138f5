/* The driver calls the exporter makes, at its rhythm, from a bare loop: what they cost by themselves.
 *
 *     nvml_loop SECONDS     prints the processor time it used, in seconds
 *
 * One round a second, of all GPUs: the power ring into a buffer that is kept, one GPM window, and of
 * every other GPU the utilization ring, of those between the gauges. Processes every 5 s, PCIe bytes
 * every 10 s, energy every 60 s. Nothing is done with the answers.
 * Types are those of nvml.h (NVML 13).
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_GPUS = 64, RING = 256, SM_CLOCK = 1, POWER = 0, UTILIZATION = 1,
       TURNS = 2, PROCESSES_SECONDS = 5, PCIE_SECONDS = 10, ENERGY_SECONDS = 60 };

struct sample { uint64_t at; uint64_t value; };
struct memory { unsigned version; uint64_t total, reserved, free, used; };
struct process { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; };
struct field { uint32_t field, scope; int64_t at, latency; uint32_t type, code; uint64_t value; };
struct gpm_metric { unsigned id; int code; double value; const char *names[3]; };
struct gpm_request { unsigned version, count; void *earlier, *later; struct gpm_metric metrics[400]; };

struct gpu {
    void *device, *gpm[2];
    uint64_t newest[2];
};

static void *library;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the library has no %s\n", name);
        exit(1);
    }
    return found;
}

#define CALL(name, types, ...)                                        \
    do {                                                              \
        static int(*function) types;                                  \
        if (!function) *(void **)&function = find(#name);             \
        function(__VA_ARGS__);                                        \
    } while (0)

static void drain(struct gpu *gpu, unsigned kind) {
    static struct sample samples[RING];
    unsigned count = RING, type;
    CALL(nvmlDeviceGetSamples, (void *, unsigned, unsigned long long, unsigned *, unsigned *, struct sample *),
         gpu->device, kind, gpu->newest[kind], &type, &count, samples);
    if (count && count <= RING && samples[count - 1].at > gpu->newest[kind])
        gpu->newest[kind] = samples[count - 1].at;
}

static void gauges(struct gpu *gpu, int round) {
    unsigned value;
    unsigned long long wide;
    struct memory memory = {.version = (unsigned)sizeof memory | 2u << 24};
    if (round % PCIE_SECONDS < TURNS) {
        struct field fields[2] = {{.field = 197}, {.field = 198}};
        CALL(nvmlDeviceGetFieldValues, (void *, int, struct field *), gpu->device, 2, fields);
    }
    if (round % ENERGY_SECONDS < TURNS)
        CALL(nvmlDeviceGetTotalEnergyConsumption, (void *, unsigned long long *), gpu->device, &wide);
    CALL(nvmlDeviceGetMemoryInfo_v2, (void *, struct memory *), gpu->device, &memory);
    CALL(nvmlDeviceGetEnforcedPowerLimit, (void *, unsigned *), gpu->device, &value);
    CALL(nvmlDeviceGetTemperature, (void *, unsigned, unsigned *), gpu->device, 0, &value);
    CALL(nvmlDeviceGetClockInfo, (void *, unsigned, unsigned *), gpu->device, SM_CLOCK, &value);
    CALL(nvmlDeviceGetCurrentClocksEventReasons, (void *, unsigned long long *), gpu->device, &wide);
}

static void window(struct gpu *gpu, int round) {
    static struct gpm_request request;
    static const unsigned ids[] = {2, 3, 10, 5};
    CALL(nvmlGpmSampleGet, (void *, void *), gpu->device, gpu->gpm[round % 2]);
    if (!round) return;
    request.version = 1, request.count = sizeof ids / sizeof *ids;
    request.earlier = gpu->gpm[(round + 1) % 2], request.later = gpu->gpm[round % 2];
    for (unsigned i = 0; i < request.count; i++) request.metrics[i].id = ids[i];
    CALL(nvmlGpmMetricsGet, (struct gpm_request *), &request);
}

static void processes(struct gpu *gpu) {
    static struct process running[256];
    unsigned count = 256;
    CALL(nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned *, struct process *), gpu->device,
         &count, running);
}

int main(int argc, char **argv) {
    static struct gpu gpus[MOST_GPUS];
    unsigned count = 0;
    struct timespec beat, used;
    int seconds = argc == 2 ? atoi(argv[1]) : 0;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library || !seconds) {
        fprintf(stderr, "usage: nvml_loop SECONDS; needs libnvidia-ml.so.1\n");
        return 1;
    }
    CALL(nvmlInitWithFlags, (unsigned), 0);
    CALL(nvmlDeviceGetCount_v2, (unsigned *), &count);
    if (count > MOST_GPUS) count = MOST_GPUS;
    for (unsigned i = 0; i < count; i++) {
        CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **), i, &gpus[i].device);
        CALL(nvmlGpmSampleAlloc, (void **), &gpus[i].gpm[0]);
        CALL(nvmlGpmSampleAlloc, (void **), &gpus[i].gpm[1]);
    }
    clock_gettime(CLOCK_MONOTONIC, &beat);
    for (int round = 0; round < seconds; round++) {
        for (unsigned i = 0; i < count; i++) drain(&gpus[i], POWER);
        for (unsigned i = round % TURNS; i < count; i += TURNS) drain(&gpus[i], UTILIZATION);
        for (unsigned i = (round + 1) % TURNS; i < count; i += TURNS) gauges(&gpus[i], round);
        for (unsigned i = 0; i < count; i++) window(&gpus[i], round);
        if (round % PROCESSES_SECONDS == 0)
            for (unsigned i = 0; i < count; i++) processes(&gpus[i]);
        beat.tv_sec++;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &beat, NULL)) {}
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    printf("%.6f\n", (double)used.tv_sec + (double)used.tv_nsec / 1e9);
    return 0;
}
