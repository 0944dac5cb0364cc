// Multiplies two matrices; each thread computes rows of the product.
// Arguments: the number of threads, and the size of the matrices.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    omp_set_num_threads(count > 1 ? atoi(arguments[1]) : 2);
    long size = count > 2 ? atol(arguments[2]) : 512;
    if (size < 1) return 2;
    size_t cells = (size_t)(size * size);
    double *a = malloc(cells * sizeof *a), *b = malloc(cells * sizeof *b), *product = calloc(cells, sizeof *product);
    if (!a || !b || !product) return 3;
    for (size_t i = 0; i < cells; i++) a[i] = (double)(i % 7), b[i] = (double)(i % 5);
#pragma omp parallel for
    for (long i = 0; i < size; i++) {
        for (long k = 0; k < size; k++) {
            double factor = a[i * size + k];
            for (long j = 0; j < size; j++) product[i * size + j] += factor * b[k * size + j];
        }
    }
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
