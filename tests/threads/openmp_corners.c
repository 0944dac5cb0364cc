// Regions of OpenMP in unusual places; the argument says which.
#include "check.h"

#include <omp.h>
#include <pthread.h>
#include <stdint.h>
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

// Untied tasks that are done at once, and come back to themselves.
static void of_untied_tasks(void) {
    int steps = 0;
#pragma omp parallel num_threads(3)
#pragma omp single
    for (int i = 0; i < 20; i++) {
#pragma omp task untied if (i % 2)
        {
#pragma omp task
            {
#pragma omp atomic
                steps += 1;
            }
#pragma omp taskwait
#pragma omp atomic
            steps += 100;
        }
    }
    CHECK(steps == 20 * 101);
}

// Chunks that are larger than the loop, and loops without iterations.
static void of_odd_chunks(void) {
#ifdef __clang__
    enum { CHUNK = 1000000000 };
#else
    // GCC's compiler itself multiplies the chunk with the number of threads.
    enum { CHUNK = 400000000 };
#endif
    int sum = 0;
#pragma omp parallel for num_threads(4) schedule(static, CHUNK) reduction(+ : sum)
    for (int i = 0; i < 100; i++) sum += i;
    CHECK(sum == 4950);
    unsigned none = (unsigned)(sum - 4950);
#pragma omp parallel for num_threads(4) schedule(static) reduction(+ : sum)
    for (unsigned i = 0; i < none; i++) sum++;
#pragma omp parallel for num_threads(4) schedule(nonmonotonic : runtime) reduction(+ : sum)
    for (long i = 99; i >= 0; i -= 3) sum += (int)i;
    CHECK(sum == 4950 + 1683);
}

// Threads that do inner iterations of the same outermost one wait for each other.
static void of_joined_loops(void) {
    enum { ROWS = 6, COLUMNS = 20 };
    static long table[ROWS][COLUMNS];
#pragma omp parallel for num_threads(3) ordered(2) collapse(2) schedule(dynamic, 1)
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
#pragma omp ordered depend(sink : i - 1, j) depend(sink : i, j - 1)
            table[i][j] = (i > 0 ? table[i - 1][j] : 1) + (j > 0 ? table[i][j - 1] : 0);
#pragma omp ordered depend(source)
        }
    }
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            CHECK(table[i][j] == (i > 0 ? table[i - 1][j] : 1) + (j > 0 ? table[i][j - 1] : 0));
        }
    }
}

// A loop of many iterations: each is done once, by the thread that does it in every loop with the same schedule, and no
// thread has much more than another.
static void of_long_loops(void) {
    enum { COUNT = 200000, THREADS = 4 };
    static signed char first[COUNT + 7], second[COUNT + 7];
    long each[THREADS] = {0};
    memset(first, -1, sizeof first);
    memset(second, -1, sizeof second);
#pragma omp parallel num_threads(THREADS)
    {
        int number = omp_get_thread_num();
        long done = 0;
#pragma omp for schedule(static) nowait
        for (long i = 7; i < COUNT + 7; i++) first[i] = (signed char)(first[i] == -1 ? number : 100), done++;
#pragma omp for schedule(static)
        for (unsigned i = 7; i < COUNT + 7; i++) second[i] = (signed char)(first[i] == number ? number : 100);
        each[number] = done;
    }
    for (int i = 0; i < COUNT + 7; i++) CHECK(i < 7 ? first[i] == -1 : first[i] >= 0 && first[i] < THREADS);
    CHECK(memcmp(first, second, sizeof first) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(each[i] > COUNT / THREADS * 0.96 && each[i] < COUNT / THREADS * 1.04);
}

// Allocators with an alignment and a pool, which threads of all nodes use.
static void of_allocators(void) {
    omp_alloctrait_t traits[] = {
        {omp_atk_alignment, 256}, {omp_atk_pool_size, 4096}, {omp_atk_fallback, omp_atv_null_fb}};
    omp_allocator_handle_t own = omp_init_allocator(omp_default_mem_space, 3, traits);
    omp_allocator_handle_t before = omp_get_default_allocator();
    CHECK(own != omp_null_allocator && before == omp_default_mem_alloc);
    omp_set_default_allocator(own);
    int refused = 0;
    char *blocks[8];
#pragma omp parallel num_threads(4) reduction(+ : refused)
    {
        int first = 2 * omp_get_thread_num();
        for (int i = first; i < first + 2; i++) {
            blocks[i] = omp_alloc(1000, omp_null_allocator);
            refused += !blocks[i];
            CHECK((uintptr_t)blocks[i] % 256 == 0);
            if (blocks[i]) memset(blocks[i], i, 1000);
        }
    }
    CHECK(refused >= 4 && refused < 8);
    for (int i = 0; i < 8; i++) {
        CHECK(!blocks[i] || (blocks[i][0] == i && blocks[i][999] == i));
        omp_free(blocks[i], own);
    }
    char *large = omp_alloc(3000, own);
    CHECK(large != NULL);
    omp_free(large, omp_null_allocator);
    omp_set_default_allocator(before);
    omp_destroy_allocator(own);
    omp_display_env(0);
}

// The main thread leaves; the threads of its region do not keep the program.
static void of_leaving(void) {
    begin_regions(&(long){0});
    puts("all right");
    pthread_exit(NULL);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (!strcmp(which, "threads")) of_threads();
    if (!strcmp(which, "environment")) of_environment();
    if (!strcmp(which, "exit")) of_exit();
    if (!strcmp(which, "allocators")) of_allocators();
    if (!strcmp(which, "pipeline")) of_pipeline();
    if (!strcmp(which, "locked tasks")) of_locked_tasks();
    if (!strcmp(which, "untied tasks")) of_untied_tasks();
    if (!strcmp(which, "odd chunks")) of_odd_chunks();
    if (!strcmp(which, "joined loops")) of_joined_loops();
    if (!strcmp(which, "long loops")) of_long_loops();
    if (!strcmp(which, "leaving")) of_leaving();
    puts("all right");
    return 0;
}
