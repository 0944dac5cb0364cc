/* Initialised and zero globals, constants, statics, thread-locals (also by address), errno, argv. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int initialised = 42;
static long zero[100];
const char *const words[] = {"one", "two", "three"};
static char text[] = "changeable";
static int *into_global = &initialised;
_Thread_local int mine = 10;
static _Thread_local long counters[4];

static void bump(int *number) { *number += 5; }

static int next(void) {
    static int calls;
    return ++calls;
}

static void *other(void *unused) {
    (void)unused;
    bump(&mine);
    counters[2] += mine;
    printf("other %d %ld\n", mine, counters[2]);
    return (void *)&words;
}

int main(int count, char **arguments) {
    for (int i = 0; i < 100; i++)
        zero[i] = i;
    text[0] = 'C';
    *into_global += zero[50];
    bump(&initialised);
    bump(&mine);
    counters[2] = 1;
    printf("%d %s %s %d %d\n", initialised, text, words[2], next() + next(), mine);
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, other, NULL);
    pthread_join(thread, &result);
    printf("%d %d %ld\n", result == &words, mine, counters[2]);
    errno = 0;
    char *end;
    long number = strtol("99999999999999999999", &end, 10);
    printf("%d %d %d\n", number > 0, errno == ERANGE, *end);
    errno = 7;
    int *where = &errno;
    printf("%d %d\n", errno, *where);
    printf("%d %d %s\n", count, arguments[count] == NULL, count > 1 ? arguments[1] : "");
    printf("%s\n", getenv("TRELLIS_SUITE_UNSET") ? "set" : "unset");
    return strlen(text) == 10 ? 0 : 1;
}
