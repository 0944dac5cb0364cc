/* barnes_kernel.h - the steps of a Barnes-Hut simulation of gravity, each for one processor's bodies.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Barnes and Hut, "A hierarchical O(N log N) force-calculation algorithm", Nature 324 (1986), with quadrupole moments
 * (Hernquist 1987) and the opening criterion of Barnes (1994): a cell of side s counts as a whole for bodies farther
 * from its centre of mass than s / theta + the distance of that from the middle of the cell. Bodies start as a Plummer
 * sphere (Aarseth, Henon, Wielen 1974) and move by leapfrog steps.
 *
 * What processors share is the positions; each reads all of them once in a step and builds the whole tree for itself,
 * in private memory. That costs a few percent of the forces, and in exchange no cell, no lock and no pointer is shared,
 * and all processors have the same tree to the last bit: results do not depend on their number. The tree is built from
 * bodies sorted along a space-filling curve (Morton order), and its cells lie in the order in which it is walked.
 *
 * Bodies are stored along that curve too, as it was at the beginning. A processor owns a run of zones, each of the
 * bodies whose positions fill a page; before every step the runs are chosen again, so that each has the same share of
 * the cost of the step before (Singh et al., "Load balancing and data locality in adaptive hierarchical N-body
 * methods", 1995). There are two arrays of positions and of costs, read and written in turn: one barrier in a step is
 * enough.
 *
 * Any number of processors works; more than zones are idle. */
#ifndef BARNES_KERNEL_H
#define BARNES_KERNEL_H

#include "../program.h"

#define BARNES_LEAF 8             /* bodies in a cell that is not divided, at most */
#define BARNES_LEVELS 21          /* of cells: 3 * 21 bits are a place on the curve */
#define BARNES_SOFTENING 0.05
#define BARNES_SECONDS_PER_STEP 0.025

struct barnes_point {
    double x, y, z, mass;
};

#define BARNES_ZONE (PAGE_BYTES / sizeof(struct barnes_point))

struct barnes_cell {
    double x, y, z, mass;   /* its centre of mass */
    double quadrupole[6];   /* xx, xy, xz, yy, yz, zz */
    double opening_squared; /* nearer bodies look into it */
    uint32_t skip;          /* the cell that follows when this one counts as a whole */
    uint32_t first, count;  /* of a leaf: its bodies in sorted order; count is 0 in other cells */
};

struct barnes_place {
    uint64_t key; /* on the curve */
    uint32_t body;
};

struct barnes_sums {
    double kinetic, potential, momentum[3];
};

struct barnes {
    size_t processors, me, bodies, zones;
    size_t begin, end; /* this processor's zones in the present step */
    double theta;
    struct barnes_point *points[2]; /* shared: positions now, and after the step */
    struct barnes_point *motions;   /* shared: velocities half a step ago; only their owner reads them */
    double *costs;                  /* shared: for odd and even steps, for each processor, the costs of all zones, of
                                       which it sets its own */
    size_t *owned_begin;            /* private: the zones of every processor in the step before, and the end */
    struct barnes_place *places, *places_spare; /* private, as all that follows */
    struct barnes_point *sorted;
    struct barnes_cell *cells;
    size_t cells_count, cells_room;
    struct barnes_sums sums; /* over this processor's bodies, at the time of the positions now */
};

/* ----------------------------------------------------------------------------------------------------- layout -- */

static inline size_t barnes_zones(size_t bodies) {
    return (bodies + BARNES_ZONE - 1) / BARNES_ZONE;
}

/* Shared bytes of each of the three arrays of bodies, and of the costs. */
static inline size_t barnes_points_bytes(size_t bodies) {
    return pages_of(bodies * sizeof(struct barnes_point));
}

static inline size_t barnes_costs_pitch(size_t bodies) {
    return pages_of(barnes_zones(bodies) * sizeof(double)) / sizeof(double);
}

static inline size_t barnes_costs_bytes(size_t bodies, size_t processors) {
    return 2 * processors * barnes_costs_pitch(bodies) * sizeof(double);
}

/* What processor `owner` spent on each zone in a step. */
static inline double *barnes_costs(const struct barnes *plan, size_t step, size_t owner) {
    return plan->costs + (step % 2 * plan->processors + owner) * barnes_costs_pitch(plan->bodies);
}

static inline struct barnes barnes_plan(size_t bodies, double theta, size_t me, size_t processors) {
    struct barnes plan;
    memset(&plan, 0, sizeof plan);
    plan.processors = processors;
    plan.me = me;
    plan.bodies = bodies;
    plan.zones = barnes_zones(bodies);
    plan.theta = theta;
    plan.owned_begin = (size_t *)private_memory((processors + 1) * sizeof(size_t));
    for (size_t i = 0; i <= processors; ++i) plan.owned_begin[i] = plan.zones * i / processors;
    plan.begin = plan.owned_begin[me];
    plan.end = plan.owned_begin[me + 1];
    plan.places = (struct barnes_place *)private_memory(bodies * sizeof(struct barnes_place));
    plan.places_spare = (struct barnes_place *)private_memory(bodies * sizeof(struct barnes_place));
    plan.sorted = (struct barnes_point *)private_memory(bodies * sizeof(struct barnes_point));
    plan.cells_room = bodies + 64;
    plan.cells = (struct barnes_cell *)private_memory(plan.cells_room * sizeof(struct barnes_cell));
    return plan;
}

static inline void barnes_plan_free(struct barnes *plan) {
    free(plan->owned_begin);
    free(plan->places);
    free(plan->places_spare);
    free(plan->sorted);
    free(plan->cells);
}

/* ------------------------------------------------------------------------------------------------------ curve -- */

/* The lowest 21 bits, each followed by two zeros. */
static inline uint64_t barnes_spread(uint64_t bits) {
    bits = (bits | bits << 32) & 0x001F00000000FFFFu;
    bits = (bits | bits << 16) & 0x001F0000FF0000FFu;
    bits = (bits | bits << 8) & 0x100F00F00F00F00Fu;
    bits = (bits | bits << 4) & 0x10C30C30C30C30C3u;
    return (bits | bits << 2) & 0x1249249249249249u;
}

/* The cube in which all bodies lie. */
static inline struct barnes_point barnes_cube(const struct barnes_point *points, size_t bodies, double *side) {
    struct barnes_point low = {HUGE_VAL, HUGE_VAL, HUGE_VAL, 0}, high = {-HUGE_VAL, -HUGE_VAL, -HUGE_VAL, 0};
    for (size_t i = 0; i < bodies; ++i) {
        const struct barnes_point it = points[i];
        if (it.x < low.x) low.x = it.x;
        if (it.y < low.y) low.y = it.y;
        if (it.z < low.z) low.z = it.z;
        if (it.x > high.x) high.x = it.x;
        if (it.y > high.y) high.y = it.y;
        if (it.z > high.z) high.z = it.z;
    }
    *side = fmax(fmax(high.x - low.x, high.y - low.y), high.z - low.z) * 1.0001 + 1e-12;
    return low;
}

/* Sorts by key, eleven bits at a time, through `spare`; the result is in `places`. */
static inline void barnes_sort(struct barnes_place *places, struct barnes_place *spare, size_t count) {
    struct barnes_place *from = places, *to = spare;
    for (unsigned low_bit = 0; low_bit < 66; low_bit += 11) {
        uint32_t next[2048] = {0}, at = 0;
        for (size_t i = 0; i < count; ++i) ++next[from[i].key >> low_bit & 2047];
        for (size_t digit = 0; digit < 2048; ++digit) {
            const uint32_t here = next[digit];
            next[digit] = at;
            at += here;
        }
        for (size_t i = 0; i < count; ++i) to[next[from[i].key >> low_bit & 2047]++] = from[i];
        struct barnes_place *const swap = from;
        from = to;
        to = swap;
    }
}

/* plan->places: all bodies along the curve. Returns the cube of the whole tree. */
static inline struct barnes_point barnes_order(struct barnes *plan, const struct barnes_point *points, double *side) {
    const struct barnes_point low = barnes_cube(points, plan->bodies, side);
    const double scale = (double)(1 << BARNES_LEVELS) / *side;
    for (size_t i = 0; i < plan->bodies; ++i) {
        const uint64_t x = (uint64_t)((points[i].x - low.x) * scale), y = (uint64_t)((points[i].y - low.y) * scale);
        const uint64_t z = (uint64_t)((points[i].z - low.z) * scale);
        plan->places[i].key = barnes_spread(x) << 2 | barnes_spread(y) << 1 | barnes_spread(z);
        plan->places[i].body = (uint32_t)i;
    }
    barnes_sort(plan->places, plan->places_spare, plan->bodies);
    return low;
}

/* ------------------------------------------------------------------------------------------------------- tree -- */

/* Adds what a mass at (x, y, z) from the centre of mass does to the quadrupole moment. */
static inline void barnes_add_quadrupole(double *quadrupole, double mass, double x, double y, double z) {
    const double squared = x * x + y * y + z * z;
    quadrupole[0] += mass * (3 * x * x - squared);
    quadrupole[1] += mass * 3 * x * y;
    quadrupole[2] += mass * 3 * x * z;
    quadrupole[3] += mass * (3 * y * y - squared);
    quadrupole[4] += mass * 3 * y * z;
    quadrupole[5] += mass * (3 * z * z - squared);
}

static inline void barnes_leaf_moments(const struct barnes *plan, struct barnes_cell *cell) {
    const struct barnes_point *const bodies = plan->sorted + cell->first;
    for (uint32_t i = 0; i < cell->count; ++i) {
        cell->mass += bodies[i].mass;
        cell->x += bodies[i].mass * bodies[i].x;
        cell->y += bodies[i].mass * bodies[i].y;
        cell->z += bodies[i].mass * bodies[i].z;
    }
    cell->x /= cell->mass;
    cell->y /= cell->mass;
    cell->z /= cell->mass;
    for (uint32_t i = 0; i < cell->count; ++i)
        barnes_add_quadrupole(cell->quadrupole, bodies[i].mass, bodies[i].x - cell->x, bodies[i].y - cell->y,
                              bodies[i].z - cell->z);
}

/* The moments of cell `number` from those of its children, which follow it. */
static inline void barnes_inner_moments(const struct barnes *plan, size_t number) {
    struct barnes_cell *const cell = plan->cells + number;
    for (size_t child = number + 1; child < cell->skip; child = plan->cells[child].skip) {
        const struct barnes_cell *const it = plan->cells + child;
        cell->mass += it->mass;
        cell->x += it->mass * it->x;
        cell->y += it->mass * it->y;
        cell->z += it->mass * it->z;
    }
    cell->x /= cell->mass;
    cell->y /= cell->mass;
    cell->z /= cell->mass;
    for (size_t child = number + 1; child < cell->skip; child = plan->cells[child].skip) {
        const struct barnes_cell *const it = plan->cells + child;
        for (int i = 0; i < 6; ++i) cell->quadrupole[i] += it->quadrupole[i];
        barnes_add_quadrupole(cell->quadrupole, it->mass, it->x - cell->x, it->y - cell->y, it->z - cell->z);
    }
}

static inline size_t barnes_new_cell(struct barnes *plan) {
    if (plan->cells_count == plan->cells_room) {
        struct barnes_cell *const more = (struct barnes_cell *)private_memory(2 * plan->cells_room * sizeof *more);
        memcpy(more, plan->cells, plan->cells_count * sizeof *more);
        free(plan->cells);
        plan->cells = more;
        plan->cells_room *= 2;
    }
    memset(plan->cells + plan->cells_count, 0, sizeof *plan->cells);
    return plan->cells_count++;
}

/* The cell of the sorted bodies [first, end), which is the cube at `low`, and all cells below it. */
static inline void barnes_grow(struct barnes *plan, uint32_t first, uint32_t end, int level, struct barnes_point low,
                               double side) {
    const size_t number = barnes_new_cell(plan);
    if (end - first <= BARNES_LEAF || level == BARNES_LEVELS) {
        plan->cells[number].first = first;
        plan->cells[number].count = end - first;
        barnes_leaf_moments(plan, plan->cells + number);
    } else {
        const int low_bit = 3 * (BARNES_LEVELS - 1 - level);
        const double half = side / 2;
        while (first < end) {
            const uint64_t octant = plan->places[first].key >> low_bit & 7;
            uint32_t last = first + 1;
            while (last < end && (plan->places[last].key >> low_bit & 7) == octant) ++last;
            struct barnes_point corner = low;
            if (octant & 4) corner.x += half;
            if (octant & 2) corner.y += half;
            if (octant & 1) corner.z += half;
            barnes_grow(plan, first, last, level + 1, corner, half);
            first = last;
        }
        plan->cells[number].skip = (uint32_t)plan->cells_count;
        barnes_inner_moments(plan, number);
    }
    struct barnes_cell *const cell = plan->cells + number;
    cell->skip = (uint32_t)plan->cells_count;
    const double x = cell->x - low.x - side / 2, y = cell->y - low.y - side / 2, z = cell->z - low.z - side / 2;
    const double opening = side / plan->theta + sqrt(x * x + y * y + z * z);
    cell->opening_squared = opening * opening;
}

/* The tree of all bodies, from the shared positions. */
static inline void barnes_build(struct barnes *plan, const struct barnes_point *points) {
    double side;
    const struct barnes_point low = barnes_order(plan, points, &side);
    for (size_t i = 0; i < plan->bodies; ++i) plan->sorted[i] = points[plan->places[i].body];
    plan->cells_count = 0;
    barnes_grow(plan, 0, (uint32_t)plan->bodies, 0, low, side);
}

/* ------------------------------------------------------------------------------------------------------ force -- */

struct barnes_force {
    double x, y, z, potential;
    size_t interactions;
};

/* What the bodies and cells of the tree do to a body at `at`, except body `self`. */
static inline struct barnes_force barnes_force_at(const struct barnes *plan, struct barnes_point at, size_t self) {
    struct barnes_force force = {0, 0, 0, 0, 0};
    const double softening_squared = BARNES_SOFTENING * BARNES_SOFTENING;
    for (size_t number = 0; number < plan->cells_count;) {
        const struct barnes_cell *const cell = plan->cells + number;
        const double x = cell->x - at.x, y = cell->y - at.y, z = cell->z - at.z;
        const double squared = x * x + y * y + z * z;
        if (squared > cell->opening_squared) {
            const double *const q = cell->quadrupole;
            const double inverse = 1 / sqrt(squared + softening_squared), inverse2 = inverse * inverse;
            const double single = cell->mass * inverse, inverse5 = inverse2 * inverse2 * inverse;
            const double qx = q[0] * x + q[1] * y + q[2] * z, qy = q[1] * x + q[3] * y + q[4] * z;
            const double qz = q[2] * x + q[4] * y + q[5] * z;
            const double along = 0.5 * (qx * x + qy * y + qz * z) * inverse5;
            const double radial = (single + 5 * along) * inverse2;
            force.x += radial * x - qx * inverse5;
            force.y += radial * y - qy * inverse5;
            force.z += radial * z - qz * inverse5;
            force.potential -= single + along;
            ++force.interactions;
            number = cell->skip;
            continue;
        }
        for (uint32_t i = cell->first; i < cell->first + cell->count; ++i) {
            if (plan->places[i].body == self) continue;
            const struct barnes_point body = plan->sorted[i];
            const double dx = body.x - at.x, dy = body.y - at.y, dz = body.z - at.z;
            const double inverse = 1 / sqrt(dx * dx + dy * dy + dz * dz + softening_squared);
            const double single = body.mass * inverse, radial = single * inverse * inverse;
            force.x += radial * dx;
            force.y += radial * dy;
            force.z += radial * dz;
            force.potential -= single;
            ++force.interactions;
        }
        ++number;
    }
    return force;
}

/* ------------------------------------------------------------------------------------------------------ steps -- */

/* Deals the zones out by what they cost in step `before_this`; every processor calculates the same. */
static inline void barnes_balance(struct barnes *plan, size_t before_this) {
    double total = 0, before = 0;
    for (size_t owner = 0; owner < plan->processors; ++owner)
        for (size_t zone = plan->owned_begin[owner]; zone < plan->owned_begin[owner + 1]; ++zone)
            total += barnes_costs(plan, before_this, owner)[zone];
    size_t next = 0;
    for (size_t owner = 0; owner < plan->processors; ++owner) {
        const size_t end = plan->owned_begin[owner + 1];
        for (size_t zone = plan->owned_begin[owner]; zone < end; ++zone) {
            const double cost = barnes_costs(plan, before_this, owner)[zone];
            /* A zone goes to the processor in whose share its middle lies. */
            size_t to = (size_t)((before + cost / 2) / total * (double)plan->processors);
            if (to >= plan->processors) to = plan->processors - 1;
            before += cost;
            plan->places_spare[zone].body = (uint32_t)to; /* room that is free between two sorts */
        }
    }
    for (size_t owner = 0; owner < plan->processors; ++owner) {
        plan->owned_begin[owner] = next;
        while (next < plan->zones && plan->places_spare[next].body == owner) ++next;
    }
    plan->owned_begin[plan->processors] = plan->zones;
    plan->begin = plan->owned_begin[plan->me];
    plan->end = plan->owned_begin[plan->me + 1];
}

/* One step: from points[now] to points[1 - now]. Barriers before and after. In step 0 the motions are those at the time
 * of the positions, and the zones are dealt out by number. */
static inline void barnes_step(struct barnes *plan, size_t step) {
    const struct barnes_point *const points = plan->points[step % 2];
    struct barnes_point *const moved = plan->points[1 - step % 2];
    const double half = BARNES_SECONDS_PER_STEP / 2, first_half = step == 0 ? 0 : half;
    double *const costs = barnes_costs(plan, step, plan->me);
    if (step > 0) barnes_balance(plan, step - 1);
    barnes_build(plan, points);
    memset(&plan->sums, 0, sizeof plan->sums);
    for (size_t zone = plan->begin; zone < plan->end; ++zone) {
        const size_t end = (zone + 1) * BARNES_ZONE < plan->bodies ? (zone + 1) * BARNES_ZONE : plan->bodies;
        size_t interactions = 0;
        for (size_t i = zone * BARNES_ZONE; i < end; ++i) {
            const struct barnes_point at = points[i];
            const struct barnes_force force = barnes_force_at(plan, at, i);
            struct barnes_point *const motion = plan->motions + i;
            const double x = motion->x + force.x * first_half, y = motion->y + force.y * first_half;
            const double z = motion->z + force.z * first_half;
            plan->sums.kinetic += at.mass * (x * x + y * y + z * z) / 2;
            plan->sums.potential += at.mass * force.potential / 2;
            plan->sums.momentum[0] += at.mass * x;
            plan->sums.momentum[1] += at.mass * y;
            plan->sums.momentum[2] += at.mass * z;
            motion->x = x + force.x * half;
            motion->y = y + force.y * half;
            motion->z = z + force.z * half;
            moved[i].x = at.x + motion->x * BARNES_SECONDS_PER_STEP;
            moved[i].y = at.y + motion->y * BARNES_SECONDS_PER_STEP;
            moved[i].z = at.z + motion->z * BARNES_SECONDS_PER_STEP;
            moved[i].mass = at.mass;
            interactions += force.interactions;
        }
        costs[zone] = (double)interactions + 1;
    }
}

/* --------------------------------------------------------------------------------------- input and verification -- */

/* A random direction, as long as `length`. */
static inline struct barnes_point barnes_direction(uint64_t seed, double length) {
    const double pi = 3.14159265358979323846;
    const double z = 2 * fraction_of(seed) - 1, angle = 2 * pi * fraction_of(seed + 1), across = sqrt(1 - z * z);
    const struct barnes_point direction = {length * across * cos(angle), length * across * sin(angle), length * z, 0};
    return direction;
}

/* Body `number` of a Plummer sphere of mass 1 and energy -1/4. */
static inline void barnes_input(size_t number, size_t bodies, struct barnes_point *point, struct barnes_point *motion) {
    const double scale = 3 * 3.14159265358979323846 / 16;
    const uint64_t seed = (uint64_t)number << 16;
    const double within = 0.999 * fraction_of(seed);
    const double radius = 1 / sqrt(pow(within > 1e-10 ? within : 1e-10, -2.0 / 3) - 1);
    double speed = 0, limit = 1;
    for (uint64_t attempt = 8; limit > speed * speed * pow(1 - speed * speed, 3.5); attempt += 2) {
        speed = fraction_of(seed + attempt); /* by rejection: von Neumann */
        limit = 0.1 * fraction_of(seed + attempt + 1);
    }
    speed *= sqrt(2.0) / pow(1 + radius * radius, 0.25);
    *point = barnes_direction(seed + 1, radius * scale);
    *motion = barnes_direction(seed + 4, speed / sqrt(scale));
    point->mass = 1 / (double)bodies;
}

/* Sets the bodies of this processor's zones, stored along the curve, at rest as a whole; and touches its costs. */
static inline void barnes_fill(struct barnes *plan) {
    struct barnes_point *const points = (struct barnes_point *)private_memory(plan->bodies * sizeof *points);
    struct barnes_point *const motions = (struct barnes_point *)private_memory(plan->bodies * sizeof *motions);
    struct barnes_point middle = {0, 0, 0, 0}, drift = {0, 0, 0, 0};
    for (size_t i = 0; i < plan->bodies; ++i) {
        barnes_input(i, plan->bodies, points + i, motions + i);
        middle.x += points[i].x / (double)plan->bodies;
        middle.y += points[i].y / (double)plan->bodies;
        middle.z += points[i].z / (double)plan->bodies;
        drift.x += motions[i].x / (double)plan->bodies;
        drift.y += motions[i].y / (double)plan->bodies;
        drift.z += motions[i].z / (double)plan->bodies;
    }
    double side;
    (void)barnes_order(plan, points, &side);
    for (size_t i = plan->begin * BARNES_ZONE; i < plan->end * BARNES_ZONE && i < plan->bodies; ++i) {
        const struct barnes_point point = points[plan->places[i].body], motion = motions[plan->places[i].body];
        const struct barnes_point here = {point.x - middle.x, point.y - middle.y, point.z - middle.z, point.mass};
        const struct barnes_point moves = {motion.x - drift.x, motion.y - drift.y, motion.z - drift.z, 0};
        plan->points[0][i] = plan->points[1][i] = here;
        plan->motions[i] = moves;
    }
    const size_t pitch = barnes_costs_pitch(plan->bodies);
    for (size_t step = 0; step < 2; ++step) memset(barnes_costs(plan, step, plan->me), 0, pitch * sizeof(double));
    free(points);
    free(motions);
}

/* The same steps on one processor, in private memory, and the largest distance of a body from where it is there. */
static inline double barnes_distance_from_sequential(const struct barnes *plan, size_t steps) {
    struct barnes alone = barnes_plan(plan->bodies, plan->theta, 0, 1);
    const size_t bytes = 3 * barnes_points_bytes(plan->bodies) + barnes_costs_bytes(plan->bodies, 1);
    char *const memory = (char *)private_memory(bytes);
    alone.points[0] = (struct barnes_point *)(void *)memory;
    alone.points[1] = (struct barnes_point *)(void *)(memory + barnes_points_bytes(plan->bodies));
    alone.motions = (struct barnes_point *)(void *)(memory + 2 * barnes_points_bytes(plan->bodies));
    alone.costs = (double *)(void *)(memory + 3 * barnes_points_bytes(plan->bodies));
    barnes_fill(&alone);
    for (size_t step = 0; step < steps; ++step) barnes_step(&alone, step);
    const struct barnes_point *const here = plan->points[steps % 2], *const there = alone.points[steps % 2];
    double most = 0;
    for (size_t i = 0; i < plan->bodies; ++i) {
        const double distance =
            fabs(here[i].x - there[i].x) + fabs(here[i].y - there[i].y) + fabs(here[i].z - there[i].z);
        if (!(distance <= most)) most = distance;
    }
    barnes_plan_free(&alone);
    free(memory);
    return most;
}

/* The error of the tree's forces on some bodies against the sum over all bodies, as a root mean square of relative
 * errors. The tree must be that of `points`. */
static inline double barnes_force_error(const struct barnes *plan, const struct barnes_point *points, size_t samples) {
    double sum = 0;
    for (size_t sample = 0; sample < samples; ++sample) {
        const size_t self = bits_of(sample) % plan->bodies;
        const struct barnes_point at = points[self];
        const struct barnes_force force = barnes_force_at(plan, at, self);
        double x = 0, y = 0, z = 0;
        for (size_t i = 0; i < plan->bodies; ++i) {
            const double dx = points[i].x - at.x, dy = points[i].y - at.y, dz = points[i].z - at.z;
            const double squared = dx * dx + dy * dy + dz * dz + BARNES_SOFTENING * BARNES_SOFTENING;
            const double radial = points[i].mass / (squared * sqrt(squared));
            x += radial * dx;
            y += radial * dy;
            z += radial * dz;
        }
        const double fx = force.x - x, fy = force.y - y, fz = force.z - z;
        sum += (fx * fx + fy * fy + fz * fz) / (x * x + y * y + z * z + 1e-30);
    }
    return sqrt(sum / (double)samples);
}

static inline double barnes_energy(const struct barnes_sums *sums) {
    return sums->kinetic + sums->potential;
}

static inline double barnes_momentum(const struct barnes_sums *sums) {
    return fabs(sums->momentum[0]) + fabs(sums->momentum[1]) + fabs(sums->momentum[2]);
}

static inline void barnes_print_errors(const struct barnes_sums *first, const struct barnes_sums *last,
                                       double force_error, double distance) {
    printf("energy %.6f, change %.2e; momentum %.2e; error of forces %.2e; distance from one processor %.2e\n",
           barnes_energy(first), barnes_energy(last) - barnes_energy(first), barnes_momentum(last), force_error,
           distance);
}

/* The method keeps energy and momentum nearly, so their limits are those of the method; the distance is one of
 * rounding, and is 0 where the compiler rounds the same way in both runs. */
static inline int barnes_is_verified(const struct barnes_sums *first, const struct barnes_sums *last, long steps,
                                     double force_error, double distance) {
    const double change = fabs(barnes_energy(last) - barnes_energy(first));
    return change <= 0.01 * fabs(barnes_energy(first)) && barnes_momentum(last) <= 1e-3 * sqrt((double)steps) &&
           force_error <= 0.03 && distance <= 1e-7;
}

#endif
