// A program that has the addresses of functions of the C library for its own: built so that they are not the library's.
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

// The compiler must not know what they are.
static void *(*volatile allocate)(size_t);
static void *(*volatile allocate_zeros)(size_t, size_t);
static void *(*volatile change)(void *, size_t);
static void (*volatile give_back)(void *);
static int (*volatile unlock)(pthread_mutex_t *);
static ssize_t (*volatile put)(int, const void *, size_t);
static size_t (*volatile length)(const char *);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long total;

static void *work(void *argument) {
    for (int i = 0; i < 100; i++) {
        char *block = allocate(100), *zeros = allocate_zeros(10, 10);
        strcpy(block, "threads");
        block = change(block, 1000);
        CHECK(length(block) == 7 && zeros[99] == 0);
        pthread_mutex_lock(&lock);
        total += (long)argument;
        unlock(&lock);
        give_back(block);
        give_back(zeros);
    }
    return NULL;
}

int main(void) {
    // The code has the addresses, so they must be known when the program is linked.
    allocate = malloc, allocate_zeros = calloc, change = realloc, give_back = free;
    unlock = pthread_mutex_unlock, put = write, length = strlen;
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(total == 600);
    CHECK(put(1, "all right\n", 10) == 10);
    return 0;
}
