/* matmul_kernel.h - the product of two square matrices, for one processor's rows.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A matrix lies row by row; a processor owns rows that fill whole pages, of both factors and of the product. It takes
 * the second factor in bands that stay in its cache, beginning with the rows that are its own, so that no two
 * processors want the same rows at the same time.
 *
 * Any number of processors works; more than rows are idle. */
#ifndef MATMUL_KERNEL_H
#define MATMUL_KERNEL_H

#include "../product.h"
#include "../program.h"

#define MATMUL_BAND 64 /* rows of the second factor: half a megabyte where rows have a thousand elements */

struct matmul {
    size_t processors, me, size, pitch;
    size_t begin, end;        /* this processor's rows */
    double *left, *right, *product; /* shared */
};

static inline size_t matmul_bytes(size_t size) {
    return pages_of(size * row_pitch(size) * sizeof(double));
}

/* `matrices` points to three times matmul_bytes. */
static inline struct matmul matmul_plan(void *matrices, size_t size, size_t me, size_t processors) {
    struct matmul plan;
    memset(&plan, 0, sizeof plan);
    plan.processors = processors;
    plan.me = me;
    plan.size = size;
    plan.pitch = row_pitch(size);
    plan.begin = part_begin(size, rows_per_page(plan.pitch), me, processors);
    plan.end = part_begin(size, rows_per_page(plan.pitch), me + 1, processors);
    plan.left = (double *)matrices;
    plan.right = plan.left + matmul_bytes(size) / sizeof(double);
    plan.product = plan.right + matmul_bytes(size) / sizeof(double);
    return plan;
}

/* Small whole numbers, so that all sums are exact. */
static inline double matmul_input(size_t size, size_t matrix, size_t row, size_t column) {
    return (double)(bits_of((matrix * size + row) * size + column) % 17) - 8;
}

/* Sets this processor's rows of both factors, and touches those of the product. */
static inline void matmul_fill(const struct matmul *plan) {
    for (size_t row = plan->begin; row < plan->end; ++row)
        for (size_t column = 0; column < plan->size; ++column) {
            plan->left[row * plan->pitch + column] = matmul_input(plan->size, 0, row, column);
            plan->right[row * plan->pitch + column] = matmul_input(plan->size, 1, row, column);
            plan->product[row * plan->pitch + column] = 0;
        }
}

/* This processor's rows of the product. A barrier before and after. */
static inline void matmul_step(const struct matmul *plan) {
    const size_t bands = (plan->size + MATMUL_BAND - 1) / MATMUL_BAND;
    for (size_t n = 0; n < bands; ++n) {
        const size_t first = (plan->begin / MATMUL_BAND + n) % bands * MATMUL_BAND;
        const size_t depth = plan->size - first < MATMUL_BAND ? plan->size - first : MATMUL_BAND;
        product_add(plan->product + plan->begin * plan->pitch, plan->left + plan->begin * plan->pitch + first,
                    plan->right + first * plan->pitch, 1, plan->end - plan->begin, depth, plan->size, plan->pitch);
    }
}

/* Whether product * x is left * (right * x) for a vector of random whole numbers, which would be so for one wrong
 * product out of hundreds at most (Freivalds 1977). All numbers are exact. */
static inline int matmul_is_right(const struct matmul *plan, size_t seed) {
    const size_t size = plan->size, pitch = plan->pitch;
    double *const x = (double *)private_memory(size * sizeof(double));
    double *const inner = (double *)private_memory(size * sizeof(double));
    int right = 1;
    for (size_t i = 0; i < size; ++i) x[i] = (double)(bits_of(~(seed * size + i)) % 1009 + 1);
    for (size_t i = 0; i < size; ++i) {
        inner[i] = 0;
        for (size_t j = 0; j < size; ++j) inner[i] += matmul_input(size, 1, i, j) * x[j];
    }
    for (size_t i = 0; i < size; ++i) {
        double expected = 0, found = 0;
        for (size_t j = 0; j < size; ++j) {
            expected += matmul_input(size, 0, i, j) * inner[j];
            found += plan->product[i * pitch + j] * x[j];
        }
        if (expected != found) right = 0;
    }
    free(x);
    free(inner);
    return right;
}

#endif
