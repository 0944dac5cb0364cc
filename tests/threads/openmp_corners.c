// Regions of OpenMP in unusual places; the argument says which.
#include "check.h"

#include <omp.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

// Threads of pthreads that begin regions at the same time, at any node.
static void *begin_regions(void *argument) {
    long *sum = argument;
    for (int round = 0; round < 20; round++) {
        long part = 0;
#pragma omp parallel for num_threads(3) reduction(+ : part) schedule(dynamic, 5)
        for (int i = 0; i < 100; i++) part += i;
        *sum += part;
    }
    return NULL;
}

static void of_threads(void) {
    pthread_t threads[3];
    long sums[4] = {0};
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, begin_regions, &sums[i]) == 0);
    begin_regions(&sums[3]);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(sums[i] == 20 * 4950);
}

// What the environment sets.
static void of_environment(void) {
    CHECK(omp_get_max_threads() == 3 && omp_get_thread_limit() == 5 && omp_get_max_active_levels() == 4);
    omp_sched_t kind;
    int chunk;
    omp_get_schedule(&kind, &chunk);
    CHECK((kind & ~omp_sched_monotonic) == omp_sched_guided && chunk == 9);
    int threads = 0, inner = 0;
#pragma omp parallel reduction(+ : threads, inner)
    {
        threads++;
#pragma omp parallel reduction(+ : inner)
        inner++;
    }
    CHECK(threads == 3 && inner == 6);
    threads = 0;
#pragma omp parallel num_threads(50) reduction(+ : threads)
    threads++;
    CHECK(threads == 5);
}

// A thread of a team ends the program.
static void of_exit(void) {
#pragma omp parallel num_threads(4)
    {
        if (omp_get_thread_num() == 3) exit(9);
        for (;;) usleep(1000);
    }
}

// Tasks that wait for their children while they have a lock: nobody does another task that wants it.
static void of_locked_tasks(void) {
    long count = 0;
#pragma omp parallel num_threads(4)
#pragma omp single
    for (int i = 0; i < 60; i++) {
#pragma omp task
        {
#pragma omp critical
            {
                long before = count;
#pragma omp task
                {
#pragma omp atomic
                    count++;
                }
#pragma omp taskwait
                CHECK(count == before + 1);
            }
        }
    }
    CHECK(count == 60);
}

// Threads that follow each other through rows, as in the NAS benchmark LU: each waits for a flag of the one before.
static void of_pipeline(void) {
    enum { THREADS = 4, ROWS = 50, COLUMNS = 64 };
    static int table[ROWS][COLUMNS];
    static volatile int done[THREADS + 1];
    done[0] = ROWS;
    for (int i = 0; i < COLUMNS; i++) table[0][i] = i;
#pragma omp parallel num_threads(THREADS)
    {
        int me = omp_get_thread_num(), first = me * COLUMNS / THREADS, end = (me + 1) * COLUMNS / THREADS;
        for (int row = 1; row < ROWS; row++) {
            while (done[me] < row) {
#pragma omp flush
            }
            for (int i = first; i < end; i++) table[row][i] = table[row - 1][i] + (i > 0 ? table[row][i - 1] % 7 : 1);
#pragma omp flush
            done[me + 1] = row;
#pragma omp flush
        }
    }
    for (int row = 1; row < ROWS; row++) {
        for (int i = 0; i < COLUMNS; i++) {
            CHECK(table[row][i] == table[row - 1][i] + (i > 0 ? table[row][i - 1] % 7 : 1));
        }
    }
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (!strcmp(which, "threads")) of_threads();
    if (!strcmp(which, "environment")) of_environment();
    if (!strcmp(which, "exit")) of_exit();
    if (!strcmp(which, "cancel")) begin_regions(&(long){0});
    if (!strcmp(which, "pipeline")) of_pipeline();
    if (!strcmp(which, "locked tasks")) of_locked_tasks();
    puts("all right");
    return 0;
}
