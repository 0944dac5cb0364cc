// A library that a program loads while it runs. It is built three times: INNER is loaded by the constructor of UPPER,
// which needs LOWER.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef INNER
int inner_begun;
__attribute__((constructor)) static void begin(void) { inner_begun++; }
#endif

#ifdef LOWER
int lower_begun;
static char *text;
__attribute__((constructor)) static void begin(void) {
    lower_begun++;
    text = strdup("from below");
}
__attribute__((destructor)) static void end(void) { puts("lower ends"); }
const char *below(void) { return lower_begun == 1 ? text : NULL; }
#endif

#ifdef UPPER
extern int lower_begun;
const char *below(void);

int upper_begun, upper_inner;
// Variables of some pages, with and without contents.
int table[5000] = {1, 2, 3};
char bytes[20000];
__thread int of_thread = 7;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t worker;
static const char *seen;

static void *work(void *number) {
    pthread_mutex_lock(&lock);
    seen = below();
    pthread_mutex_unlock(&lock);
    return number;
}

__attribute__((constructor)) static void begin(int count, char **arguments, char **environment) {
    if (lower_begun != 1 || count < 2 || !arguments[1] || !environment) abort();
    upper_begun++;
    // Threads of a constructor run at once.
    void *result;
    if (pthread_create(&worker, NULL, work, &upper_begun) || pthread_join(worker, &result) || result != &upper_begun)
        abort();
    void *inner = dlopen("./inner.so", RTLD_NOW);
    int *begun = inner ? dlsym(inner, "inner_begun") : NULL;
    upper_inner = begun ? *begun : -1;
}

__attribute__((destructor)) static void end(void) { printf("upper ends after %d\n", table[4999]); }

int *own(void) { return &of_thread; }
const char *said(void) { return seen; }

int add(int place) {
    pthread_mutex_lock(&lock);
    int value = ++table[place];
    pthread_mutex_unlock(&lock);
    return value;
}
#endif
