/* Loops that -O3 -march=native turns into vectors, masked accesses and gathers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { count = 1003 };

__attribute__((noinline)) static void conditional(int *to, const int *from, const int *mask, int length) {
    for (int i = 0; i < length; i++)
        if (mask[i] > 3)
            to[i] = from[i] * 2 + to[i];
}
__attribute__((noinline)) static long gathered(const int *from, const int *index, int length) {
    long sum = 0;
    for (int i = 0; i < length; i++)
        sum += from[index[i]];
    return sum;
}
__attribute__((noinline)) static double dot(const double *a, const double *b, int length) {
    double sum = 0;
    for (int i = 0; i < length; i++)
        sum += a[i] * b[i];
    return sum;
}
__attribute__((noinline)) static void strided(float *to, const float *from, int length) {
    for (int i = 0; i < length / 3; i++)
        to[i] = from[3 * i] + from[3 * i + 1] - from[3 * i + 2];
}
__attribute__((noinline)) static void masked_store(short *to, const unsigned char *from, int length) {
    for (int i = 0; i < length; i++)
        if (from[i] & 1)
            to[i] = from[i];
}

int main(void) {
    int *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b), *index = malloc(count * sizeof *index);
    double *x = malloc(count * sizeof *x), *y = calloc(count, sizeof *y);
    float *f = malloc(count * sizeof *f), *g = calloc(count, sizeof *g);
    short *s = calloc(count, sizeof *s);
    unsigned char *c = malloc(count);
    for (int i = 0; i < count; i++) {
        a[i] = i;
        b[i] = i % 7;
        index[i] = i * 17 % count;
        x[i] = i * 0.5;
        y[i] = count - i;
        f[i] = (float)i;
        c[i] = (unsigned char)(i * 3);
    }
    conditional(a + 1, a, b, count - 1);
    conditional(b, index, b + 1, count - 1);
    masked_store(s, c, count);
    strided(g, f, count);
    long sum = 0;
    for (int i = 0; i < count; i++)
        sum = sum * 3 + a[i] + b[i] + s[i] + (long)g[i];
    printf("%ld %ld %f\n", sum, gathered(a, index, count), dot(x, y, count));
    int local[64];
    for (int i = 0; i < 64; i++)
        local[i] = a[i] + b[63 - i];
    memcpy(a + 3, local, sizeof local);
    memmove(a + 10, a + 3, 50 * sizeof *a);
    int total = 0;
    for (int i = 0; i < 100; i++)
        total += a[i] * (i % 5);
    printf("%d\n", total);
    free(c);
    free(s);
    free(g);
    free(f);
    free(y);
    free(x);
    free(index);
    free(b);
    free(a);
}
