// barnes.cpp - bodies that attract each other, by the method of Barnes and Hut; C++.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     c++ -std=c++20 -O3 barnes.cpp $(pkg-config --cflags --libs trellis) -o barnes && trellis run -n 2 ./barnes
//
// The same kernels, timed section and verification as barnes.c.in.
#include "../cluster_program.hpp"
#include "barnes_kernel.h"

#include <mutex>

namespace {

struct totals {
    barnes_sums first, last;
};

struct options {
    std::size_t bodies, steps;
    double theta;
    bool thorough, spoil;
};

void add(trellis::mutex& mutex, barnes_sums& total, const barnes_sums& part) {
    const std::lock_guard guard(mutex);
    total.kinetic += part.kinetic;
    total.potential += part.potential;
    for (int i = 0; i < 3; ++i) total.momentum[i] += part.momentum[i];
}

int run(const options& chosen) {
    program::node node([&](std::size_t nodes) {
        return 3 * barnes_points_bytes(chosen.bodies) + barnes_costs_bytes(chosen.bodies, nodes) +
               pages_of(sizeof(totals));
    });
    barnes plan = barnes_plan(chosen.bodies, chosen.theta, node.me(), node.nodes());
    for (auto& points : plan.points) points = node.take<barnes_point>(barnes_points_bytes(chosen.bodies));
    plan.motions = node.take<barnes_point>(barnes_points_bytes(chosen.bodies));
    plan.costs = node.take<double>(barnes_costs_bytes(chosen.bodies, node.nodes()));
    totals* const total = node.take<totals>(sizeof(totals));
    trellis::mutex mutex = node.cluster().mutex(1);

    barnes_fill(&plan);
    node.barrier();
    barnes_step(&plan, 0);
    add(mutex, total->first, plan.sums);
    const double seconds = node.timed([&] {
        for (std::size_t step = 1; step <= chosen.steps; ++step) {
            barnes_step(&plan, step);
            node.barrier();
        }
    });

    const std::size_t last = chosen.steps + 1;
    double distance = 0;
    if (node.me() == 0) {
        if (chosen.spoil) plan.points[last % 2][chosen.bodies / 2].x += 1e-4;
        distance = barnes_distance_from_sequential(&plan, last);
    }
    node.barrier();
    barnes_step(&plan, last);
    add(mutex, total->last, plan.sums);
    node.barrier();
    bool verified = true;
    if (node.me() == 0) {
        const double error = barnes_force_error(&plan, plan.points[last % 2], chosen.thorough ? 1000 : 100);
        if (chosen.thorough) barnes_print_errors(&total->first, &total->last, error, distance);
        verified = barnes_is_verified(&total->first, &total->last, static_cast<long>(chosen.steps), error, distance);
    }
    barnes_plan_free(&plan);
    return node.finish("barnes", chosen.bodies, seconds, verified);
}

}  // namespace

int main(int argc, char** argv) {
    long bodies = 32768, steps = 4, theta_percent = 100, thorough = 0, spoil = 0;
    const option_number options_known[] = {
        {'n', "bodies", &bodies, 64, 1L << 26},
        {'s', "steps that are timed", &steps, 1, 100000},
        {'q', "theta in hundredths", &theta_percent, 10, 110},
        {'t', "verify more forces, and print all errors", &thorough, 1, 1},
        {'x', "spoil the result before it is verified", &spoil, 1, 1},
    };
    options_read(argc, argv, "barnes", options_known, std::size(options_known));
    const options chosen = {static_cast<std::size_t>(bodies), static_cast<std::size_t>(steps),
                            static_cast<double>(theta_percent) / 100, thorough != 0, spoil != 0};
    return program::main("barnes", [&] { return run(chosen); });
}
