/* Loops and objects of which there are two versions: ranges that move down, by a step known late, over rows, out of an
 * early end, and over memory of which a part is of the heap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { count = 517, side = 37 };
static long plain[count];

#define OWN __attribute__((noinline))

OWN static unsigned long down(const long *from, int length) {
    unsigned long sum = 0;
    for (int i = length - 1; i >= 0; i--)
        sum = sum * 3 + (unsigned long)from[i];
    return sum;
}
OWN static void stepped(char *to, long step, unsigned rounds) {
    for (unsigned i = 0; i < rounds; i++)
        to[(long)i * step] += (char)i;
}
OWN static long early(const long *from, long limit, size_t length) {
    size_t i = 0;
    while (i < length && from[i] < limit)
        i++;
    return (long)i;
}
OWN static size_t ended(const char *text) {
    size_t i = 0;
    while (text[i])
        i++;
    return i;
}
OWN static void product(const double *a, const double *b, double *c, int size) {
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            double total = 0;
            for (int k = 0; k < size; k++)
                total += a[i * size + k] * b[k * size + j];
            c[i * size + j] = total;
        }
}
OWN static void triangle(double *a, int size) {
    for (int i = 1; i < size; i++)
        for (int j = 0; j < i; j++)
            a[i * size + j] += a[j * size + i] - a[(i - 1) * size + j];
}
/* Most of the range is not there; a condition keeps the accesses where something is. */
OWN static long sparse(const long *from, const long *base, long from_index, long to_index, long low, long high) {
    long sum = 0;
    for (long i = from_index; i < to_index; i++)
        if (i >= low && i < high)
            sum += from[i] ^ base[i];
    return sum;
}
/* The heap calls take every line away in the test double. */
OWN static long allocating(long *all, int length) {
    long sum = 0;
    for (int i = 0; i < length; i++) {
        long *one = malloc(sizeof *one);
        *one = all[i];
        all[i] += i;
        sum += *one;
        free(one);
    }
    return sum;
}
OWN static void shifted(long *to, const long *from, int length) {
    for (int i = 0; i < length; i++)
        to[i] = from[i] + 1;
}
struct node {
    struct node *next;
    long value;
    short few;
    char name[11];
    double weight;
};
OWN static double listed(struct node *at) {
    double sum = 0;
    for (; at; at = at->next) {
        at->value += at->few;
        at->few ^= 5;
        at->name[3]++;
        at->weight += at->name[3];
        sum += at->weight + (double)at->value;
    }
    return sum;
}
OWN static long swapped(struct node *one, struct node *other) {
    long value = one->value;
    one->value = other->value + one->few;
    other->value = value;
    short few = one->few;
    one->few = other->few;
    other->few = few;
    return one->value * 3 + other->value;
}
OWN static unsigned long bytes(const unsigned char *from, unsigned start, unsigned end) {
    unsigned long sum = 0;
    for (unsigned char i = (unsigned char)start; i != (unsigned char)end; i++)
        sum = sum * 31 + from[i];
    return sum;
}

static void both(long *numbers, double *a, double *b, double *c, char *text, struct node *nodes) {
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < count; i++)
            numbers[i] = i * 7 % 101 + round;
        for (int i = 0; i < side * side; i++) {
            a[i] = i % 13;
            b[i] = i % 7;
        }
        memset(text, 'x', 4000);
        text[3999] = 0;
        printf("%lu ", down(numbers, count));
        stepped(text + 2000, 3, 600);
        stepped(text + 2000, -3, 600);
        stepped(text + 2000, 0, 600);
        stepped(text, 1000000000L, 1);
        stepped(text, 1L << 40, 1);
        stepped(text, 5, 0);
        printf("%zu %ld %ld ", ended(text), early(numbers, 90, count), early(numbers, 1000, count));
        product(a, b, c, side);
        triangle(c, side);
        double total = 0;
        for (int i = 0; i < side * side; i++)
            total += c[i] * i;
        printf("%g ", total);
        printf("%ld ", sparse(numbers, plain, -100000, 100000, 3, count));
        printf("%ld ", sparse(numbers, plain, -(1L << 20), 1000, 3, count) & 0xffff);
        printf("%ld ", allocating(numbers, count));
        shifted(numbers + 1, numbers, count - 1);
        printf("%lu ", down(numbers, count));
        shifted(plain, numbers, count);
        shifted(numbers, plain, count);
        printf("%lu ", down(numbers, count) + down(plain, count));
        printf("%g %ld %lu %lu\n", listed(nodes), swapped(nodes, nodes + 1), bytes((unsigned char *)text, 250, 300),
               bytes((unsigned char *)text, 1, 1));
    }
}

static struct node *chain(struct node *nodes, struct node *others, int length) {
    for (int i = 0; i < length; i++) {
        struct node one = {i + 1 < length ? (i % 2 ? &nodes[i + 1] : &others[i + 1]) : NULL, i, (short)i, "name", i};
        nodes[i] = one;
        others[i] = one;
    }
    return nodes;
}

int main(void) {
    static double a[side * side], b[side * side], c[side * side];
    static char text[4000];
    static long numbers[count];
    static struct node nodes[40];
    double *x = malloc(sizeof a), *y = malloc(sizeof b), *z = malloc(sizeof c);
    char *string = malloc(sizeof text);
    long *values = malloc(sizeof numbers);
    struct node *made = malloc(sizeof nodes);
    both(numbers, a, b, c, text, chain(nodes, nodes, 40));
    both(values, x, y, z, string, chain(made, made, 40));
    both(numbers, x, b, z, text, chain(nodes, made, 40));
    both(values, a, y, c, string, chain(made, nodes, 40));
    return 0;
}
