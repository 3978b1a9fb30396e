/* libamd_smi.so for tests: functions, structs and codes as amdsmi.h of ROCm 7.0 declares them.
 *
 * The package looks every function of the library up when it is imported; those that are not here
 * are made from its own list of names: they return AMDSMI_STATUS_NOT_SUPPORTED. */
#include "script.h"
#include <stdint.h>

typedef int amdsmi_status_t;
typedef struct { int index; } *amdsmi_processor_handle;
typedef struct { uint32_t vram_total, vram_used, reserved[2]; } amdsmi_vram_usage_t;
typedef struct { uint32_t gfx_activity, umc_activity, mm_activity, reserved[13]; } amdsmi_engine_usage_t;
typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit;
    uint64_t reserved[18];
} amdsmi_power_info_t;
typedef struct {
    uint32_t clk, min_clk, max_clk;
    uint8_t clk_locked, clk_deep_sleep;
    uint32_t reserved[4];
} amdsmi_clk_info_t;
typedef struct {
    uint64_t correctable_count, uncorrectable_count, deferred_count, reserved[5];
} amdsmi_error_count_t;
typedef struct {
    uint64_t reference_timestamp, violation_timestamp, acc_counter;
    uint64_t acc_prochot_thrm, acc_ppt_pwr, acc_socket_thrm, acc_vr_thrm, acc_hbm_thrm;
    uint64_t acc_gfx_clk_below_host_limit;
    uint64_t per_prochot_thrm, per_ppt_pwr, per_socket_thrm, per_vr_thrm, per_hbm_thrm;
    uint64_t per_gfx_clk_below_host_limit;
    uint8_t active_prochot_thrm, active_ppt_pwr, active_socket_thrm, active_vr_thrm, active_hbm_thrm;
    uint8_t active_gfx_clk_below_host_limit;
    uint64_t acc[4][8][8], per[4][8][8];
    uint8_t active[4][8][8];
    uint64_t reserved[3][8][8];
} amdsmi_violation_status_t;
typedef struct {
    char name[256];
    uint32_t pid;
    uint64_t mem;
    struct { uint64_t gfx, enc; uint32_t reserved[12]; } engine_usage;
    struct { uint64_t gtt_mem, cpu_mem, vram_mem; uint32_t reserved[10]; } memory_usage;
    char container_name[256];
    uint32_t cu_occupancy, reserved[11];
} amdsmi_proc_info_t;
typedef struct {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, num_of_compute_units;
    uint64_t target_graphics_version;
    uint32_t subsystem_id, reserved[21];
} amdsmi_asic_info_t;
typedef struct {
    uint32_t num_links;
    struct {
        uint64_t bdf;
        uint32_t bit_rate, max_bandwidth;
        int link_type;
        uint64_t read, write, reserved[2];
    } links[64];
    uint64_t reserved[7];
} amdsmi_link_metrics_t;

static struct { int index; } gpus[16];
static int socket_of_all;

#define TRY(function)                                        \
    do {                                                     \
        amdsmi_status_t code = outcome(#function, gpu->index); \
        if (code) return code;                               \
    } while (0)

amdsmi_status_t amdsmi_init(uint64_t flags) {
    (void)flags;
    for (int i = 0; i < 16; i++) gpus[i].index = i;
    return outcome("amdsmi_init", 0);
}
amdsmi_status_t amdsmi_shut_down(void) { return 0; }
amdsmi_status_t amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    if (handles) handles[0] = &socket_of_all;
    *count = 1;
    return 0;
}
amdsmi_status_t amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    (void)socket;
    *count = (uint32_t)script("count", 1);
    for (uint32_t i = 0; handles && i < *count; i++) handles[i] = &gpus[i];
    return 0;
}
amdsmi_status_t amdsmi_get_gpu_vram_usage(amdsmi_processor_handle gpu, amdsmi_vram_usage_t *info) {
    TRY(amdsmi_get_gpu_vram_usage);
    info->vram_total = 196592;
    info->vram_used = (uint32_t)of_device("vram_used", gpu->index, 4096);
    return 0;
}
amdsmi_status_t amdsmi_get_gpu_activity(amdsmi_processor_handle gpu, amdsmi_engine_usage_t *info) {
    TRY(amdsmi_get_gpu_activity);
    info->gfx_activity = (uint32_t)of_device("gfx", gpu->index, 77);
    info->umc_activity = 31;
    info->mm_activity = 0xFFFF;
    return 0;
}
amdsmi_status_t amdsmi_get_power_info(amdsmi_processor_handle gpu, amdsmi_power_info_t *info) {
    TRY(amdsmi_get_power_info);
    memset(info, 0, sizeof *info);
    info->socket_power = (uint64_t)of_device("watts", gpu->index, 612);
    info->current_socket_power = 612;
    info->average_socket_power = 0xFFFF;
    info->power_limit = 750;
    return 0;
}
amdsmi_status_t amdsmi_get_clock_info(amdsmi_processor_handle gpu, int type, amdsmi_clk_info_t *info) {
    TRY(amdsmi_get_clock_info);
    *info = (amdsmi_clk_info_t){type == 4 ? 1300 : 1900, 132, type == 4 ? 1300 : 2100, 0, 0, {0}};
    return 0;
}
amdsmi_status_t amdsmi_get_temp_metric(
    amdsmi_processor_handle gpu, int sensor, int metric, int64_t *celsius) {
    TRY(amdsmi_get_temp_metric);
    *celsius = metric ? 0 : sensor == 1 ? 66 : 51;
    return 0;
}
amdsmi_status_t amdsmi_get_gpu_total_ecc_count(amdsmi_processor_handle gpu, amdsmi_error_count_t *ec) {
    TRY(amdsmi_get_gpu_total_ecc_count);
    *ec = (amdsmi_error_count_t){(uint64_t)of_device("corrected", gpu->index, 2), 1, 0, {0}};
    return 0;
}
amdsmi_status_t amdsmi_get_violation_status(
    amdsmi_processor_handle gpu, amdsmi_violation_status_t *status) {
    TRY(amdsmi_get_violation_status);
    memset(status, 0, sizeof *status);
    status->active_ppt_pwr = (uint8_t)of_device("ppt", gpu->index, 0);
    status->active_socket_thrm = 0xFF;
    status->active_hbm_thrm = 0xFF;
    status->active_vr_thrm = 0xFF;
    return 0;
}
amdsmi_status_t amdsmi_get_gpu_process_list(
    amdsmi_processor_handle gpu, uint32_t *count, amdsmi_proc_info_t *found) {
    TRY(amdsmi_get_gpu_process_list);
    memset(found, 0, sizeof *found);
    *count = 1;
    strcpy(found->name, "python");
    found->pid = 4711;
    found->memory_usage.vram_mem = 1ull << 30;
    return 0;
}
amdsmi_status_t amdsmi_get_gpu_asic_info(amdsmi_processor_handle gpu, amdsmi_asic_info_t *info) {
    TRY(amdsmi_get_gpu_asic_info);
    memset(info, 0, sizeof *info);
    strcpy(info->market_name, "AMD Instinct MI300X");
    strcpy(info->asic_serial, "1F");
    return 0;
}
amdsmi_status_t amdsmi_get_gpu_device_uuid(amdsmi_processor_handle gpu, unsigned *length, char *uuid) {
    TRY(amdsmi_get_gpu_device_uuid);
    snprintf(uuid, *length, "%02dff74a1-0000-1000-80ff-aaaaaaaaaaaa", gpu->index);
    return 0;
}
amdsmi_status_t amdsmi_get_link_metrics(amdsmi_processor_handle gpu, amdsmi_link_metrics_t *told) {
    TRY(amdsmi_get_link_metrics);
    memset(told, 0, sizeof *told);
    told->num_links = 2;
    for (int i = 0; i < 2; i++) {
        told->links[i].link_type = i ? 2 : 1;
        told->links[i].read = (uint64_t)of_device("read", gpu->index, 500);
        told->links[i].write = 200;
    }
    return 0;
}
