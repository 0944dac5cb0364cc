// Neighbouring words of one page that all threads store to, with atomic operations and plain stores, and a lock made by
// hand. Sequential consistency makes all of it right.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 3000, TURNS = 100 };

static struct {
    atomic_int spin;
    long under_spin;
    atomic_long sum;
    long own[THREADS];
    atomic_long maximum;
} page;

static void *work(void *argument) {
    long me = (long)argument;
    for (int i = 0; i < ROUNDS; i++) {
        page.own[me]++;
        atomic_fetch_add(&page.sum, 1);
        long value = me * ROUNDS + i, before = page.maximum;
        while (value > before && !atomic_compare_exchange_weak(&page.maximum, &before, value)) {
        }
        if (i % 50 == 0) {
            while (atomic_exchange(&page.spin, 1)) sched_yield();
            page.under_spin++;
            atomic_store(&page.spin, 0);
        }
    }
    return NULL;
}

// Dekker's test: at least one of two threads sees the other's store.
static atomic_int flags[2], seen[2], arrived;
static int both_missed;

static void meet(int meeting) {
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < 2 * meeting) sched_yield();
}

static void *dekker(void *argument) {
    long me = (long)argument;
    int meeting = 0;
    for (int turn = 1; turn <= TURNS; turn++) {
        meet(++meeting);
        atomic_store(&flags[me], turn);
        seen[me] = atomic_load(&flags[1 - me]);
        meet(++meeting);
        if (me == 0 && seen[0] < turn && seen[1] < turn) both_missed++;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int bad = page.sum != (long)THREADS * ROUNDS || page.under_spin != THREADS * (ROUNDS / 50) ||
              page.maximum != (long)THREADS * ROUNDS - 1;
    for (int i = 0; i < THREADS; i++) bad |= page.own[i] != ROUNDS;
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, dekker, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("stress: %s, %d missed\n", bad ? "wrong" : "right", both_missed);
    return bad || both_missed;
}
