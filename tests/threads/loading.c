// Loads libraries (loaded.c, in the folder of the first argument) while threads of all nodes run. Ends with status 0 if
// all results are right.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define THREADS 6

static pthread_barrier_t barrier;
static int (*add)(int);
static int *(*own)(void);
static char *bytes;
static int ends[2];
static void *upper, *own_handle;
static int together;

static void *load(void *unused);

// Every thread has the library as soon as one of any node has loaded it.
static void *work(void *argument) {
    int number = (int)(long)argument;
    pthread_barrier_wait(&barrier);
    if (together) load(NULL);
    pthread_barrier_wait(&barrier);
    CHECK(*own() == 7);
    *own() += number;
    for (int i = 0; i < 50; i++) add(4999);
    bytes[number * 3000] = (char)('a' + number);
    pthread_barrier_wait(&barrier);
    CHECK(*own() == 7 + number);
    // The kernel gets variables of the library that other nodes have stored to.
    for (int turn = 0; turn < THREADS; turn++) {
        if (turn == number) {
            char got[16000];
            CHECK(write(ends[1], bytes, sizeof got) == sizeof got);
            CHECK(read(ends[0], got, sizeof got) == sizeof got);
            CHECK(memcmp(got, bytes, sizeof got) == 0);
            memset(bytes, turn, 100);
        }
        pthread_barrier_wait(&barrier);
    }
    // A handle means the same at every node.
    CHECK(dlsym(upper, "add") == (void *)add && *(int *)dlsym(upper, "of_thread") == 7 + number);
    CHECK(dlsym(upper, "nothing") == NULL && dlerror() && dlsym(own_handle, "below") == dlsym(upper, "below"));
    // By its own name, from any node, and as often as one likes.
    void *again = dlopen("./upper.so", RTLD_NOW);
    CHECK(again == upper && dlsym(again, "add") == (void *)add && dlclose(again) == 0);
    return NULL;
}

// A thread, of another node if there is one, loads it.
static void *load(void *unused) {
    CHECK(dlopen("./nothing.so", RTLD_NOW) == NULL);
    const char *error = dlerror();
    CHECK(error && strstr(error, "nothing.so") && dlerror() == NULL);
    upper = dlopen("./upper.so", RTLD_LAZY | RTLD_GLOBAL);
    if (!upper) fprintf(stderr, "%s\n", dlerror());
    CHECK(upper);
    add = dlsym(upper, "add");
    own = dlsym(upper, "own");
    bytes = dlsym(upper, "bytes");
    CHECK(*(int *)dlsym(upper, "upper_begun") == 1 && *(int *)dlsym(upper, "upper_inner") == 1);
    const char *(*said)(void) = dlsym(upper, "said");
    CHECK(strcmp(said(), "from below") == 0);
    // At once, perhaps while others still ask for it: no store may be lost.
    add(4998);
    return unused;
}

int main(int count, char **arguments) {
    CHECK(count == 3 && chdir(arguments[1]) == 0 && pipe(ends) == 0);
    pthread_t threads[THREADS], loader;
    own_handle = dlopen(NULL, RTLD_NOW);
    together = strcmp(arguments[2], "together") == 0;
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    pthread_barrier_wait(&barrier);
    if (strcmp(arguments[2], "here") == 0) {
        load(NULL);
    } else if (!together) {
        CHECK(pthread_create(&loader, NULL, load, NULL) == 0 && pthread_join(loader, NULL) == 0);
    }
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int turn = 0; turn < THREADS; turn++) pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(add(4999) == THREADS * 50 + 1 && add(2) == 4);
    CHECK(add(4998) == (together ? THREADS : 1) + 1);
    CHECK(dlsym(RTLD_DEFAULT, "add") == (void *)add);
    // A part of the C library that nothing has loaded yet: each node has its own.
    void *of_c = dlopen("libresolv.so.2", RTLD_NOW);
    CHECK(of_c && dlsym(of_c, "ns_get16"));
    puts("loading: all right");
    return 0;
}
