// Fibonacci numbers by a tree of tasks; small ones are computed by the task that wants them.
// Arguments: the number of threads, the number, and the largest one that no task is made for.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static long tasks_from;

static long fibonacci(long n) {
    if (n < 2) return n;
    if (n <= tasks_from) return fibonacci(n - 1) + fibonacci(n - 2);
    long before, last;
#pragma omp task shared(last)
    last = fibonacci(n - 1);
#pragma omp task shared(before)
    before = fibonacci(n - 2);
#pragma omp taskwait
    return before + last;
}

int main(int count, char **arguments) {
    omp_set_num_threads(count > 1 ? atoi(arguments[1]) : 2);
    long n = count > 2 ? atol(arguments[2]) : 35, result = 0;
    tasks_from = count > 3 ? atol(arguments[3]) : 17;
#pragma omp parallel
#pragma omp single
    result = fibonacci(n);
    printf("%ld\n", result);
    return 0;
}
