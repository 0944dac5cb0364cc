/* Packed structures, bit-fields, unions, flexible arrays: neighbours must survive. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct __attribute__((packed)) packed {
    char tag;
    int number;
    short small;
    double real;
    char end;
};
struct fields {
    unsigned a : 3, b : 5, c : 11;
    int d : 13;
    unsigned long e : 40, f : 24;
};
union view {
    double real;
    uint64_t bits;
    unsigned char bytes[8];
};
struct flexible {
    int count;
    struct {
        short x, y;
    } points[];
};

int main(void) {
    struct packed *packed = calloc(20, sizeof *packed);
    for (int i = 0; i < 20; i++) {
        packed[i].tag = (char)('a' + i);
        packed[i].number = i * 100003;
        packed[i].small = (short)-i;
        packed[i].real = i / 4.0;
        packed[i].end = '!';
    }
    packed[5] = packed[7];
    for (int i = 0; i < 20; i++)
        printf("%c %d %d %.2f %c\n", packed[i].tag, packed[i].number, packed[i].small, packed[i].real, packed[i].end);
    struct fields *fields = malloc(4 * sizeof *fields);
    memset(fields, 0xff, 4 * sizeof *fields);
    for (int i = 0; i < 4; i++) {
        fields[i].b = (unsigned)i;
        fields[i].d = -i * 5;
        fields[i].e += (unsigned)i;
    }
    for (int i = 0; i < 4; i++)
        printf("%u %u %u %d %llx %x\n", fields[i].a, fields[i].b, fields[i].c, fields[i].d,
               (unsigned long long)fields[i].e, (unsigned)fields[i].f);
    union view *view = malloc(sizeof *view);
    view->real = -0.15625;
    view->bytes[7] ^= 0x80;
    printf("%f %llx\n", view->real, (unsigned long long)view->bits);
    struct flexible *flexible = malloc(sizeof *flexible + 6 * sizeof flexible->points[0]);
    flexible->count = 6;
    for (int i = 0; i < flexible->count; i++)
        flexible->points[i].x = (short)i, flexible->points[i].y = (short)(i * i);
    int sum = 0;
    for (int i = 0; i < flexible->count; i++)
        sum += flexible->points[i].x * flexible->points[i].y;
    printf("%d\n", sum);
    free(flexible);
    free(view);
    free(fields);
    free(packed);
}
