/* A stand-in for libnvidia-ml.so.1 that behaves: N GPUs whose rings, GPM counters, energy and
 * bytes follow a programmable busy/idle rhythm, and faults on demand. Loaded by the real pynvml.
 *
 * Everything is controlled through one shared memory file (environment FAKE_NVML_CONTROL), whose
 * layout `struct control` is mirrored in __init__.py; writes there act on the very next call.
 * The rhythm is a function of time alone, so a test can recompute every sample that ever existed.
 * Time is the wall clock, or `virtual_now_us` where a test drives it by hand.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, IN_USE = 19 };

#define MAX_GPUS 64
#define MAX_PROCESSES 4
#define LAYOUT 0x4e564d4cu /* changes with struct control */

/* Name, and the microseconds of processor time it burns with measured costs (0: next to none, or told
 * below, by what is asked): what bench/driver_call_costs.py measured on an H200 at work, less the 40 us
 * that any call took its caller there after a pause, cached or not. Those an exporter pays here, too. */
#define FUNCTIONS(F)                                                                            \
    F(nvmlInitWithFlags, 0) F(nvmlShutdown, 0) F(nvmlDeviceGetCount_v2, 1)                      \
    F(nvmlDeviceGetHandleByIndex_v2, 1) F(nvmlDeviceGetUUID, 1) F(nvmlDeviceGetName, 1)         \
    F(nvmlDeviceGetPciInfo_v3, 1) F(nvmlDeviceGetNumGpuCores, 1)                                \
    F(nvmlDeviceGetCudaComputeCapability, 1) F(nvmlDeviceGetEnforcedPowerLimit, 9)              \
    F(nvmlDeviceGetPersistenceMode, 2) F(nvmlDeviceGetSamples, 0)                               \
    F(nvmlDeviceGetUtilizationRates, 12) F(nvmlDeviceGetPowerUsage, 6)                          \
    F(nvmlDeviceGetTotalEnergyConsumption, 3431) F(nvmlDeviceGetMemoryInfo_v2, 72)              \
    F(nvmlDeviceGetTemperature, 38) F(nvmlDeviceGetClockInfo, 4)                                \
    F(nvmlDeviceGetCurrentClocksEventReasons, 87) F(nvmlDeviceGetFieldValues, 0)                \
    F(nvmlDeviceGetComputeRunningProcesses_v3, 237) F(nvmlDeviceGetPcieThroughput, 527)         \
    F(nvmlGpmQueryDeviceSupport, 1) F(nvmlGpmSampleAlloc, 1) F(nvmlGpmSampleGet, 244)           \
    F(nvmlGpmMetricsGet, 83) F(nvmlGpmSampleFree, 1) F(nvmlEventSetCreate, 1)                   \
    F(nvmlDeviceRegisterEvents, 1) F(nvmlEventSetWait_v2, 0) F(nvmlEventSetFree, 1)

#define AS_ENUM(name, cost) F_##name,
enum function { FUNCTIONS(AS_ENUM) FUNCTION_COUNT };
#define AS_NAME(name, cost) #name,
static const char *const function_names[] = {FUNCTIONS(AS_NAME)};
#define AS_COST(name, cost) cost,
static const int function_costs[] = {FUNCTIONS(AS_COST)};

struct gpu_control {
    double period_seconds, duty, phase_seconds; /* busy while (t - phase) mod period < duty*period */
    double idle_watts, busy_watts, limit_watts;
    double sm, occupancy, dram, tensor, graphics; /* activity while busy, percent */
    uint64_t memory_used, memory_total, event_reasons;
    uint64_t pids[MAX_PROCESSES], pid_memory[MAX_PROCESSES];
    uint64_t answers_from_generation; /* lost until the library was initialized that often */
    uint32_t lost_code;               /* this code from every call about this GPU */
    uint32_t gpm_supported, gpm_in_use, rings_supported, persistence_mode;
    uint32_t corrupt_every;           /* every n-th ring entry is invalid */
    uint32_t xid, xid_sequence;       /* an event per increment */
    uint32_t pcie_code;               /* per-field return code of the byte counters */
    uint32_t absent;                  /* not enumerated: the indices behind it move up */
    uint32_t serial;                  /* names the card in its UUID */
};

struct control {
    uint32_t layout, size;
    uint32_t gpu_count, measured_costs;
    uint64_t virtual_now_us;
    uint64_t generation; /* written here: how often the library was initialized */
    uint32_t utilization_us, utilization_kept, power_us, power_kept;
    uint32_t gpm_nan, xid_nap_ms;
    uint32_t fault[MAX_GPUS + 1][FUNCTION_COUNT];   /* return code; the last row is for all */
    uint32_t hang_ms[MAX_GPUS + 1][FUNCTION_COUNT]; /* taken by the call that serves it */
    uint64_t calls[MAX_GPUS + 1][FUNCTION_COUNT];   /* written here; the last row counts all */
    struct gpu_control gpu[MAX_GPUS];
};

struct device { int gpu; uint64_t generation; };
struct gpm_sample { int gpu; int64_t taken_us; double busy_us; };
struct event_set { int watched[MAX_GPUS]; uint32_t seen[MAX_GPUS]; uint64_t generation; };

static struct control *control;
static int initialized;
/* Handles of an earlier initialization stay distinct, so that their use is noticed. */
static struct device devices[64][MAX_GPUS];

/* --- for tests ------------------------------------------------------------------------------ */

int fake_nvml_function_count(void) { return FUNCTION_COUNT; }
const char *fake_nvml_function_name(int function) { return function_names[function]; }
uint32_t fake_nvml_control_size(void) { return sizeof(struct control); }
uint32_t fake_nvml_layout(void) { return LAYOUT; }

/* --- time and rhythm ------------------------------------------------------------------------ */

static int64_t now_us(void) {
    if (control->virtual_now_us) return (int64_t)control->virtual_now_us;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void nap_ms(int ms) {
    struct timespec pause = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&pause, &pause) && errno == EINTR) {}
}

/* Burns processor time, where measured costs are asked for. */
static void spend_us(int us) {
    struct timespec start, now;
    if (!control->measured_costs || !us) return;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000L + (now.tv_nsec - start.tv_nsec) / 1000 < us);
}

/* Busy microseconds from the epoch until `us`. */
static double busy_until(const struct gpu_control *gpu, int64_t us) {
    double period = gpu->period_seconds * 1e6, busy = gpu->duty * period;
    double since = (double)us - gpu->phase_seconds * 1e6, cycles = floor(since / period);
    double inside = since - cycles * period;
    return cycles * busy + (inside < busy ? inside : busy);
}

static double share(const struct gpu_control *gpu, int64_t from_us, int64_t until_us) {
    return (busy_until(gpu, until_us) - busy_until(gpu, from_us)) / (double)(until_us - from_us);
}

/* --- what every call does first ------------------------------------------------------------- */

static int enter(enum function function, int gpu) {
    if (!control) return UNINITIALIZED;
    int row = gpu < 0 ? MAX_GPUS : gpu;
    control->calls[MAX_GPUS][function]++;
    if (gpu >= 0) control->calls[gpu][function]++;
    for (int i = 0; i < 2; i++) {
        int place = i ? MAX_GPUS : row;
        uint32_t hang = control->hang_ms[place][function];
        if (!hang) continue;
        control->hang_ms[place][function] = 0;
        nap_ms((int)hang);
    }
    spend_us(function_costs[function]);
    if (!initialized && function != F_nvmlInitWithFlags) return UNINITIALIZED;
    if (gpu >= 0) {
        const struct gpu_control *state = &control->gpu[gpu];
        if (state->lost_code) return (int)state->lost_code;
        if (control->generation < state->answers_from_generation) return GPU_IS_LOST;
        if (control->fault[gpu][function]) return (int)control->fault[gpu][function];
    }
    return (int)control->fault[MAX_GPUS][function];
}

static int enter_device(enum function function, struct device *device) {
    if (!device) return INVALID_ARGUMENT;
    if (control && device->generation != control->generation) return INVALID_ARGUMENT;
    return enter(function, device->gpu);
}

#define ENTER(function) do { int code = enter(F_##function, -1); if (code) return code; } while (0)
#define ENTER_DEVICE(function) \
    do { int code = enter_device(F_##function, device); if (code) return code; } while (0)
#define STATE (&control->gpu[device->gpu])

/* --- library -------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *path = getenv("FAKE_NVML_CONTROL");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return DRIVER_NOT_LOADED;
    struct control *mapped =
        mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return DRIVER_NOT_LOADED;
    if (mapped->layout != LAYOUT || mapped->size != sizeof(struct control)) abort();
    if (control) munmap(control, sizeof(struct control));
    control = mapped;
    const char *costs = getenv("FAKE_NVML_COSTS");
    if (costs && !strcmp(costs, "measured")) control->measured_costs = 1;
    int code = enter(F_nvmlInitWithFlags, -1);
    if (code) return code;
    initialized = 1;
    control->generation++;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        devices[control->generation % 64][gpu] = (struct device){gpu, control->generation};
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    ENTER(nvmlShutdown);
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the fake driver"; }

/* The card behind a library index: absent ones are not enumerated. */
static int card_at(unsigned index) {
    for (int gpu = 0; gpu < (int)control->gpu_count && gpu < MAX_GPUS; gpu++)
        if (!control->gpu[gpu].absent && index-- == 0) return gpu;
    return -1;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(nvmlDeviceGetCount_v2);
    for (*count = 0; card_at(*count) >= 0; ++*count) {}
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
    int gpu = control ? card_at(index) : -1;
    int code = enter(F_nvmlDeviceGetHandleByIndex_v2, gpu);
    if (code) return code;
    if (gpu < 0) return INVALID_ARGUMENT;
    *device = &devices[control->generation % 64][gpu];
    return SUCCESS;
}

/* --- identity ------------------------------------------------------------------------------- */

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length) {
    ENTER_DEVICE(nvmlDeviceGetUUID);
    snprintf(uuid, length, "GPU-00000000-fake-0000-0000-%012u", STATE->serial);
    return SUCCESS;
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned length) {
    ENTER_DEVICE(nvmlDeviceGetName);
    snprintf(name, length, "NVIDIA Fake");
    return SUCCESS;
}

struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info) {
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3);
    memset(info, 0, sizeof *info);
    snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", 16 + device->gpu);
    return SUCCESS;
}

int nvmlDeviceGetNumGpuCores(struct device *device, unsigned *cores) {
    ENTER_DEVICE(nvmlDeviceGetNumGpuCores);
    *cores = 132 * 128;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    ENTER_DEVICE(nvmlDeviceGetCudaComputeCapability);
    *major = 9, *minor = 0;
    return SUCCESS;
}

/* --- gauges --------------------------------------------------------------------------------- */

#define GAUGE(function, type, expression)                \
    int function(struct device *device, type *value) {   \
        ENTER_DEVICE(function);                          \
        *value = (type)(expression);                     \
        return SUCCESS;                                  \
    }

static double watts(const struct gpu_control *gpu, double busy_share) {
    return gpu->idle_watts + (gpu->busy_watts - gpu->idle_watts) * busy_share;
}

static double share_until_now(const struct gpu_control *gpu, int64_t window_us) {
    return share(gpu, now_us() - window_us, now_us());
}

GAUGE(nvmlDeviceGetEnforcedPowerLimit, unsigned, STATE->limit_watts * 1000)
GAUGE(nvmlDeviceGetPersistenceMode, unsigned, STATE->persistence_mode)
GAUGE(nvmlDeviceGetPowerUsage, unsigned, watts(STATE, share_until_now(STATE, 1000000)) * 1000)
GAUGE(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, STATE->event_reasons)
GAUGE(nvmlDeviceGetTotalEnergyConsumption, uint64_t,
      (STATE->idle_watts * (double)now_us()
       + (STATE->busy_watts - STATE->idle_watts) * busy_until(STATE, now_us())) / 1000)

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned rates[2]) {
    ENTER_DEVICE(nvmlDeviceGetUtilizationRates);
    rates[0] = (unsigned)lround(100 * share_until_now(STATE, 50000));
    rates[1] = rates[0] / 2;
    return SUCCESS;
}

struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2);
    memory->total = STATE->memory_total;
    memory->used = STATE->memory_used;
    memory->reserved = 0;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *celsius) {
    ENTER_DEVICE(nvmlDeviceGetTemperature);
    (void)sensor;
    *celsius = 40 + (unsigned)device->gpu;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(struct device *device, unsigned clock, unsigned *megahertz) {
    ENTER_DEVICE(nvmlDeviceGetClockInfo);
    *megahertz = clock == 1 ? 1980 : 2600;
    return SUCCESS;
}

/* Measured to take 20.65 ms, of which it works .6 and waits the rest. */
int nvmlDeviceGetPcieThroughput(struct device *device, unsigned counter, unsigned *value) {
    ENTER_DEVICE(nvmlDeviceGetPcieThroughput);
    if (control->measured_costs) nap_ms(20);
    *value = counter;
    return SUCCESS;
}

struct field_value { uint32_t field, scope; int64_t at, latency; uint32_t type, code; uint64_t value; };

enum { LINK_COUNT = 91, LINK_SENT = 138, LINK_RECEIVED = 139, PCIE_SENT = 197, PCIE_RECEIVED = 198 };
#define LINKS 18

int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *fields) {
    ENTER_DEVICE(nvmlDeviceGetFieldValues);
    int pcie = 0;
    for (int i = 0; i < count; i++) {
        double bytes = busy_until(STATE, now_us());
        fields[i].code = SUCCESS;
        fields[i].type = 3; /* unsigned long long */
        fields[i].at = now_us();
        switch (fields[i].field) {
        case PCIE_SENT: case PCIE_RECEIVED:
            fields[i].code = STATE->pcie_code;
            fields[i].value = (uint64_t)(bytes * (fields[i].field == PCIE_SENT ? 2 : 1));
            pcie++;
            break;
        case LINK_COUNT:
            fields[i].type = 1; /* unsigned int */
            fields[i].value = LINKS;
            break;
        case LINK_SENT: case LINK_RECEIVED: fields[i].value = (uint64_t)(bytes / 1024); break;
        default: fields[i].code = NOT_SUPPORTED;
        }
    }
    spend_us(pcie ? 208 + 130 * pcie : 44 + 3 * count / 2);
    return SUCCESS;
}

struct process { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                            struct process *processes) {
    ENTER_DEVICE(nvmlDeviceGetComputeRunningProcesses_v3);
    unsigned room = *count, found = 0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (!STATE->pids[i]) continue;
        if (processes && found < room)
            processes[found] = (struct process){(unsigned)STATE->pids[i], STATE->pid_memory[i], ~0u, ~0u};
        found++;
    }
    *count = found;
    return found && (!processes || found > room) ? INSUFFICIENT_SIZE : SUCCESS;
}

/* --- what only peers ask: answered, but neither counted nor made to fail --------------------- */

static int enter_peer(int cost_us) {
    if (!control || !initialized) return UNINITIALIZED;
    spend_us(cost_us);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.159.04");
    return enter_peer(2);
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return enter_peer(2);
}

int nvmlDeviceGetPowerManagementLimit(struct device *device, unsigned *milliwatts) {
    *milliwatts = (unsigned)(STATE->limit_watts * 1000);
    return enter_peer(242);
}

struct temperature { unsigned version, sensor; int celsius; };

int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *temperature) {
    temperature->celsius = 40 + device->gpu;
    return enter_peer(21);
}

int nvmlDeviceGetFanSpeed(struct device *device, unsigned *percent) {
    (void)device, (void)percent;
    int code = enter_peer(265);
    return code ? code : NOT_SUPPORTED; /* a server's card has none, and says so dearly */
}

#define CODEC(function)                                                           \
    int function(struct device *device, unsigned *percent, unsigned *period_us) { \
        (void)device;                                                             \
        *percent = 0, *period_us = 167000;                                        \
        return enter_peer(2);                                                     \
    }
CODEC(nvmlDeviceGetEncoderUtilization)
CODEC(nvmlDeviceGetDecoderUtilization)

/* Only compute processes run here. */
int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count,
                                             struct process *processes) {
    (void)device, (void)processes;
    *count = 0;
    return enter_peer(32);
}

struct process_sample { unsigned pid; uint64_t at; unsigned sm, memory, encoder, decoder; };

int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *samples,
                                    unsigned *count, uint64_t last_seen) {
    (void)last_seen;
    if (!samples) { *count = MAX_PROCESSES; return INSUFFICIENT_SIZE; }
    *count = 0;
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (STATE->pids[i])
            samples[(*count)++] = (struct process_sample){(unsigned)STATE->pids[i], (uint64_t)now_us(), 50, 25, 0, 0};
    return enter_peer(1512);
}

/* --- rings ---------------------------------------------------------------------------------- */

struct sample { uint64_t at; union { double d; unsigned ui; uint64_t ull; } value; };

/* Entries end on a grid of their spacing, shifted per GPU so that no two rings tick together. */
int nvmlDeviceGetSamples(struct device *device, unsigned type, uint64_t last_seen,
                         unsigned *value_type, unsigned *count, struct sample *samples) {
    ENTER_DEVICE(nvmlDeviceGetSamples);
    if (!STATE->rings_supported || type > 1) return NOT_SUPPORTED;
    spend_us(!samples ? 13 : type ? 1570 : 410); /* however few entries are new */
    int64_t step = type ? control->utilization_us : control->power_us;
    int64_t kept = type ? control->utilization_kept : control->power_kept;
    if (!samples) { *count = (unsigned)kept + 1; return SUCCESS; }
    int64_t shift = device->gpu * step / MAX_GPUS, newest = (now_us() - shift) / step;
    unsigned room = *count, filled = 0;
    for (int64_t tick = newest - kept + 1; tick <= newest && filled < room; tick++) {
        int64_t at = tick * step + shift;
        if ((uint64_t)at <= last_seen) continue;
        double busy = share(STATE, at - step, at);
        unsigned value = type ? (unsigned)lround(100 * busy) : (unsigned)lround(watts(STATE, busy) * 1000);
        int corrupt = STATE->corrupt_every && tick % STATE->corrupt_every == 0;
        if (corrupt && type) value = 101 + (unsigned)(tick % 1000);
        samples[filled].value.ull = 0xdeadbeef00000000u; /* only the named member is set */
        samples[filled].value.ui = corrupt && !type ? ~0u : value;
        samples[filled++].at = (uint64_t)at;
    }
    *count = filled;
    *value_type = 1; /* unsigned int */
    return filled ? SUCCESS : NOT_FOUND;
}

/* --- GPM ------------------------------------------------------------------------------------ */

struct gpm_support { unsigned version, supported; };
struct gpm_metric { unsigned id; int code; double value; const char *names[3]; };
struct gpm_request { unsigned version, count; struct gpm_sample *earlier, *later; struct gpm_metric metrics[]; };

int nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *support) {
    ENTER_DEVICE(nvmlGpmQueryDeviceSupport);
    support->supported = STATE->gpm_supported;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    ENTER(nvmlGpmSampleAlloc);
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER(nvmlGpmSampleFree);
    free(sample);
    return SUCCESS;
}

/* Counters stand still between grid points 100 ms apart and are read 60 ms late. */
int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample) {
    ENTER_DEVICE(nvmlGpmSampleGet);
    if (STATE->gpm_in_use) return IN_USE;
    int64_t grid = (now_us() - 60000) / 100000 * 100000;
    *sample = (struct gpm_sample){device->gpu, grid, busy_until(STATE, grid)};
    return SUCCESS;
}

int nvmlGpmMetricsGet(struct gpm_request *request) {
    int gpu = request->earlier->gpu;
    int code = enter(F_nvmlGpmMetricsGet, gpu);
    if (code) return code;
    if (request->version != 1 || request->later->gpu != gpu) return INVALID_ARGUMENT;
    const struct gpu_control *state = &control->gpu[gpu];
    double span = (double)(request->later->taken_us - request->earlier->taken_us);
    double busy = (request->later->busy_us - request->earlier->busy_us) / span; /* NaN when 0 */
    for (unsigned i = 0; i < request->count; i++) {
        struct gpm_metric *metric = &request->metrics[i];
        const double levels[] = {[1] = state->graphics, [2] = state->sm, [3] = state->occupancy,
                                 [5] = state->tensor, [10] = state->dram};
        if (metric->id == 1) spend_us(953); /* graphics activity; the others cost nothing */
        int known = metric->id < sizeof levels / sizeof *levels && levels[metric->id] > 0;
        metric->code = known ? SUCCESS : NOT_SUPPORTED;
        metric->value = control->gpm_nan ? (double)NAN : known ? busy * levels[metric->id] : 0;
    }
    return SUCCESS;
}

/* --- XIDs ----------------------------------------------------------------------------------- */

struct event { struct device *device; uint64_t type, data; unsigned gpu_instance, compute_instance; };

int nvmlEventSetCreate(struct event_set **set) {
    ENTER(nvmlEventSetCreate);
    *set = calloc(1, sizeof **set);
    (*set)->generation = control->generation;
    return SUCCESS;
}

int nvmlEventSetFree(struct event_set *set) {
    ENTER(nvmlEventSetFree);
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(struct device *device, uint64_t types, struct event_set *set) {
    ENTER_DEVICE(nvmlDeviceRegisterEvents);
    if (types != 8) return NOT_SUPPORTED;
    set->watched[device->gpu] = 1;
    set->seen[device->gpu] = STATE->xid_sequence;
    return SUCCESS;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned timeout_ms) {
    unsigned nap = control->xid_nap_ms;
    for (unsigned waited = 0;; waited += nap) {
        int code = enter(F_nvmlEventSetWait_v2, -1);
        if (code) return code;
        if (set->generation != control->generation) return UNINITIALIZED;
        for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
            if (!set->watched[gpu] || set->seen[gpu] == control->gpu[gpu].xid_sequence) continue;
            set->seen[gpu] = control->gpu[gpu].xid_sequence;
            *event = (struct event){&devices[control->generation % 64][gpu], 8,
                                    control->gpu[gpu].xid, ~0u, ~0u};
            return SUCCESS;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        nap_ms((int)nap);
    }
}
