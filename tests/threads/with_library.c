// Uses library.c from threads of all nodes. Ends with status 0 if all results are right.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

int add(int place);
const char *say(void);
int end_first(void);
int end_second(void);
void replace(const char *with);

static int bad;

static void *work(void *unused) {
    if (strcmp(say(), "from a constructor")) bad = 1;
    for (int i = 0; i < 500; i++) add(i % 5);
    return unused;
}

static void *end(void *does) {
    if (does && end_second() != 30) bad = 1;
    return does;
}

int main(void) {
    pthread_t threads[4];
    if (end_first() != 0) return 2;
    // On two nodes and more, one of these is at another node.
    pthread_create(&threads[0], NULL, end, NULL);
    pthread_create(&threads[1], NULL, end, &bad);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    replace("from main");
    printf("with a library: %s, %d\n", bad ? "wrong" : say(), add(3));
    return bad;
}
