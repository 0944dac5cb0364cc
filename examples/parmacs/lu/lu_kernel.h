/* lu_kernel.h - the steps of a blocked LU factorisation, each for one processor's blocks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The matrix is divided into square blocks, each with one owner, who alone writes it (Woo, Singh, Hennessy, "The
 * performance advantages of integrating block data transfer in cache-coherent multiprocessors", ASPLOS 1994). No row
 * is exchanged, so the matrix must be one that does without: here it is diagonally dominant.
 *
 * Blocks of row s and column s that lie at or behind the diagonal are shell s; step s makes them final. LU_PANEL steps
 * are a panel: within one, a shell is brought up to date when its turn comes, and what lies behind the panel once, when
 * the panel is complete. So a block is written a few times, not at every step, and stays in the cache for all products
 * of a panel.
 *
 * Owners are dealt out along diagonals: the blocks of a shell belong to all processors in equal parts. Two layouts:
 *   contiguous  the blocks of an owner lie together, in the order of the shells, from a page on; whoever reads the
 *               final blocks of a shell reads each owner's from front to back, and no page has two writers
 *   rows        the matrix lies row by row, as an array in C does; a page holds pieces of several owners' blocks
 * The size need not be a multiple of the block. Any number of processors works. */
#ifndef LU_KERNEL_H
#define LU_KERNEL_H

#include "../product.h"
#include "../program.h"

#define LU_PANEL 8
#define LU_BLOCK_MAX 256

struct lu_block {
    size_t row, column; /* in blocks */
};

struct lu {
    size_t processors, me, size, block, blocks;
    size_t grid_rows, grid_columns;
    size_t pitch;           /* from one row of a block to the next, in elements */
    double *matrix;         /* shared */
    double **at;            /* private: the first element of block (row, column), at row * blocks + column */
    struct lu_block *own;   /* private: the blocks of this processor, in the order of the shells */
    size_t *own_begin;      /* private: where each shell begins in `own`; and the end */
};

/* ----------------------------------------------------------------------------------------------------- layout -- */

static inline size_t lu_owner(const struct lu *plan, size_t row, size_t column) {
    const size_t grid_row = row % plan->grid_rows;
    const size_t grid_column = (column + row / plan->grid_rows) % plan->grid_columns;
    return grid_row * plan->grid_columns + grid_column;
}

/* The `number`th block of shell s: down the column, then along the row. */
static inline struct lu_block lu_in_shell(const struct lu *plan, size_t s, size_t number) {
    const size_t down = plan->blocks - s;
    const struct lu_block in_column = {s + number, s}, in_row = {s, s + 1 + number - down};
    return number < down ? in_column : in_row;
}

static inline size_t lu_shell_blocks(const struct lu *plan, size_t s) {
    return 2 * (plan->blocks - s) - 1;
}

/* Shared bytes for either layout. */
static inline size_t lu_bytes(size_t size, size_t block, size_t processors) {
    const size_t blocks = (size + block - 1) / block;
    const size_t contiguous = blocks * blocks * block * block * sizeof(double) + processors * PAGE_BYTES;
    return pages_of(contiguous);
}

static inline void lu_lay_out_contiguous(struct lu *plan) {
    const size_t elements = plan->block * plan->block;
    double *next = plan->matrix;
    plan->pitch = plan->block;
    for (size_t owner = 0; owner < plan->processors; ++owner) {
        next = (double *)page_aligned(next);
        for (size_t s = 0; s < plan->blocks; ++s)
            for (size_t n = 0; n < lu_shell_blocks(plan, s); ++n) {
                const struct lu_block it = lu_in_shell(plan, s, n);
                if (lu_owner(plan, it.row, it.column) != owner) continue;
                plan->at[it.row * plan->blocks + it.column] = next;
                next += elements;
            }
    }
}

static inline void lu_lay_out_rows(struct lu *plan) {
    plan->pitch = plan->size;
    for (size_t row = 0; row < plan->blocks; ++row)
        for (size_t column = 0; column < plan->blocks; ++column)
            plan->at[row * plan->blocks + column] = plan->matrix + (row * plan->size + column) * plan->block;
}

static inline struct lu lu_plan(double *matrix, size_t size, size_t block, int by_rows, size_t me, size_t processors) {
    struct lu plan;
    memset(&plan, 0, sizeof plan);
    plan.processors = processors;
    plan.me = me;
    plan.size = size;
    plan.block = block;
    plan.blocks = (size + block - 1) / block;
    plan.grid_rows = 1;
    for (size_t rows = 1; rows * rows <= processors; ++rows)
        if (processors % rows == 0) plan.grid_rows = rows;
    plan.grid_columns = processors / plan.grid_rows;
    plan.matrix = matrix;
    const size_t all = plan.blocks * plan.blocks;
    plan.at = (double **)private_memory(all * sizeof *plan.at);
    plan.own = (struct lu_block *)private_memory(all * sizeof *plan.own);
    plan.own_begin = (size_t *)private_memory((plan.blocks + 1) * sizeof *plan.own_begin);
    if (by_rows) lu_lay_out_rows(&plan);
    else lu_lay_out_contiguous(&plan);
    size_t count = 0;
    for (size_t s = 0; s < plan.blocks; ++s) {
        plan.own_begin[s] = count;
        for (size_t n = 0; n < lu_shell_blocks(&plan, s); ++n) {
            const struct lu_block it = lu_in_shell(&plan, s, n);
            if (lu_owner(&plan, it.row, it.column) == me) plan.own[count++] = it;
        }
    }
    plan.own_begin[plan.blocks] = count;
    return plan;
}

static inline void lu_plan_free(struct lu *plan) {
    free(plan->at);
    free(plan->own);
    free(plan->own_begin);
}

static inline double *lu_at(const struct lu *plan, size_t row, size_t column) {
    return plan->at[row * plan->blocks + column];
}

/* How many rows, or columns, block `number` has. */
static inline size_t lu_extent(const struct lu *plan, size_t number) {
    const size_t left = plan->size - number * plan->block;
    return left < plan->block ? left : plan->block;
}

/* ----------------------------------------------------------------------------------------------------- one block -- */

/* a becomes its factors: L below the diagonal, which itself is 1, and U. */
static inline void lu_factor(double *a, size_t size, size_t pitch) {
    for (size_t k = 0; k < size; ++k) {
        const double pivot = 1 / a[k * pitch + k];
        for (size_t i = k + 1; i < size; ++i) {
            const double factor = a[i * pitch + k] *= pivot;
            for (size_t j = k + 1; j < size; ++j) a[i * pitch + j] -= factor * a[k * pitch + j];
        }
    }
}

/* a becomes a * U^-1, with the U of a factored block. */
static inline void lu_divide_column(double *__restrict__ a, const double *__restrict__ factors, size_t rows,
                                    size_t size, size_t pitch) {
    for (size_t i = 0; i < rows; ++i) {
        double *const row = a + i * pitch;
        for (size_t k = 0; k < size; ++k) {
            const double factor = row[k] /= factors[k * pitch + k];
            for (size_t j = k + 1; j < size; ++j) row[j] -= factor * factors[k * pitch + j];
        }
    }
}

/* a becomes L^-1 * a, with the L of a factored block. */
static inline void lu_divide_row(double *__restrict__ a, const double *__restrict__ factors, size_t size,
                                 size_t columns, size_t pitch) {
    for (size_t k = 0; k < size; ++k)
        for (size_t i = k + 1; i < size; ++i) {
            const double factor = factors[i * pitch + k];
            for (size_t j = 0; j < columns; ++j) a[i * pitch + j] -= factor * a[k * pitch + j];
        }
}

/* ------------------------------------------------------------------------------------------------------ steps -- */

/* Block `it` minus the products of steps [from, to). */
static inline void lu_bring_up_to_date(const struct lu *plan, struct lu_block it, size_t from, size_t to) {
    double *const block = lu_at(plan, it.row, it.column);
    const size_t rows = lu_extent(plan, it.row), columns = lu_extent(plan, it.column);
    for (size_t k = from; k < to; ++k)
        product_add(block, lu_at(plan, it.row, k), lu_at(plan, k, it.column), -1, rows, plan->block, columns,
                    plan->pitch);
}

/* The first half of step s: shell s has all products, and its first block is factored. A barrier follows. */
static inline void lu_step_update(const struct lu *plan, size_t s) {
    const size_t panel = s / LU_PANEL * LU_PANEL;
    for (size_t n = plan->own_begin[s]; n < plan->own_begin[s + 1]; ++n) {
        const struct lu_block it = plan->own[n];
        lu_bring_up_to_date(plan, it, panel, s);
        if (it.row == it.column) lu_factor(lu_at(plan, s, s), lu_extent(plan, s), plan->pitch);
    }
}

/* The second half: the rest of shell s becomes final. A barrier follows, and then, at the end of a panel,
 * lu_step_panel. */
static inline void lu_step_divide(const struct lu *plan, size_t s) {
    const double *const factors = lu_at(plan, s, s);
    const size_t size = lu_extent(plan, s);
    for (size_t n = plan->own_begin[s]; n < plan->own_begin[s + 1]; ++n) {
        const struct lu_block it = plan->own[n];
        double *const block = lu_at(plan, it.row, it.column);
        if (it.row > s) lu_divide_column(block, factors, lu_extent(plan, it.row), size, plan->pitch);
        else if (it.column > s) lu_divide_row(block, factors, size, lu_extent(plan, it.column), plan->pitch);
    }
}

/* After step s, if it ends a panel: what lies behind gets the panel's products. No barrier has to follow. */
static inline void lu_step_panel(const struct lu *plan, size_t s) {
    if ((s + 1) % LU_PANEL != 0) return;
    for (size_t n = plan->own_begin[s + 1]; n < plan->own_begin[plan->blocks]; ++n)
        lu_bring_up_to_date(plan, plan->own[n], s + 1 - LU_PANEL, s + 1);
}

/* --------------------------------------------------------------------------------------- input and verification -- */

static inline double lu_input(size_t size, size_t row, size_t column) {
    const double value = 2 * fraction_of(row * size + column) - 1;
    return row == column ? value + (double)size : value;
}

/* Sets the blocks of this processor, all of each, so that they are where they are written. */
static inline void lu_fill(const struct lu *plan) {
    for (size_t n = 0; n < plan->own_begin[plan->blocks]; ++n) {
        const struct lu_block it = plan->own[n];
        double *const block = lu_at(plan, it.row, it.column);
        const size_t rows = lu_extent(plan, it.row), columns = lu_extent(plan, it.column);
        for (size_t i = 0; i < rows; ++i)
            for (size_t j = 0; j < columns; ++j)
                block[i * plan->pitch + j] =
                    lu_input(plan->size, it.row * plan->block + i, it.column * plan->block + j);
    }
}

static inline double lu_element(const struct lu *plan, size_t row, size_t column) {
    return lu_at(plan, row / plan->block, column / plan->block)[row % plan->block * plan->pitch + column % plan->block];
}

/* The largest element of L U x - A x, for a random x, by what rounding may leave of it: below 1 if the factors are
 * right, and, as every element of them counts with a random weight, far above if one of them is not. */
static inline double lu_residual(const struct lu *plan, size_t seed) {
    const size_t size = plan->size;
    double *const x = (double *)private_memory(size * sizeof(double));
    double *const upper = (double *)private_memory(size * sizeof(double));
    double most = 0;
    for (size_t i = 0; i < size; ++i) x[i] = 1 + fraction_of((seed + 7) * size * size + i);
    for (size_t i = 0; i < size; ++i) {
        upper[i] = 0;
        for (size_t j = i; j < size; ++j) upper[i] += lu_element(plan, i, j) * x[j];
    }
    for (size_t i = 0; i < size; ++i) {
        double product = upper[i], expected = 0;
        for (size_t j = 0; j < i; ++j) product += lu_element(plan, i, j) * upper[j];
        for (size_t j = 0; j < size; ++j) expected += lu_input(size, i, j) * x[j];
        const double residual = fabs(product - expected) / (2.2e-16 * 64 * (double)size * sqrt((double)size));
        if (!(residual <= most)) most = residual;
    }
    free(x);
    free(upper);
    return most;
}

#endif
