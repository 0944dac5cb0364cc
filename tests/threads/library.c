// A library of the program that allocates in its constructor, and whose memory threads of all nodes use.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int *counts;
static char *text;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    counts = calloc(100, sizeof *counts);
    text = strdup("from a constructor");
    text = realloc(text, 100);
}

int add(int place) {
    pthread_mutex_lock(&lock);
    int count = ++counts[place];
    pthread_mutex_unlock(&lock);
    return count;
}

const char *say(void) { return text; }

void replace(const char *with) {
    free(text);
    text = strdup(with);
}
