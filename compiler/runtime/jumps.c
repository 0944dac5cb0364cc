/* setjmp.h in modes full and heap.
 *
 * Promises: the registers that setjmp saves lie in native memory, at a place that belongs to the address of the
 * program's jmp_buf; the pass puts that place into each call of setjmp, which must stay in the program's own
 * function. It must never jump to what no setjmp of this process saved (a copy of a jmp_buf, a buffer of another
 * process).
 */
#include "wrap.h"

#include <setjmp.h>

TRELLIS_HIDDEN void *__trellis_jump_place(void *program) { return native_place(program, sizeof(sigjmp_buf)); }

static void *saved_place(const char *function, void *program) {
    void *place = native_place(program, 0);
    if (!place)
        refuse_at_run_time(function,
                           "got a jmp_buf that setjmp has not filled at this address (a copy cannot be used)");
    return place;
}

#define LEAVE(name)                                                                                                  \
    __attribute__((noreturn)) WRAP(void, name, (struct __jmp_buf_tag program[1], int value)) {                       \
        siglongjmp(saved_place(#name, program), value);                                                              \
    }
LEAVE(longjmp)
LEAVE(_longjmp)
LEAVE(siglongjmp)
LEAVE(__longjmp_chk)
