// Parallel regions that do nothing.
// Arguments: the number of threads, and the number of regions.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    omp_set_num_threads(count > 1 ? atoi(arguments[1]) : 2);
    long regions = count > 2 ? atol(arguments[2]) : 10000;
    for (long i = 0; i < regions; i++) {
#pragma omp parallel
        __asm__ volatile("" ::: "memory");
    }
    puts("done");
    return 0;
}
