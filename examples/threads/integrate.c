// Integrates 4 / (1 + x * x) from 0 to 1: threads share nothing until they have ended.
// Arguments: the number of threads, and the millions of steps.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS_MAX = 64, PAGE = 512 };

static double sums[THREADS_MAX * PAGE];
static long threads, steps;

static void *integrate(void *number) {
    long me = (long)number;
    double sum = 0;
    for (long i = me; i < steps; i += threads) {
        double x = ((double)i + 0.5) / (double)steps;
        sum += 4 / (1 + x * x);
    }
    sums[me * PAGE] = sum;
    return NULL;
}

int main(int count, char **arguments) {
    threads = count > 1 ? atol(arguments[1]) : 2;
    steps = 1000000 * (count > 2 ? atol(arguments[2]) : 100);
    if (threads < 1 || threads > THREADS_MAX) return 2;
    pthread_t others[THREADS_MAX];
    for (long i = 1; i < threads; i++) pthread_create(&others[i], NULL, integrate, (void *)i);
    integrate((void *)0);
    double sum = sums[0];
    for (long i = 1; i < threads; i++) {
        pthread_join(others[i], NULL);
        sum += sums[i * PAGE];
    }
    double pi = sum / (double)steps;
    printf("%.9f\n", pi);
    return pi < 3.1415926 || pi > 3.1415927;
}
