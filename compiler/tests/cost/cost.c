/* What a check costs: nanoseconds of processor time for each access of four kernels, the best of many short runs.
 *
 * Compile with clang-19 -O2 for the native figures; with `trellis cc --mode heap` and `--mode line` for checks on
 * private memory; with -DCACHED and `--mode line` for memory of the region. Nothing is asserted here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { count = 4096, side = 64, rounds = 200, samples = 40 };

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

__attribute__((noinline)) static long sum(const long *from, int length) {
    long total = 0;
    for (int i = 0; i < length; i++)
        total += from[i];
    return total;
}
__attribute__((noinline)) static void fill(long *to, int length) {
    for (int i = 0; i < length; i++)
        to[i] += i;
}
__attribute__((noinline)) static void *chase(void **at, int length) {
    for (int i = 0; i < length; i++)
        at = *at;
    return at;
}
__attribute__((noinline)) static void multiply(const double *a, const double *b, double *c, int size) {
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            double total = 0;
            for (int k = 0; k < size; k++)
                total += a[i * size + k] * b[k * size + j];
            c[i * size + j] = total;
        }
}

static void *memory(size_t bytes) {
#ifdef CACHED
    return malloc(bytes);
#else
    static char pool[1 << 20] __attribute__((aligned(64)));
    static size_t used;
    char *at = pool + used;
    used += (bytes + 63) / 64 * 64;
    __asm__("" : "+r"(at)); /* the compiler must not see where it lies */
    return at;
#endif
}

int main(void) {
    long *numbers = memory(count * sizeof *numbers);
    void **links = memory(count * sizeof *links);
    double *a = memory(side * side * sizeof *a), *b = memory(side * side * sizeof *b),
           *c = memory(side * side * sizeof *c);
    for (int i = 0; i < count; i++) {
        numbers[i] = i;
        links[i] = &links[(i * 17 + 1) % count];
        a[i] = b[i] = i;
        c[i] = 0;
    }
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    volatile long sink = 0;
    for (int sample = 0; sample < samples; sample++) {
        double taken[4], start = now_ns();
        for (int i = 0; i < rounds; i++)
            sink += sum(numbers + i % 2, count - 1);
        taken[0] = (now_ns() - start) / ((double)rounds * count);
        start = now_ns();
        for (int i = 0; i < rounds; i++)
            fill(numbers, count);
        taken[1] = (now_ns() - start) / ((double)rounds * count * 2);
        start = now_ns();
        for (int i = 0; i < rounds / 10; i++)
            sink += (long)chase(links + i, count);
        taken[2] = (now_ns() - start) / ((double)rounds / 10 * count);
        start = now_ns();
        for (int i = 0; i < 4; i++)
            multiply(a, b, c, side);
        taken[3] = (now_ns() - start) / (4.0 * side * side * side * 2);
        for (int which = 0; which < 4; which++)
            if (taken[which] < best[which])
                best[which] = taken[which];
    }
    printf("{\"sum_ns\":%.3f,\"fill_ns\":%.3f,\"chase_ns\":%.3f,\"multiply_ns\":%.3f}\n", best[0], best[1], best[2],
           best[3]);
    return 0;
}
