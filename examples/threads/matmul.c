// Multiplies two matrices; each thread computes rows of the product.
// Arguments: the number of threads, and the size of the matrices.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS_MAX = 64 };

static double *a, *b, *product;
static long threads, size;

static void *multiply(void *number) {
    long me = (long)number;
    for (long i = size * me / threads; i < size * (me + 1) / threads; i++) {
        for (long k = 0; k < size; k++) {
            double factor = a[i * size + k];
            for (long j = 0; j < size; j++) product[i * size + j] += factor * b[k * size + j];
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    threads = count > 1 ? atol(arguments[1]) : 2;
    size = count > 2 ? atol(arguments[2]) : 512;
    if (threads < 1 || threads > THREADS_MAX || size < 1) return 2;
    size_t cells = (size_t)(size * size);
    a = malloc(cells * sizeof *a), b = malloc(cells * sizeof *b), product = calloc(cells, sizeof *product);
    if (!a || !b || !product) return 3;
    for (size_t i = 0; i < cells; i++) a[i] = (double)(i % 7), b[i] = (double)(i % 5);
    pthread_t others[THREADS_MAX];
    for (long i = 1; i < threads; i++) pthread_create(&others[i], NULL, multiply, (void *)i);
    multiply((void *)0);
    for (long i = 1; i < threads; i++) pthread_join(others[i], NULL);
    // One row, computed again.
    long row = size - 1;
    for (long j = 0; j < size; j++) {
        double expected = 0;
        for (long k = 0; k < size; k++) expected += a[row * size + k] * b[k * size + j];
        if (product[row * size + j] != expected) return 1;
    }
    puts("right");
    return 0;
}
