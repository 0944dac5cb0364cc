// ocean.cpp - relaxes a grid, in the manner of the solver of SPLASH's ocean; C++.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     c++ -std=c++20 -O3 ocean.cpp $(pkg-config --cflags --libs trellis) -o ocean && trellis run -n 2 ./ocean
//
// The same kernels, timed section and verification as ocean.c.in.
#include "../cluster_program.hpp"
#include "ocean_kernel.h"

#include <mutex>

namespace {

struct residuals {
    double before, after;
};

void sweep(program::node& node, const ocean& plan, std::size_t count) {
    for (std::size_t half = 0; half < 2 * count; ++half) {
        ocean_step(&plan, half % 2);
        node.barrier();
    }
}

int run(std::size_t size, std::size_t sweeps, bool thorough, bool spoil) {
    program::node node([&](std::size_t) { return 2 * ocean_colour_bytes(size) + pages_of(sizeof(residuals)); });
    const ocean plan = ocean_plan(node.take<double>(2 * ocean_colour_bytes(size)), size, node.me(), node.nodes());
    residuals* const total = node.take<residuals>(sizeof(residuals));
    trellis::mutex mutex = node.cluster().mutex(1);
    const auto add_residual = [&](double residuals::*which) {
        const double residual = ocean_residual(&plan);
        const std::lock_guard guard(mutex);
        total->*which += residual;
    };

    ocean_fill(&plan);
    node.barrier();
    add_residual(&residuals::before);
    node.barrier();
    sweep(node, plan, 1);
    const double seconds = node.timed([&] { sweep(node, plan, sweeps); });

    add_residual(&residuals::after);
    node.barrier();
    bool verified = true;
    if (node.me() == 0) {
        if (spoil) *ocean_point(&plan.grid, size / 3, size / 2) *= 1 + 1e-12;
        verified = ocean_is_right(&plan, sweeps + 1, thorough) && total->after < total->before;
    }
    return node.finish("ocean", size, seconds, verified);
}

}  // namespace

int main(int argc, char** argv) {
    long size = 2048, sweeps = 100, thorough = 0, spoil = 0;
    const option_number options[] = {
        {'n', "rows of the grid, with its borders", &size, 3, 65536},
        {'s', "sweeps that are timed", &sweeps, 1, 1000000},
        {'t', "verify every row", &thorough, 1, 1},
        {'x', "spoil the result before it is verified", &spoil, 1, 1},
    };
    options_read(argc, argv, "ocean", options, std::size(options));
    return program::main("ocean", [&] {
        return run(static_cast<std::size_t>(size), static_cast<std::size_t>(sweeps), thorough != 0, spoil != 0);
    });
}
