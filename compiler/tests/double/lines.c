/* Mode line: frames that are closed and poisoned until they are asked for.
 *
 * TRELLIS_DOUBLE_FORGET=N takes everything away again at every N-th heap call, so that a missing check shows soon; only
 * for programs with one thread, because a check and its access are two steps.
 * TRELLIS_DOUBLE_PLAIN says that the program has untranslated parts, so that faults inside it are nothing wrong.
 */
#include "double.h"

#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { pages = region_bytes / page_bytes, lines_in_page = page_bytes / TRELLIS_LINE_BYTES, poison = 0xa5 };
enum frame { closed, clean, dirty };

static unsigned char frames[pages];
static unsigned char *const states = (unsigned char *)TRELLIS_LINE_STATES;
static unsigned char *const region = (unsigned char *)TRELLIS_REGION_BASE;
static uintptr_t text_start, text_end;
static long forget_every, events;
static bool plain_parts;

static void open_page(size_t page, bool write) {
    unsigned char *frame = region + page * page_bytes;
    if (frames[page] == closed) {
        if (mprotect(frame, page_bytes, PROT_READ | PROT_WRITE) != 0)
            double_fail("mprotect failed", frame);
        memcpy(frame, double_store + page * page_bytes, page_bytes);
        frames[page] = clean;
        mprotect(frame, page_bytes, PROT_READ);
    }
    if (write && frames[page] == clean) {
        mprotect(frame, page_bytes, PROT_READ | PROT_WRITE);
        frames[page] = dirty;
    }
}

static void close_page(size_t page) {
    unsigned char *frame = region + page * page_bytes;
    if (frames[page] == dirty)
        memcpy(double_store + page * page_bytes, frame, page_bytes);
    mprotect(frame, page_bytes, PROT_READ | PROT_WRITE);
    memset(frame, poison, page_bytes);
    mprotect(frame, page_bytes, PROT_NONE);
    memset(states + page * lines_in_page, 0, lines_in_page);
    frames[page] = closed;
}

void lines_forget(void) {
    if (double_mode != TRELLIS_MODE_LINE || !forget_every || ++events % forget_every)
        return;
    for (size_t page = 0; page < pages; page++)
        if (frames[page] != closed)
            close_page(page);
}

static void make(const void *address, size_t bytes, bool write) {
    if (!in_region(address) || !bytes)
        return;
    pthread_mutex_lock(&double_lock);
    double_calls++;
    uintptr_t offset = (uintptr_t)address - TRELLIS_REGION_BASE;
    if (offset + bytes > region_bytes)
        double_fail("a line outside the heap of the test double", address);
    for (size_t line = offset / TRELLIS_LINE_BYTES; line <= (offset + bytes - 1) / TRELLIS_LINE_BYTES; line++) {
        open_page(line / lines_in_page, write);
        states[line] |= TRELLIS_LINE_READABLE | (write ? TRELLIS_LINE_WRITABLE : 0);
    }
    pthread_mutex_unlock(&double_lock);
}

void __trellis_line_read(const void *address, size_t bytes) { make(address, bytes, false); }
void __trellis_line_write(void *address, size_t bytes) { make(address, bytes, true); }

/* Code that is not the program's may touch closed frames: this is how libraries work on cached memory. */
static void on_fault(int signal, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    uintptr_t offset = (uintptr_t)info->si_addr - TRELLIS_REGION_BASE;
    if (offset >= region_bytes) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(signal, &plain, NULL);
        return;
    }
    if (at >= text_start && at < text_end && !plain_parts)
        double_fail("the program touched a line without a check", (void *)at);
    bool write = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
    open_page(offset / page_bytes, write);
}

static int find_text(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            text_start = info->dlpi_addr + part->p_vaddr;
            text_end = text_start + part->p_memsz;
        }
    }
    return 1; /* the program itself comes first */
}

void lines_start(void) {
    void *table = mmap((void *)TRELLIS_LINE_STATES, TRELLIS_LINE_STATES_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (table != states)
        double_fail("the table of states cannot be mapped", table);
    dl_iterate_phdr(find_text, NULL);
    const char *every = getenv("TRELLIS_DOUBLE_FORGET");
    plain_parts = getenv("TRELLIS_DOUBLE_PLAIN") != NULL;
    forget_every = every ? atol(every) : 0;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
}
