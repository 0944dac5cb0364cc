// matmul.cpp - the product of two dense matrices; C++.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     c++ -std=c++20 -O3 matmul.cpp $(pkg-config --cflags --libs trellis) -o matmul && trellis run -n 2 ./matmul
//
// The same kernels, timed section and verification as matmul.c.in.
#include "../cluster_program.hpp"
#include "matmul_kernel.h"

namespace {

int run(std::size_t size, bool thorough, bool spoil) {
    program::node node([&](std::size_t) { return 3 * matmul_bytes(size); });
    const matmul plan = matmul_plan(node.take<double>(3 * matmul_bytes(size)), size, node.me(), node.nodes());
    matmul_fill(&plan);
    const double seconds = node.timed([&] {
        matmul_step(&plan);
        node.barrier();
    });

    bool verified = true;
    if (node.me() == 0) {
        if (spoil) plan.product[(size - 1) * plan.pitch + size / 2] += 1;
        for (std::size_t seed = 0; seed < (thorough ? 10u : 2u); ++seed)
            if (!matmul_is_right(&plan, seed)) verified = false;
    }
    return node.finish("matmul", size, seconds, verified);
}

}  // namespace

int main(int argc, char** argv) {
    long size = 1024, thorough = 0, spoil = 0;
    const option_number options[] = {
        {'n', "rows of a matrix", &size, 1, 32768},
        {'t', "verify with more vectors", &thorough, 1, 1},
        {'x', "spoil the result before it is verified", &spoil, 1, 1},
    };
    options_read(argc, argv, "matmul", options, std::size(options));
    return program::main("matmul", [&] { return run(static_cast<std::size_t>(size), thorough != 0, spoil != 0); });
}
