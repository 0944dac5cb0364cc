/* The program's own SIGSEGV and SIGBUS handlers, installed before and after joining, get the faults outside the
 * region and none of those inside it, whatever the catcher. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <trellis.h>

static sigjmp_buf back;
static volatile sig_atomic_t calls;
static void *volatile address;

static void with_information(int signal, siginfo_t *information, void *context) {
    (void)signal, (void)context;
    address = information->si_addr;
    calls++;
    siglongjmp(back, 1);
}

static void plain(int signal) {
    (void)signal;
    calls++;
    siglongjmp(back, 1);
}

/* Read one byte that may not be read; the handler brings us back. */
static int faults(volatile char *forbidden) {
    int before = calls;
    if (sigsetjmp(back, 1) == 0) (void)*forbidden;
    return calls == before + 1;
}

static int touch_region(trellis_cluster *cluster, size_t first_page) {
    int before = calls;
    volatile char *base = trellis_base(cluster);
    size_t page_bytes = trellis_page_bytes(cluster);
    for (size_t page = first_page; page < first_page + 8; page++) base[page * page_bytes] = (char)page;
    return calls == before;
}

#define CHECK(condition)                                             \
    if (!(condition)) {                                              \
        fprintf(stderr, "line %d: %s\n", __LINE__, #condition);      \
        return 1;                                                    \
    }

int main(void) {
    trellis_cluster *cluster;
    int needs_segv;
    struct sigaction action = {.sa_sigaction = with_information, .sa_flags = SA_SIGINFO}, previous;
    char *forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    if (trellis_join(NULL, &cluster) != TRELLIS_OK) {
        fprintf(stderr, "%s\n", trellis_last_error());
        return 1;
    }
    CHECK(touch_region(cluster, 0));
    CHECK(faults(forbidden) && address == forbidden);
    CHECK(touch_region(cluster, 8));

    /* While the region needs a signal, the program's own action is what it gets to see. */
    needs_segv = strcmp(getenv("TRELLIS_CATCH"), "mprotect") == 0;
    CHECK(sigaction(SIGSEGV, NULL, &previous) == 0);
    CHECK(!needs_segv || previous.sa_sigaction == with_information);
    CHECK(sigaction(SIGBUS, NULL, &previous) == 0 && previous.sa_handler == SIG_DFL);
    CHECK(signal(SIGSEGV, plain) != SIG_ERR && signal(SIGBUS, plain) == SIG_DFL);
    CHECK(touch_region(cluster, 16));
    CHECK(faults(forbidden));
    CHECK(touch_region(cluster, 24));
    CHECK(trellis_leave(cluster) == TRELLIS_OK);
    puts("signals complete");
    return 0;
}
