/* setjmp and longjmp: refused in words. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

static jmp_buf *place;

static void leave(int depth) {
    if (depth == 0)
        longjmp(*place, 3);
    leave(depth - 1);
}

int main(void) {
    place = malloc(sizeof *place);
    volatile int tries = 0;
    int value = setjmp(*place);
    tries++;
    if (value == 0)
        leave(4);
    printf("%d %d\n", value, tries);
    free(place);
}
