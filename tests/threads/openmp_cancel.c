// Cancellation of OpenMP: loops, sections, regions and groups of tasks, again and again in one program. It is run with
// OMP_CANCELLATION=true and four threads.
#include "check.h"

#include <omp.h>

#define ROUNDS 20

static void loops(void) {
    int begun = 0, found = -1, left = 0, in_parts = 0;
#pragma omp parallel num_threads(4)
    {
#pragma omp for schedule(dynamic)
        for (int i = 0; i < 100000; i++) {
#pragma omp atomic
            begun++;
            if (i == 50) {
#pragma omp atomic write
                found = i;
#pragma omp cancel for
            }
#pragma omp cancellation point for
        }
        CHECK(found == 50);
#pragma omp atomic
        left++;
#pragma omp for schedule(guided)
        for (int i = 0; i < 1000; i++) {
#pragma omp atomic
            left++;
        }
#pragma omp for schedule(static)
        for (int i = 0; i < 4000; i++) {
#pragma omp cancel for if (i % 1000 == 10)
#pragma omp atomic
            in_parts++;
        }
    }
    CHECK(left == 1004 && begun < 100000 && in_parts <= 40);
}

static void regions(void) {
    int reached = 0, passed = 0;
#pragma omp parallel num_threads(4)
    {
        if (omp_get_thread_num() == 1) {
#pragma omp cancel parallel
        }
        for (;;) {
#pragma omp cancellation point parallel
        }
        reached = 1;
    }
    // Some threads wait at a barrier to which others do not come.
#pragma omp parallel num_threads(4)
    {
#pragma omp barrier
        if (omp_get_thread_num() == 2) {
#pragma omp cancel parallel
        }
#pragma omp barrier
#pragma omp atomic
        passed++;
#pragma omp barrier
    }
    CHECK(!reached && passed <= 3);
}

static void others(void) {
    int in_sections = 0, done = 0, after = 0, all = 0;
#pragma omp parallel num_threads(4)
    {
#pragma omp sections
        {
#pragma omp section
            {
#pragma omp cancel sections
                in_sections = 1;
            }
#pragma omp section
            {
#pragma omp cancellation point sections
            }
        }
#pragma omp barrier
#pragma omp single
        {
#pragma omp taskgroup
            {
                for (int i = 0; i < 1000; i++) {
#pragma omp task shared(done)
                    {
                        int number;
#pragma omp atomic capture
                        number = ++done;
                        if (number >= 10) {
#pragma omp cancel taskgroup
                        }
                    }
                }
            }
            after = 1;
#pragma omp taskloop grainsize(strict : 7) shared(all)
            for (int i = 0; i < 100; i++) {
#pragma omp atomic
                all++;
            }
        }
    }
    CHECK(!in_sections && after && done >= 10 && done < 1000 && all == 100);
}

int main(void) {
    CHECK(omp_get_cancellation());
    for (int round = 0; round < ROUNDS; round++) {
        loops();
        regions();
        others();
    }
    puts("cancellation: all right");
    return 0;
}
