// Heat in a plate: each thread computes rows of the grid, and all meet after each step.
// Arguments: the number of threads, the size of the grid, and the number of steps.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    omp_set_num_threads(count > 1 ? atoi(arguments[1]) : 2);
    long size = count > 2 ? atol(arguments[2]) : 1000, steps = count > 3 ? atol(arguments[3]) : 100;
    if (size < 3) return 2;
    double *grids[2];
    for (int i = 0; i < 2; i++) {
        if (posix_memalign((void **)&grids[i], 4096, (size_t)(size * size) * sizeof(double))) return 3;
        for (long cell = 0; cell < size * size; cell++) grids[i][cell] = cell < size ? 100 : 0;
    }
#pragma omp parallel
    for (long step = 0; step < steps; step++) {
        const double *from = grids[step % 2];
        double *to = grids[1 - step % 2];
#pragma omp for
        for (long i = 1; i < size - 1; i++) {
            const double *row = from + i * size;
            for (long j = 1; j < size - 1; j++) {
                to[i * size + j] = 0.25 * (row[j - 1] + row[j + 1] + row[j - size] + row[j + size]);
            }
        }
    }
    double sum = 0;
    for (long cell = 0; cell < size * size; cell++) sum += grids[steps % 2][cell];
    printf("%.6f\n", sum);
    return 0;
}
