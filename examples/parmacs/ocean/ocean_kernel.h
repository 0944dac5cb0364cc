/* ocean_kernel.h - successive over-relaxation of a grid, in the manner of the solver of `ocean`; one processor's rows.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Laplace's equation on a square grid with fixed borders, by red-black relaxation (Young 1971): points are coloured
 * like a chessboard, and each half of a sweep sets the points of one colour from their four neighbours, which have the
 * other. So the result does not depend on the order, nor on the number of processors, to the last bit.
 *
 * The two colours lie in two arrays, so that a half sweep reads and writes memory in one direction, and all of it
 * counts. A processor owns neighbouring rows that fill whole pages; of the others' it reads one row above and one
 * below.
 *
 * Any number of processors works; more than rows, or pages of them, are idle. */
#ifndef OCEAN_KERNEL_H
#define OCEAN_KERNEL_H

#include "../program.h"

#define OCEAN_RELAXATION 1.5

/* Point (row, column) has colour (row + column) % 2 and lies at row * pitch + column / 2 of its colour's array. */
struct ocean_grid {
    size_t rows, columns, pitch;
    double *colour[2];
};

struct ocean {
    size_t processors, me;
    size_t begin, end;      /* this processor's rows */
    struct ocean_grid grid; /* shared */
};

/* ----------------------------------------------------------------------------------------------------- layout -- */

static inline size_t ocean_pitch(size_t columns) {
    return row_pitch((columns + 1) / 2);
}

/* Shared bytes of one colour. */
static inline size_t ocean_colour_bytes(size_t size) {
    return pages_of(size * ocean_pitch(size) * sizeof(double));
}

static inline struct ocean_grid ocean_grid_at(void *memory, size_t rows, size_t columns) {
    struct ocean_grid grid;
    grid.rows = rows;
    grid.columns = columns;
    grid.pitch = ocean_pitch(columns);
    grid.colour[0] = (double *)memory;
    grid.colour[1] = grid.colour[0] + pages_of(rows * grid.pitch * sizeof(double)) / sizeof(double);
    return grid;
}

/* `memory` holds twice ocean_colour_bytes. */
static inline struct ocean ocean_plan(void *memory, size_t size, size_t me, size_t processors) {
    struct ocean plan;
    plan.processors = processors;
    plan.me = me;
    plan.grid = ocean_grid_at(memory, size, size);
    plan.begin = part_begin(size, rows_per_page(plan.grid.pitch), me, processors);
    plan.end = part_begin(size, rows_per_page(plan.grid.pitch), me + 1, processors);
    return plan;
}

static inline double *ocean_point(const struct ocean_grid *grid, size_t row, size_t column) {
    return grid->colour[(row + column) % 2] + row * grid->pitch + column / 2;
}

/* ------------------------------------------------------------------------------------------------------ steps -- */

/* Sets the points of one colour in one row that is not a border. */
static inline void ocean_relax_row(const struct ocean_grid *grid, size_t row, size_t colour) {
    const size_t odd = (row + colour) % 2; /* whether these points lie in odd columns */
    const size_t first = odd ? 0 : 1, end = (grid->columns - odd) / 2; /* of those that are no border */
    double *__restrict__ const own = grid->colour[colour] + row * grid->pitch;
    const double *__restrict__ const other = grid->colour[1 - colour] + row * grid->pitch;
    const double *__restrict__ const above = other - grid->pitch, *__restrict__ const below = other + grid->pitch;
    const double *__restrict__ const left = odd ? other : other - 1, *__restrict__ const right = left + 1;
    for (size_t k = first; k < end; ++k)
        own[k] += OCEAN_RELAXATION * (0.25 * ((above[k] + below[k]) + (left[k] + right[k])) - own[k]);
}

/* Half a sweep over rows [begin, end). A barrier before and after. */
static inline void ocean_relax(const struct ocean_grid *grid, size_t begin, size_t end, size_t colour) {
    for (size_t row = begin > 1 ? begin : 1; row < end && row + 1 < grid->rows; ++row)
        ocean_relax_row(grid, row, colour);
}

static inline void ocean_step(const struct ocean *plan, size_t colour) {
    ocean_relax(&plan->grid, plan->begin, plan->end, colour);
}

/* --------------------------------------------------------------------------------------- input and verification -- */

/* The grid whose row 0 is row `offset` of a grid with `columns` columns; `offset` is even, so that colours agree. */
static inline void ocean_fill_rows(const struct ocean_grid *grid, size_t begin, size_t end, size_t offset) {
    for (size_t row = begin; row < end; ++row)
        for (size_t column = 0; column < grid->columns; ++column)
            *ocean_point(grid, row, column) = fraction_of((row + offset) * grid->columns + column);
}

static inline void ocean_fill(const struct ocean *plan) {
    ocean_fill_rows(&plan->grid, plan->begin, plan->end, 0);
}

/* The sum of squares of what the equation leaves in this processor's rows. */
static inline double ocean_residual(const struct ocean *plan) {
    const struct ocean_grid *const grid = &plan->grid;
    double sum = 0;
    for (size_t row = plan->begin > 1 ? plan->begin : 1; row < plan->end && row + 1 < grid->rows; ++row)
        for (size_t column = 1; column + 1 < grid->columns; ++column) {
            const double around = *ocean_point(grid, row - 1, column) + *ocean_point(grid, row + 1, column) +
                                  *ocean_point(grid, row, column - 1) + *ocean_point(grid, row, column + 1);
            const double left = around / 4 - *ocean_point(grid, row, column);
            sum += left * left;
        }
    return sum;
}

/* Whether rows [begin, end) are, to the last bit, what one processor makes of the beginning. A row depends on those
 * that are less than 2 * sweeps + 1 away, so only these are calculated, in private memory. */
static inline int ocean_rows_are_right(const struct ocean_grid *grid, size_t begin, size_t end, size_t sweeps) {
    const size_t halo = 2 * sweeps + 2;
    const size_t from = begin > halo ? (begin - halo) / 2 * 2 : 0;
    const size_t to = grid->rows - end > halo ? end + halo : grid->rows;
    void *const memory = private_memory(2 * pages_of((to - from) * grid->pitch * sizeof(double)));
    const struct ocean_grid alone = ocean_grid_at(memory, to - from, grid->columns);
    ocean_fill_rows(&alone, 0, to - from, from);
    for (size_t half = 0; half < 2 * sweeps; ++half) ocean_relax(&alone, 0, to - from, half % 2);
    int right = 1;
    for (size_t row = begin; row < end; ++row)
        for (size_t column = 0; column < grid->columns; ++column)
            if (*ocean_point(grid, row, column) != *ocean_point(&alone, row - from, column)) right = 0;
    free(memory);
    return right;
}

/* Whether the rows on both sides of some borders between processors are right, and of one place more; with `all`, every
 * row is looked at. */
static inline int ocean_is_right(const struct ocean *plan, size_t sweeps, int all) {
    const struct ocean_grid *const grid = &plan->grid;
    if (all || grid->rows <= 8 * sweeps) return ocean_rows_are_right(grid, 0, grid->rows, sweeps);
    const size_t borders = plan->processors - 1 < 3 ? plan->processors - 1 : 3;
    for (size_t n = 0; n <= borders; ++n) {
        const size_t part = n < borders ? 1 + n * (plan->processors - 1) / borders : 0;
        size_t row = part_begin(grid->rows, rows_per_page(grid->pitch), part, plan->processors);
        if (n == borders) row = grid->rows / 3;
        if (row < 2 || row + 2 > grid->rows) continue;
        if (!ocean_rows_are_right(grid, row - 2, row + 2, sweeps)) return 0;
    }
    return 1;
}

#endif
