// Integrates 4 / (1 + x * x) from 0 to 1: threads share nothing until they have ended.
// Arguments: the number of threads, and the millions of steps.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    omp_set_num_threads(count > 1 ? atoi(arguments[1]) : 2);
    long steps = 1000000 * (count > 2 ? atol(arguments[2]) : 100);
    double sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (long i = 0; i < steps; i++) {
        double x = ((double)i + 0.5) / (double)steps;
        sum += 4 / (1 + x * x);
    }
    double pi = sum / (double)steps;
    printf("%.9f\n", pi);
    return pi < 3.1415926 || pi > 3.1415927;
}
