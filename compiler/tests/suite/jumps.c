/* setjmp and longjmp: buffers on the heap, in a frame, in a static variable; nested, again and again, with a signal
 * mask. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf *place;
static sigjmp_buf masked;

static void leave(int depth) {
    char filler[100];
    memset(filler, depth, sizeof filler);
    if (depth == 0)
        longjmp(*place, 3);
    leave(depth - 1);
    printf("never %d\n", filler[7]);
}

/* As interpreters do: each level has its own buffer, chained. */
struct level {
    struct level *before;
    jmp_buf buffer;
    volatile int status;
};
static struct level *top;

static int protect(void (*run)(int), int with) {
    struct level level = {.before = top, .status = 0};
    top = &level;
    if (setjmp(level.buffer) == 0)
        run(with);
    top = level.before;
    return level.status;
}
static void throw_status(int status) {
    top->status = status;
    longjmp(top->buffer, 1);
}
static void nest(int depth) {
    if (depth > 0)
        printf("inner %d\n", protect(nest, depth - 1));
    throw_status(depth + 10);
}

static int compare(const void *left, const void *right) {
    int one = *(const int *)left, other = *(const int *)right;
    if (one == 5 || other == 5)
        longjmp(*place, 5);
    return one - other;
}

int main(void) {
    place = malloc(sizeof *place);
    volatile int tries = 0;
    int value = setjmp(*place);
    tries++;
    if (value == 0)
        leave(4);
    printf("%d %d\n", value, tries);
    if (tries < 3)
        leave(9);
    printf("outer %d\n", protect(nest, 5));
    int numbers[] = {9, 1, 5, 3, 7};
    if (setjmp(*place) == 0)
        qsort(numbers, 5, sizeof *numbers, compare);
    else
        printf("left a sort\n");
    volatile int rounds = 0;
    if (sigsetjmp(masked, 1) < 4) {
        rounds++;
        siglongjmp(masked, rounds);
    }
    printf("%d rounds\n", rounds);
    free(place);
}
