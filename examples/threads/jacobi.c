// Heat in a plate: each thread computes rows of the grid, and all meet after each step.
// Arguments: the number of threads, the size of the grid, and the number of steps.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS_MAX = 64 };

static double *grids[2];
static long threads, size, steps;
static pthread_barrier_t all;

static void *compute(void *number) {
    long me = (long)number, rows = size - 2;
    long first = 1 + rows * me / threads, end = 1 + rows * (me + 1) / threads;
    for (long step = 0; step < steps; step++) {
        const double *from = grids[step % 2];
        double *to = grids[1 - step % 2];
        for (long i = first; i < end; i++) {
            const double *row = from + i * size;
            for (long j = 1; j < size - 1; j++) {
                to[i * size + j] = 0.25 * (row[j - 1] + row[j + 1] + row[j - size] + row[j + size]);
            }
        }
        pthread_barrier_wait(&all);
    }
    return NULL;
}

int main(int count, char **arguments) {
    threads = count > 1 ? atol(arguments[1]) : 2;
    size = count > 2 ? atol(arguments[2]) : 1000;
    steps = count > 3 ? atol(arguments[3]) : 100;
    if (threads < 1 || threads > THREADS_MAX || size < 3) return 2;
    for (int i = 0; i < 2; i++) {
        if (posix_memalign((void **)&grids[i], 4096, (size_t)(size * size) * sizeof(double))) return 3;
        for (long cell = 0; cell < size * size; cell++) grids[i][cell] = cell < size ? 100 : 0;
    }
    pthread_barrier_init(&all, NULL, (unsigned)threads);
    pthread_t others[THREADS_MAX];
    for (long i = 1; i < threads; i++) pthread_create(&others[i], NULL, compute, (void *)i);
    compute((void *)0);
    for (long i = 1; i < threads; i++) pthread_join(others[i], NULL);
    double sum = 0;
    for (long cell = 0; cell < size * size; cell++) sum += grids[steps % 2][cell];
    printf("%.6f\n", sum);
    return 0;
}
