// What a process has once, set by threads of any node and used by threads of the others: the actions of signals, waits
// for signals, the environment, the locale, the time zone, and streams of other programs.
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <iconv.h>
#include <locale.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#define THREADS 4
static pthread_barrier_t barrier;
static pthread_t threads[THREADS];
static _Atomic int handled, handled_otherwise, seen[2];
static sigset_t waited;

static void meet(void) { pthread_barrier_wait(&barrier); }

static void on_signal(int signal) { handled += signal == SIGUSR1; }

static void on_other_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled_otherwise += signal == SIGUSR2 && info->si_signo == signal;
}

// A handler does what it may do while its thread waits for a lock: it counts in a thread-local variable and the heap,
// posts a semaphore, and makes a system call.
static _Thread_local int own;
static long *in_heap;
static sem_t posted;

static void on_any_signal(int signal) {
    int error = errno;
    own += signal;
    in_heap[own]++;
    sem_post(&posted);
    if (write(-1, "", 1) == 0 || errno != EBADF) abort();
    errno = error;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int is_over;

static void *wait_and_handle(void *unused) {
    (void)unused;
    errno = ERANGE;
    pthread_mutex_lock(&lock);
    while (!is_over) pthread_cond_wait(&condition, &lock);
    pthread_mutex_unlock(&lock);
    CHECK(errno == ERANGE);
    return (void *)(long)own;
}

static void handlers_in_waits(void) {
    pthread_t waiting[THREADS];
    struct sigaction action = {.sa_handler = on_any_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sem_init(&posted, 0, 0) == 0);
    CHECK((in_heap = calloc(THREADS * 100 * SIGUSR1, sizeof(long))) != NULL);
    for (int number = 0; number < THREADS; number++) {
        CHECK(pthread_create(&waiting[number], NULL, wait_and_handle, NULL) == 0);
    }
    for (int sent = 0; sent < 100; sent++) {
        for (int number = 0; number < THREADS; number++) CHECK(pthread_kill(waiting[number], SIGUSR1) == 0);
        for (int number = 0; number < THREADS; number++) CHECK(sem_wait(&posted) == 0);
        in_heap[0] += sent;
    }
    pthread_mutex_lock(&lock);
    is_over = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&lock);
    for (int number = 0; number < THREADS; number++) {
        void *result;
        CHECK(pthread_join(waiting[number], &result) == 0 && (long)result == 100 * SIGUSR1);
    }
    for (int count = 1; count <= 100; count++) CHECK(in_heap[count * SIGUSR1] <= THREADS);
    free(in_heap);
}

static int hour(void) {
    time_t midnight = 86400;
    struct tm parts;
    localtime_r(&midnight, &parts);
    return parts.tm_hour;
}

// Handlers that were installed before threads were made, and by a thread.
static void signals(int number) {
    while (handled < THREADS) usleep(1000);
    meet();
    struct sigaction action = {.sa_sigaction = on_other_signal, .sa_flags = SA_SIGINFO}, before;
    if (number == 1) CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    meet();
    CHECK(sigaction(SIGUSR2, NULL, &before) == 0 && before.sa_sigaction == on_other_signal);
    if (number == 2) {
        for (int other = 0; other < THREADS; other++) CHECK(pthread_kill(threads[other], SIGUSR2) == 0);
    }
    while (handled_otherwise < THREADS) usleep(1000);
    meet();
    if (number == 2) CHECK(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    meet();
    CHECK(raise(SIGUSR2) == 0 && signal(SIGUSR2, SIG_IGN) == SIG_IGN);
}

static void environment(int number) {
    CHECK(strcmp(getenv("EARLY"), "one") == 0 && hour() == 9);
    wchar_t wide[4];
    CHECK(MB_CUR_MAX > 1 && mbstowcs(wide, "\xc3\xa4", 4) == 1 && wide[0] == 0xe4);
    meet();
    if (number == 1) CHECK(setenv("EARLY", "two", 1) == 0 && setenv("LATE", "new", 0) == 0);
    meet();
    CHECK(strcmp(getenv("EARLY"), "two") == 0 && strcmp(getenv("LATE"), "new") == 0);
    meet();
    static char put[] = "PUT=yes";
    if (number == 2) CHECK(unsetenv("EARLY") == 0 && putenv(put) == 0 && setenv("TZ", "XYZ-5", 1) == 0);
    if (number == 2) tzset();
    meet();
    CHECK(getenv("EARLY") == NULL && strcmp(getenv("PUT"), "yes") == 0 && hour() == 5);
    meet();
    if (number == 2) CHECK(setlocale(LC_ALL, "C") != NULL);
    meet();
    CHECK(strcmp(setlocale(LC_ALL, NULL), "C") == 0 && MB_CUR_MAX == 1);
    locale_t made = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
    CHECK(made != NULL);
    locale_t before = uselocale(made);
    CHECK(MB_CUR_MAX > 1);
    uselocale(before);
    freelocale(made);
}

// The C library loads what it needs for this.
static void conversion(void) {
    iconv_t made = iconv_open("UTF-8", "ISO-8859-15");
    CHECK(made != (iconv_t)-1);
    char text[] = "\xa4", converted[8] = "", *from = text, *to = converted;
    size_t left = 1, room = sizeof converted - 1;
    CHECK(iconv(made, &from, &left, &to, &room) == 0 && strcmp(converted, "\xe2\x82\xac") == 0);
    CHECK(iconv_close(made) == 0);
    CHECK(iconv_open("UTF-8", "no such code") == (iconv_t)-1 && errno == EINVAL);
}

static void others(int number) {
    char text[8] = "";
    FILE *echo = popen("echo there; exit 3", "r");
    CHECK(echo != NULL && fgets(text, sizeof text, echo) && strcmp(text, "there\n") == 0);
    CHECK(WEXITSTATUS(pclose(echo)) == 3);
    if (number == 0) srand48(7);
    meet();
    static double numbers[THREADS];
    numbers[number] = drand48();
    meet();
    for (int other = 0; other < number; other++) CHECK(numbers[other] != numbers[number]);
}

static void *work(void *argument) {
    int number = (int)(long)argument;
    signals(number);
    environment(number);
    conversion();
    others(number);
    return NULL;
}

// Takes signals of the process and of itself, sent before and while it waits.
static void *take(void *unused) {
    (void)unused;
    for (int taken = 0; taken < 40; taken++) {
        int signal = 0;
        CHECK(sigwait(&waited, &signal) == 0);
        seen[signal == SIGALRM]++;
    }
    struct timespec limit = {0, 1000000};
    CHECK(sigtimedwait(&waited, NULL, &limit) == -1);
    return NULL;
}

static void *end(void *nothing) { return nothing; }

static void waits(int number) {
    pthread_t taker;
    for (int skipped = 0; skipped < number; skipped++) {
        CHECK(pthread_create(&taker, NULL, end, NULL) == 0 && pthread_join(taker, NULL) == 0);
    }
    seen[0] = seen[1] = 0;
    CHECK(pthread_create(&taker, NULL, take, NULL) == 0);
    for (int sent = 0; sent < 20; sent++) {
        CHECK(kill(getpid(), SIGHUP) == 0);
        while (seen[0] <= sent) usleep(100);
        CHECK(pthread_kill(taker, SIGALRM) == 0);
        while (seen[1] <= sent) usleep(100);
    }
    CHECK(pthread_join(taker, NULL) == 0);
}

int main(void) {
    sigemptyset(&waited);
    sigaddset(&waited, SIGHUP);
    sigaddset(&waited, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &waited, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(setenv("EARLY", "one", 1) == 0 && setenv("TZ", "JST-9", 1) == 0);
    CHECK(setlocale(LC_ALL, "C.UTF-8") != NULL);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (long number = 0; number < THREADS; number++) {
        CHECK(pthread_create(&threads[number], NULL, work, (void *)number) == 0);
    }
    for (int number = 0; number < THREADS; number++) CHECK(pthread_kill(threads[number], SIGUSR1) == 0);
    for (int number = 0; number < THREADS; number++) CHECK(pthread_join(threads[number], NULL) == 0);
    CHECK(handled == THREADS);
    for (int number = 0; number < THREADS; number++) waits(number);
    handlers_in_waits();
    puts("state: all right");
    return 0;
}
