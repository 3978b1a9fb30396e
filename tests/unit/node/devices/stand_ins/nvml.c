/* libnvidia-ml.so.1 for tests: functions, structs and codes as nvml.h declares them. */
#include "script.h"

enum { INSUFFICIENT_SIZE = 7, NOT_FOUND = 6, NOT_SUPPORTED = 3, TIMEOUT = 10, PARTS = 7 };

typedef int nvmlReturn_t;
typedef struct { int index, part; } Device;
typedef Device *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value;
} nvmlFieldValue_t;
typedef struct { int device, part; } *nvmlGpmSample_t;
typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct { char *shortName, *longName, *unit; } metricInfo;
} nvmlGpmMetric_t;
typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[98];
} nvmlGpmMetricsGet_t;
typedef struct { unsigned version, isSupportedDevice; } nvmlGpmSupport_t;

static Device devices[16], parts[16][PARTS];

#define TRY(function, device)                     \
    do {                                          \
        nvmlReturn_t code = outcome(#function, device); \
        if (code) return code;                    \
    } while (0)

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (int i = 0; i < 16; i++) {
        devices[i] = (Device){i, -1};
        for (int p = 0; p < PARTS; p++) parts[i][p] = (Device){i, p};
    }
    TRY(nvmlInitWithFlags, 0);
    return 0;
}
nvmlReturn_t nvmlShutdown(void) { return outcome("nvmlShutdown", 0); }
const char *nvmlErrorString(nvmlReturn_t code) { (void)code; return "scripted"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    TRY(nvmlDeviceGetCount_v2, 0);
    *count = (unsigned)script("count", 1);
    return 0;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    TRY(nvmlDeviceGetHandleByIndex_v2, (int)index);
    *device = &devices[index];
    return 0;
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *index) {
    TRY(nvmlDeviceGetIndex, d->index);
    *index = (unsigned)d->index;
    return 0;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length) {
    TRY(nvmlDeviceGetName, d->index);
    const char *bytes = of_device("bad_name", d->index, 0) ? "\xff\xfe" : 0;
    if (bytes) strcpy(name, bytes);
    else snprintf(name, length, d->part < 0 ? "NVIDIA H100 80GB HBM3" : "NVIDIA H100 MIG 1g.10gb");
    return 0;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length) {
    TRY(nvmlDeviceGetUUID, d->index);
    if (d->part < 0) snprintf(uuid, length, "GPU-%04d0000-aaaa", d->index);
    else snprintf(uuid, length, "MIG-%04d%04d-bbbb", d->index, d->part);
    return 0;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory) {
    TRY(nvmlDeviceGetMemoryInfo, d->index);
    memory->total = d->part < 0 ? 80ull << 30 : 10ull << 30;
    memory->used = (unsigned long long)of_device("used", d->index, 3e9);
    memory->free = memory->total - memory->used;
    return 0;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *rates) {
    TRY(nvmlDeviceGetUtilizationRates, d->index);
    rates->gpu = (unsigned)of_device("utilization", d->index, 90);
    rates->memory = 40;
    return 0;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts) {
    TRY(nvmlDeviceGetPowerUsage, d->index);
    *milliwatts = (unsigned)of_device("milliwatts", d->index, 650500);
    return 0;
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *milliwatts) {
    TRY(nvmlDeviceGetEnforcedPowerLimit, d->index);
    *milliwatts = 700000;
    return 0;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *celsius) {
    TRY(nvmlDeviceGetTemperature, d->index);
    *celsius = sensor ? 0 : 61;
    return 0;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int type, unsigned *mhz) {
    TRY(nvmlDeviceGetClockInfo, d->index);
    *mhz = type == 1 ? (unsigned)of_device("mhz", d->index, 1755) : 2619;
    return 0;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int type, unsigned *mhz) {
    TRY(nvmlDeviceGetMaxClockInfo, d->index);
    *mhz = type == 1 ? 1980 : 2619;
    return 0;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *bits) {
    TRY(nvmlDeviceGetCurrentClocksEventReasons, d->index);
    *bits = (unsigned long long)of_device("reasons", d->index, 1);
    return 0;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *bits) {
    *bits = (unsigned long long)of_device("reasons", d->index, 1);
    return 0;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t d, int error, int counter, unsigned long long *count) {
    TRY(nvmlDeviceGetTotalEccErrors, d->index);
    *count = counter ? 999 : (unsigned long long)of_device(error ? "uncorrected" : "corrected", d->index, 0);
    return 0;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values) {
    TRY(nvmlDeviceGetFieldValues, d->index);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field.%u", values[i].fieldId);
        double value = of_device(name, d->index, -1);
        values[i].nvmlReturn = value < 0 ? NOT_SUPPORTED : 0;
        values[i].valueType = 3;
        values[i].value.ull = value < 0 ? 0 : (unsigned long long)value;
    }
    return 0;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
    nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *found) {
    TRY(nvmlDeviceGetComputeRunningProcesses_v3, d->index);
    unsigned num = (unsigned)of_device(d->part < 0 ? "processes" : "part_processes", d->index, 0);
    if (*count < num) {
        *count = num;
        return INSUFFICIENT_SIZE;
    }
    *count = num;
    for (unsigned i = 0; i < num; i++) {
        char name[32];
        snprintf(name, sizeof name, "pid%u", i);
        found[i].pid = (unsigned)of_device(name, d->index, 4711 + i);
        /* NVML_VALUE_NOT_AVAILABLE */
        double used = of_device("process_used", d->index, -1);
        found[i].usedGpuMemory = used < 0 ? ~0ull : (unsigned long long)used;
    }
    return 0;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(
    nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *found) {
    return nvmlDeviceGetComputeRunningProcesses_v3(d, count, found);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    TRY(nvmlDeviceGetMigMode, d->index);
    *current = *pending = (unsigned)of_device("mig", d->index, 0) > 0;
    return 0;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *count) {
    TRY(nvmlDeviceGetMaxMigDeviceCount, d->index);
    *count = PARTS;
    return 0;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *part) {
    if (index >= (unsigned)of_device("mig", d->index, 0)) return NOT_FOUND;
    *part = &parts[d->index][index];
    return 0;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id) {
    *id = (unsigned)d->part + 7;
    return 0;
}
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id) {
    TRY(nvmlDeviceGetComputeInstanceId, d->index);
    *id = 0;
    return 0;
}
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
    TRY(nvmlDeviceGetSupportedEventTypes, d->index);
    *types = 0x1f;
    return 0;
}
nvmlReturn_t nvmlEventSetCreate(void **set) {
    static int only;
    *set = &only;
    return outcome("nvmlEventSetCreate", 0);
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, void *set) {
    (void)types; (void)set;
    return outcome("nvmlDeviceRegisterEvents", d->index);
}
nvmlReturn_t nvmlEventSetFree(void *set) { (void)set; return 0; }
nvmlReturn_t nvmlEventSetWait_v2(void *set, nvmlEventData_t *data, unsigned milliseconds) {
    static int told;
    char name[32];
    (void)set; (void)milliseconds;
    TRY(nvmlEventSetWait_v2, 0);
    if (told >= (int)script("xids", 0)) return TIMEOUT;
    snprintf(name, sizeof name, "xid%d", told++);
    data->eventType = 8;
    data->eventData = (unsigned long long)script(name, 0);
    strcat(name, ".device");
    data->device = &devices[(int)script(name, 0)];
    return 0;
}
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *support) {
    TRY(nvmlGpmQueryDeviceSupport, d->index);
    support->isSupportedDevice = (unsigned)of_device("gpm", d->index, 1);
    return 0;
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    *sample = calloc(1, sizeof **sample);
    return 0;
}
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) { free(sample); return 0; }
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, nvmlGpmSample_t sample) {
    TRY(nvmlGpmSampleGet, d->index);
    sample->device = d->index;
    sample->part = -1;
    return 0;
}
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t d, unsigned instance, nvmlGpmSample_t sample) {
    sample->device = d->index;
    sample->part = (int)instance;
    return 0;
}
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked) {
    TRY(nvmlGpmMetricsGet, 0);
    if (asked->version != 1 || asked->sample1->device != asked->sample2->device) return 2;
    for (unsigned i = 0; i < asked->numMetrics; i++) {
        char name[32];
        snprintf(name, sizeof name, "metric%u", asked->metrics[i].metricId);
        asked->metrics[i].value = of_device(name, asked->sample2->device, 25);
        asked->metrics[i].nvmlReturn = asked->metrics[i].value < 0 ? NOT_SUPPORTED : 0;
    }
    return 0;
}
