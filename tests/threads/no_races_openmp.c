// OpenMP without data races: what the threads share lies in the heap, each cell on a page of its own.
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

enum { CELLS = 200, STRIDE = 512, LARGE = 500 };

static long *cells;

static long fibonacci(long *out, int n) {
    if (n < 2) return *out = n;
    long *parts = malloc(2 * STRIDE * sizeof(long));
#pragma omp task shared(parts)
    fibonacci(parts, n - 1);
#pragma omp task shared(parts)
    fibonacci(parts + STRIDE, n - 2);
#pragma omp taskwait
    *out = parts[0] + parts[STRIDE];
    free(parts);
    return *out;
}

// A task of a group makes another one, which may be done where that one was.
static void groups(void) {
    long *pages = malloc(6L * LARGE * STRIDE * sizeof(long)), wrong = 0;
#pragma omp parallel
#pragma omp single
    for (int round = 0; round < 4; round++) {
#pragma omp taskgroup
        for (int i = 0; i < 6; i++) {
#pragma omp task firstprivate(i)
            {
                usleep(3000);
#pragma omp task firstprivate(i)
                {
                    usleep(omp_get_thread_num() ? 6000 : 100);
                    for (long k = 0; k < LARGE; k++) pages[(i * (long)LARGE + k) * STRIDE] = round + 1;
                }
            }
        }
        for (long k = 0; k < 6L * LARGE; k++) wrong += pages[k * STRIDE] != round + 1;
    }
    CHECK(wrong == 0);
    free(pages);
}

static long *theirs;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    for (int i = 0; i < CELLS; i++) theirs[i * STRIDE] = 2;
}

// The last thread makes memory, of which all nodes get copies, and changes it once. The others come later, and only
// look at a word.
static void changed_once(void) {
    long wrong = 0;
#pragma omp parallel reduction(+ : wrong)
    {
        int is_last = omp_get_thread_num() == omp_get_num_threads() - 1;
        if (is_last) {
            theirs = malloc(CELLS * STRIDE * sizeof(long));
            for (int i = 0; i < CELLS; i++) theirs[i * STRIDE] = 1;
        }
#pragma omp barrier
        for (int i = 0; i < CELLS; i++) wrong += theirs[i * STRIDE] != 1;
#pragma omp barrier
        if (!is_last) usleep(50000);
        pthread_once(&once, fill);
        for (int i = 0; i < CELLS; i++) wrong += theirs[i * STRIDE] != 2;
    }
    CHECK(wrong == 0);
    free(theirs);
}

int main(void) {
    cells = calloc(CELLS * STRIDE, sizeof(long));
    long wrong = 0;
#pragma omp parallel for ordered schedule(static, 1)
    for (int i = 0; i < CELLS; i++) {
#pragma omp ordered
        cells[i * STRIDE] = i ? cells[(i - 1) * STRIDE] + 1 : 1;
    }
    for (int i = 0; i < CELLS; i++) wrong += cells[i * STRIDE] != i + 1;
    CHECK(wrong == 0);
#pragma omp parallel for ordered(1) schedule(static, 1)
    for (int i = 1; i < CELLS; i++) {
#pragma omp ordered depend(sink : i - 1)
        cells[i * STRIDE] = cells[(i - 1) * STRIDE] + 2;
#pragma omp ordered depend(source)
    }
    for (int i = 0; i < CELLS; i++) wrong += cells[i * STRIDE] != 2 * i + 1;
    CHECK(wrong == 0);
#pragma omp parallel
#pragma omp single
    for (int i = 1; i < CELLS; i++) {
#pragma omp task depend(in : cells[(i - 1) * STRIDE]) depend(out : cells[i * STRIDE]) firstprivate(i)
        cells[i * STRIDE] = cells[(i - 1) * STRIDE] + 3;
    }
    for (int i = 0; i < CELLS; i++) wrong += cells[i * STRIDE] != 3 * i + 1;
    CHECK(wrong == 0);
    long *result = malloc(sizeof(long));
#pragma omp parallel
#pragma omp single
    fibonacci(result, 15);
    CHECK(*result == 610);
#pragma omp parallel
    for (int i = 0; i < 50; i++) {
#pragma omp critical
        cells[0]++;
    }
    CHECK(cells[0] == 1 + 50 * omp_get_max_threads());
#pragma omp parallel
    for (int round = 0; round < 10; round++) {
#pragma omp single
        for (int i = 0; i < CELLS; i++) cells[i * STRIDE] = round;
#pragma omp for reduction(+ : wrong)
        for (int i = 0; i < CELLS; i++) wrong += cells[i * STRIDE] != round;
    }
    CHECK(wrong == 0);
    changed_once();
    groups();
    puts("no races of OpenMP: all right");
    return 0;
}
