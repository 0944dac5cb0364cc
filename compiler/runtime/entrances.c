/* Entrances for pointers and floating-point numbers, so that translated code spends no instruction on converting them.
 *
 * Promises: the same as the integer entrances of the same width. It must never look at a value.
 */
#include "wrap.h"

void *__trellis_load_pointer(const void *address) { return (void *)__trellis_load_8(address); }
void __trellis_store_pointer(void *address, void *value) { __trellis_store_8(address, (uint64_t)value); }

double __trellis_load_double(const void *address) {
    uint64_t word = __trellis_load_8(address);
    double value;
    memcpy(&value, &word, sizeof value);
    return value;
}

void __trellis_store_double(void *address, double value) {
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    __trellis_store_8(address, word);
}

float __trellis_load_float(const void *address) {
    uint32_t word = __trellis_load_4(address);
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

void __trellis_store_float(void *address, float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    __trellis_store_4(address, word);
}

