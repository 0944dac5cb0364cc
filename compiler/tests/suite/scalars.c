/* Every scalar width and type, on the heap, in the frame, and in globals; unaligned too. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(type, format, first, second)                                                                             \
    do {                                                                                                               \
        type *array = malloc(5 * sizeof(type));                                                                        \
        type local[3] = {first, second, first};                                                                        \
        for (int i = 0; i < 5; i++)                                                                                    \
            array[i] = i % 2 ? first : second;                                                                         \
        array[2] += local[1];                                                                                          \
        local[0] = array[3];                                                                                           \
        printf(#type " " format " " format " " format "\n", array[0], array[2], local[0]);                             \
        free(array);                                                                                                   \
    } while (0)

typedef __int128 wide;
static wide *wide_global;

static void unaligned(void) {
    unsigned char *bytes = malloc(256);
    for (int i = 0; i < 256; i++)
        bytes[i] = (unsigned char)(i * 7);
    for (int at = 50; at < 70; at++) { /* across a line of 64 bytes and every offset in a word */
        uint64_t word;
        memcpy(&word, bytes + at, sizeof word);
        word += 0x0101010101010101u;
        memcpy(bytes + at, &word, sizeof word);
        uint32_t half;
        memcpy(&half, bytes + at + 1, sizeof half);
        printf("%016llx %08x\n", (unsigned long long)word, half);
    }
    typedef uint64_t __attribute__((aligned(1))) loose;
    loose *across = (loose *)(bytes + 61);
    *across ^= 0xffff0000ffff0000u;
    printf("%016llx %u\n", (unsigned long long)*across, bytes[64]);
    free(bytes);
}

int main(void) {
    CHECK(bool, "%d", true, false);
    CHECK(char, "%d", 'a', -3);
    CHECK(unsigned char, "%u", 200, 100);
    CHECK(short, "%d", -30000, 5);
    CHECK(int, "%d", -2000000000, 7);
    CHECK(unsigned, "%u", 4000000000u, 1);
    CHECK(long, "%ld", -9000000000000000000, 11);
    CHECK(unsigned long long, "%llu", 18000000000000000000u, 2);
    CHECK(float, "%f", 1.25f, -3.5f);
    CHECK(double, "%f", 1e100, -3.25);
    CHECK(long double, "%Lf", 1.125L, -2.5L);
    wide_global = malloc(3 * sizeof *wide_global);
    wide_global[1] = ((wide)1 << 100) + 12345;
    wide_global[2] = wide_global[1] * 3;
    printf("%llx %llx\n", (unsigned long long)(wide_global[2] >> 64), (unsigned long long)wide_global[2]);
    _Bool *flags = calloc(4, 1);
    flags[2] = !flags[1];
    printf("%d%d%d%d\n", flags[0], flags[1], flags[2], flags[3]);
    void **pointers = malloc(2 * sizeof *pointers);
    pointers[0] = &pointers[1];
    *(void **)pointers[0] = NULL;
    printf("%d %d\n", pointers[0] == &pointers[1], pointers[1] == NULL);
    double _Complex *complex = malloc(2 * sizeof *complex);
    complex[0] = 1.0 + 2.0i;
    complex[1] = complex[0] * complex[0];
    printf("%f %f\n", __real__ complex[1], __imag__ complex[1]);
    _BitInt(37) *odd = malloc(2 * sizeof *odd);
    odd[0] = 68719476735;
    odd[1] = odd[0] - 5;
    printf("%lld\n", (long long)odd[1]);
    unaligned();
    free(odd);
    free(complex);
    free(pointers);
    free(flags);
    free(wide_global);
}
