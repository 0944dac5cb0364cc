/* Variadic functions: many arguments, every class, va_copy, va_list in a structure on the heap, and v-functions. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct point {
    int x, y;
};
struct large {
    long values[5];
};
struct holder {
    int before;
    va_list list;
    int after;
};

__attribute__((noinline)) static double sum(int count, ...) {
    va_list list, copy;
    va_start(list, count);
    va_copy(copy, list);
    double total = 0;
    for (int i = 0; i < count; i++) {
        total += va_arg(list, int);
        total += va_arg(list, double);
    }
    for (int i = 0; i < count; i++) {
        total += 1000.0 * va_arg(copy, int);
        total += va_arg(copy, double);
    }
    va_end(copy);
    va_end(list);
    return total;
}

__attribute__((noinline)) static long structures(const char *kinds, ...) {
    struct holder *holder = malloc(sizeof *holder);
    holder->before = holder->after = 77;
    va_start(holder->list, kinds);
    long total = 0;
    for (; *kinds; kinds++)
        switch (*kinds) {
        case 'p': {
            struct point point = va_arg(holder->list, struct point);
            total += point.x * 10 + point.y;
            break;
        }
        case 'l': {
            struct large large = va_arg(holder->list, struct large);
            for (int i = 0; i < 5; i++)
                total += large.values[i];
            break;
        }
        case 'd':
            total += (long)va_arg(holder->list, long double);
            break;
        default:
            total += va_arg(holder->list, long);
        }
    va_end(holder->list);
    total += holder->before * 1000000L + holder->after;
    free(holder);
    return total;
}

__attribute__((noinline)) static int format(char *to, size_t room, const char *text, ...) {
    va_list list;
    va_start(list, text);
    int length = vsnprintf(to, room, text, list);
    va_end(list);
    return length;
}

/* Leaves things where the next call's arguments will lie. */
__attribute__((noinline)) static int scribble(int seed) {
    volatile int noise[64];
    for (int i = 0; i < 64; i++)
        noise[i] = seed * i;
    return noise[seed % 64];
}

int main(void) {
    int local = 5;
    printf("%d\n", scribble(3));
    printf("%f\n", sum(2, 1, 0.5, 2, 0.25));
    printf("%f\n", sum(9, 1, .1, 2, .2, 3, .3, 4, .4, 5, .5, 6, .6, 7, .7, 8, .8, 9, .9));
    printf("%d\n", scribble(7));
    struct large *large = malloc(sizeof *large);
    for (int i = 0; i < 5; i++)
        large->values[i] = i * i;
    struct point point = {3, 4};
    printf("%ld\n", structures("plpdip", point, *large, point, 7.5L, 12L, point));
    printf("%ld %d\n", structures("iiiiiiiiiip", 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L, 10L, point), local);
    char *text = malloc(200);
    int length = format(text, 200, "%d %s %5.2f %c %ld %x %-6s| %.3s %*d %p %%", 42, "literal", 3.14159, 'z',
                        123456789012L, 255, text ? "left" : "", "truncated", 6, 7, NULL);
    printf("%d %s\n", length, text);
    char *word = strdup("from the heap");
    printf("%d [%s] [%.4s] [%20s]\n", format(text, 10, "%s", word), text, word, word);
    printf("%d %d %hhd %hd %lld %zu %jd %td %g %e %La\n", 1, 2, 300, 70000, 5LL, (size_t)6, (long)7, (long)8, 0.1, 1e10,
           2.0L);
    printf("%ls %lc %n", L"wide", L'w', &local);
    printf("%d\n", local);
    free(word);
    free(text);
    free(large);
}
