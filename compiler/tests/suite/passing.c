/* Parameters and results by value: small, large, aligned, from the heap, through function pointers, recursive. */
#include <stdio.h>
#include <stdlib.h>

struct small {
    int a;
    float b;
};
struct large {
    int values[20];
    double real;
};
struct __attribute__((aligned(32))) aligned {
    long values[8];
};

__attribute__((noinline)) static int take(struct large first, struct small second, struct large third) {
    first.values[0] += 100; /* a copy: the caller's stays */
    int sum = (int)first.real + second.a + (int)second.b;
    for (int i = 0; i < 20; i++)
        sum += first.values[i] - third.values[19 - i];
    return sum;
}
__attribute__((noinline)) static struct large make(int seed) {
    struct large large;
    for (int i = 0; i < 20; i++)
        large.values[i] = seed + i;
    large.real = seed / 2.0;
    return large;
}
__attribute__((noinline)) static struct large changed(struct large large, int depth) {
    if (depth == 0)
        return large;
    large.values[depth] *= 2;
    return changed(large, depth - 1);
}
__attribute__((noinline)) static long sum_aligned(struct aligned aligned) {
    long sum = 0;
    for (int i = 0; i < 8; i++)
        sum += aligned.values[i] * (i + 1);
    return sum + ((unsigned long)&aligned % 32 == 0);
}

int main(void) {
    struct large *heap = malloc(2 * sizeof *heap);
    heap[0] = make(3);
    heap[1] = make(50);
    struct small *small = malloc(sizeof *small);
    *small = (struct small){9, 2.5f};
    int (*function)(struct large, struct small, struct large) = take;
    printf("%d %d\n", take(heap[0], *small, heap[1]), function(heap[1], *small, make(1)));
    printf("%d\n", heap[0].values[0]);
    heap[0] = changed(heap[1], 10);
    for (int i = 0; i < 12; i++)
        printf("%d ", heap[0].values[i]);
    printf("%f\n", heap[0].real);
    struct aligned *aligned = aligned_alloc(32, sizeof *aligned);
    for (int i = 0; i < 8; i++)
        aligned->values[i] = i * 11;
    printf("%ld\n", sum_aligned(*aligned));
    free(aligned);
    free(small);
    free(heap);
}
