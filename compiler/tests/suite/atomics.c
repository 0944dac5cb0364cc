/* Atomics of every width and operation, on the heap and in globals, with threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static _Atomic int global_counter;
static _Atomic long *heap_counter;
static atomic_flag spin = ATOMIC_FLAG_INIT;
static long guarded;

static void *count(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) {
        atomic_fetch_add(&global_counter, 1);
        atomic_fetch_add_explicit(heap_counter, 3, memory_order_relaxed);
        while (atomic_flag_test_and_set_explicit(&spin, memory_order_acquire)) {
        }
        guarded++;
        atomic_flag_clear_explicit(&spin, memory_order_release);
    }
    return NULL;
}

#define EVERY(type, format)                                                                                            \
    do {                                                                                                               \
        _Atomic type *number = malloc(sizeof *number);                                                                 \
        atomic_init(number, (type)100);                                                                                \
        type old = atomic_fetch_sub(number, (type)30);                                                                 \
        printf(#type " " format, old, atomic_load(number));                                                            \
        atomic_fetch_and(number, (type)0x5f);                                                                          \
        atomic_fetch_or(number, (type)0x11);                                                                           \
        atomic_fetch_xor(number, (type)0x33);                                                                          \
        type expected = 1;                                                                                             \
        int first = atomic_compare_exchange_strong(number, &expected, (type)9);                                        \
        int second = atomic_compare_exchange_strong(number, &expected, (type)-9);                                      \
        printf(format " %d%d " format "\n", expected, atomic_exchange(number, (type)5), first, second, *number, old);  \
        __atomic_fetch_nand((type *)number, 3, __ATOMIC_SEQ_CST);                                                      \
        __atomic_fetch_max((type *)number, (type)17, __ATOMIC_RELAXED);                                                \
        printf(format "\n", __atomic_fetch_min((type *)number, (type)-4, __ATOMIC_ACQ_REL), *number);                  \
        free((void *)number);                                                                                          \
    } while (0)

int main(void) {
    heap_counter = malloc(sizeof *heap_counter);
    *heap_counter = 0;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, count, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d %ld %ld\n", global_counter, *heap_counter, guarded);
    EVERY(signed char, "%hhd %hhd ");
    EVERY(unsigned char, "%hhu %hhu ");
    EVERY(short, "%hd %hd ");
    EVERY(int, "%d %d ");
    EVERY(unsigned, "%u %u ");
    EVERY(long, "%ld %ld ");
    EVERY(unsigned long, "%lu %lu ");
    _Atomic double *real = malloc(sizeof *real);
    *real = 1.5;
    *real += 2.25;
    atomic_thread_fence(memory_order_seq_cst);
    atomic_signal_fence(memory_order_seq_cst);
    _Atomic(char *) *pointer = malloc(sizeof *pointer);
    *pointer = "abc";
    char *old = atomic_exchange(pointer, *pointer + 1);
    printf("%f %s %s\n", *real, old, *pointer);
    free((void *)pointer);
    free((void *)real);
    free((void *)heap_counter);
}
