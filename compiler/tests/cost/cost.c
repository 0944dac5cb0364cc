/* What a check costs: nanoseconds of processor time for each access of five kernels, the best of many short runs.
 *
 * `trellis bench checks` compiles this with clang-19 and with `trellis cc` in its modes, and takes the differences. The
 * argument `private` puts the data where no store is; `heap` takes it from malloc, which is memory of the region where
 * `trellis cc --mode line` compiled. Nothing is asserted here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { count = 4096, side = 64, rounds = 8, products = 1, samples = 60 };

/* Not of a power of two bytes, so that some lie in two lines. */
struct record {
    long uses;
    double total;
    int least, most;
    long bits;
    long unused[2];
};

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* One access in each round. */
__attribute__((noinline)) static long sum(const long *from, int length) {
    long total = 0;
    for (int i = 0; i < length; i++)
        total += from[i];
    return total;
}
/* Two. */
__attribute__((noinline)) static void fill(long *to, int length) {
    for (int i = 0; i < length; i++)
        to[i] += i;
}
/* One, whose address the one before it found. */
__attribute__((noinline)) static void *chase(void **at, int length) {
    for (int i = 0; i < length; i++)
        at = *at;
    return at;
}
/* Two in each of size^3 rounds. */
__attribute__((noinline)) static void multiply(const double *a, const double *b, double *c, int size) {
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            double total = 0;
            for (int k = 0; k < size; k++)
                total += a[i * size + k] * b[k * size + j];
            c[i * size + j] = total;
        }
}
/* Nine: the pointer, and four fields that are loaded and stored. */
__attribute__((noinline)) static void update(struct record **all, int length) {
    for (int i = 0; i < length; i++) {
        struct record *one = all[i];
        one->uses++;
        one->total += i;
        one->least -= 1;
        one->bits ^= i;
    }
}

static int from_heap;

static void *memory(size_t bytes) {
    static char pool[1 << 20] __attribute__((aligned(64)));
    static size_t used;
    char *at = pool + used;
    if (from_heap)
        at = malloc(bytes);
    else
        used += (bytes + 63) / 64 * 64;
    if (!at || used > sizeof pool) {
        fprintf(stderr, "cost: no memory is left\n");
        exit(1);
    }
    __asm__("" : "+r"(at)); /* the compiler must not see where it lies */
    return at;
}

int main(int arguments, char **argument) {
    if (arguments != 2 || (strcmp(argument[1], "private") && strcmp(argument[1], "heap"))) {
        fprintf(stderr, "usage: cost private|heap\n");
        return 2;
    }
    from_heap = !strcmp(argument[1], "heap");
    long *numbers = memory(count * sizeof *numbers);
    void **links = memory(count * sizeof *links);
    double *a = memory(side * side * sizeof *a), *b = memory(side * side * sizeof *b),
           *c = memory(side * side * sizeof *c);
    struct record *records = memory(count * sizeof *records), **all = memory(count * sizeof *all);
    for (int i = 0; i < count; i++) {
        numbers[i] = i;
        links[i] = &links[(i * 17 + 1) % count];
        a[i] = b[i] = i;
        c[i] = 0;
        records[i] = (struct record){0, 0, 0, 0, 0, {0, 0}};
        all[i] = &records[(i * 17 + 1) % count];
    }
    double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    volatile long sink = 0;
    for (int sample = 0; sample < samples; sample++) {
        double taken[5], start = now_ns();
        for (int i = 0; i < rounds; i++)
            sink += sum(numbers + i % 2, count - 1);
        taken[0] = (now_ns() - start) / ((double)rounds * (count - 1));
        start = now_ns();
        for (int i = 0; i < rounds; i++)
            fill(numbers, count);
        taken[1] = (now_ns() - start) / ((double)rounds * count * 2);
        start = now_ns();
        for (int i = 0; i < rounds; i++)
            sink += (long)chase(links + i, count);
        taken[2] = (now_ns() - start) / ((double)rounds * count);
        start = now_ns();
        for (int i = 0; i < products; i++)
            multiply(a, b, c, side);
        taken[3] = (now_ns() - start) / ((double)products * side * side * side * 2);
        start = now_ns();
        for (int i = 0; i < rounds; i++)
            update(all, count);
        taken[4] = (now_ns() - start) / ((double)rounds * count * 9);
        for (int which = 0; which < 5; which++)
            if (taken[which] < best[which])
                best[which] = taken[which];
    }
    printf("{\"sum_ns\":%.4f,\"fill_ns\":%.4f,\"chase_ns\":%.4f,\"multiply_ns\":%.4f,\"update_ns\":%.4f}\n", best[0],
           best[1], best[2], best[3], best[4]);
    return 0;
}
