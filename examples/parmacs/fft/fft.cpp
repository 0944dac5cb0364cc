// fft.cpp - the Fourier transform of complex points by the six-step algorithm; C++.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     c++ -std=c++20 -O3 fft.cpp $(pkg-config --cflags --libs trellis) -o fft && trellis run -n 2 ./fft
//
// The same kernels, timed section and verification as fft.c.in.
#include "../cluster_program.hpp"
#include "fft_kernel.h"

namespace {

constexpr std::size_t page_doubles = PAGE_BYTES / sizeof(double);

void transform(program::node& node, const fft& plan) {
    fft_step_in(&plan);
    node.barrier();
    fft_step_rows(&plan, 0);
    node.barrier();
    fft_step_rows(&plan, 1);
    node.barrier();
    fft_step_out(&plan);
    node.barrier();
}

int run(std::size_t points, bool thorough, bool spoil) {
    program::node node([&](std::size_t nodes) {
        return fft_data_bytes(points) + 2 * fft_panels_bytes(points, nodes) + nodes * PAGE_BYTES;
    });
    fft plan = fft_plan(points, node.me(), node.nodes());
    plan.data = node.take<fft_value>(fft_data_bytes(points));
    for (auto& panels : plan.panels) panels = node.take<fft_value>(fft_panels_bytes(points, node.nodes()));
    double* const distances = node.take<double>(node.nodes() * PAGE_BYTES);
    fft_fill(&plan);
    const double seconds = node.timed([&] { transform(node, plan); });

    bool verified = true;
    if (node.me() == 0) {
        if (spoil) plan.data[points / 2].re += 1e-3;
        verified = fft_samples_are_right(&plan, thorough ? 16 : 2);
    }
    node.barrier();
    fft_conjugate(&plan, 1);
    node.barrier();
    transform(node, plan);
    fft_conjugate(&plan, static_cast<double>(points));
    distances[node.me() * page_doubles] = fft_distance_from_input(&plan);
    node.barrier();
    for (std::size_t i = 0; i < node.nodes(); ++i)
        if (!(distances[i * page_doubles] < 1e-10)) verified = false;
    fft_plan_free(&plan);
    return node.finish("fft", points, seconds, verified);
}

}  // namespace

int main(int argc, char** argv) {
    long log_points = 20, thorough = 0, spoil = 0;
    const option_number options[] = {
        {'m', "logarithm of the number of points", &log_points, 2, 28},
        {'t', "verify more points by the definition", &thorough, 1, 1},
        {'x', "spoil the result before it is verified", &spoil, 1, 1},
    };
    options_read(argc, argv, "fft", options, std::size(options));
    return program::main("fft", [&] { return run(std::size_t{1} << log_points, thorough != 0, spoil != 0); });
}
