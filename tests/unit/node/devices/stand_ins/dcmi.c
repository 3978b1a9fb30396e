/* libdcmi.so for tests: functions, structs and codes as dcmi_interface_api.h declares them. */
#include "script.h"

struct dcmi_chip_info {
    unsigned char chip_type[32], chip_name[32], chip_ver[32];
    unsigned int aicore_cnt;
};
struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};
struct dcmi_ecc_info {
    int enable_flag;
    unsigned int single_bit_error_cnt, double_bit_error_cnt;
    unsigned int total_single_bit_error_cnt, total_double_bit_error_cnt;
    unsigned int single_bit_isolated_pages_cnt, double_bit_isolated_pages_cnt;
};
struct dcmi_proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage;
};
enum dcmi_freq_type { FREQ_DDR = 1, FREQ_HBM = 6, FREQ_AICORE_CURRENT = 7, FREQ_AICORE_MAX = 9 };
enum dcmi_device_type { TYPE_DDR, TYPE_SRAM, TYPE_HBM, TYPE_NPU };

/* two chips on a card, as on a 910_93 */
#define NUMBER(card, chip) ((card) / 4 * 2 + (chip))
#define TRY(function)                                        \
    do {                                                     \
        int code = outcome(#function, NUMBER(card, chip));   \
        if (code) return code;                               \
    } while (0)

int dcmi_init(void) { return outcome("dcmi_init", 0); }
int dcmi_get_card_list(int *num, int *cards, int length) {
    int code = outcome("dcmi_get_card_list", 0);
    if (code) return code;
    *num = (int)script("cards", 1);
    for (int i = 0; i < *num && i < length; i++) cards[i] = 4 * i;
    return 0;
}
int dcmi_get_device_num_in_card(int card, int *num) {
    *num = 2;
    return outcome("dcmi_get_device_num_in_card", card);
}
int dcmi_get_device_logic_id(int *id, int card, int chip) {
    TRY(dcmi_get_device_logic_id);
    *id = NUMBER(card, chip);
    return 0;
}
int dcmi_get_device_chip_info(int card, int chip, struct dcmi_chip_info *info) {
    TRY(dcmi_get_device_chip_info);
    strcpy((char *)info->chip_type, "Ascend");
    strcpy((char *)info->chip_name, "910B1");
    info->aicore_cnt = 24;
    return 0;
}
int dcmi_get_device_health(int card, int chip, unsigned int *health) {
    TRY(dcmi_get_device_health);
    *health = (unsigned)of_device("health", NUMBER(card, chip), 0);
    return 0;
}
int dcmi_get_device_utilization_rate(int card, int chip, int type, unsigned int *percent) {
    TRY(dcmi_get_device_utilization_rate);
    char name[32];
    snprintf(name, sizeof name, "rate%d", type);
    double value = of_device(name, NUMBER(card, chip), type);
    if (value < 0) return (int)value;
    *percent = (unsigned)value;
    return 0;
}
int dcmi_get_device_hbm_info(int card, int chip, struct dcmi_hbm_info *info) {
    TRY(dcmi_get_device_hbm_info);
    *info = (struct dcmi_hbm_info){65536, 1600, 30000, 47, 10};
    return 0;
}
int dcmi_get_device_power_info(int card, int chip, int *deciwatts) {
    TRY(dcmi_get_device_power_info);
    *deciwatts = 1624;
    return 0;
}
int dcmi_get_device_temperature(int card, int chip, int *celsius) {
    TRY(dcmi_get_device_temperature);
    *celsius = 44;
    return 0;
}
int dcmi_get_device_frequency(int card, int chip, enum dcmi_freq_type type, unsigned int *mhz) {
    TRY(dcmi_get_device_frequency);
    *mhz = type == FREQ_HBM ? 1600 : type == FREQ_AICORE_MAX ? 1850 : 1800;
    return 0;
}
int dcmi_get_device_ecc_info(int card, int chip, enum dcmi_device_type type, struct dcmi_ecc_info *i) {
    TRY(dcmi_get_device_ecc_info);
    if (type != TYPE_HBM) return -8001;
    *i = (struct dcmi_ecc_info){1, 1, 2, 0, 0, 5, 6};
    i->total_single_bit_error_cnt = (unsigned)of_device("corrected", NUMBER(card, chip), 3);
    i->total_double_bit_error_cnt = 1;
    return 0;
}
int dcmi_get_device_resource_info(int card, int chip, struct dcmi_proc_mem_info *found, int *num) {
    TRY(dcmi_get_device_resource_info);
    *num = (int)of_device("processes", NUMBER(card, chip), 1);
    for (int i = 0; i < *num; i++)
        found[i] = (struct dcmi_proc_mem_info){4711 + i, 1ul << 30};
    return 0;
}
