// lu.cpp - the LU factorisation of a dense matrix in blocks; C++.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     c++ -std=c++20 -O3 lu.cpp $(pkg-config --cflags --libs trellis) -o lu && trellis run -n 2 ./lu
//
// The same kernels, timed section and verification as lu.c.in.
#include "../cluster_program.hpp"
#include "lu_kernel.h"

namespace {

void factor(program::node& node, const lu& plan) {
    for (std::size_t s = 0; s < plan.blocks; ++s) {
        lu_step_update(&plan, s);
        node.barrier();
        lu_step_divide(&plan, s);
        node.barrier();
        lu_step_panel(&plan, s);
    }
}

int run(std::size_t size, std::size_t block, bool by_rows, bool thorough, bool spoil) {
    program::node node([&](std::size_t nodes) { return lu_bytes(size, block, nodes); });
    double* const matrix = node.take<double>(lu_bytes(size, block, node.nodes()));
    lu plan = lu_plan(matrix, size, block, by_rows, node.me(), node.nodes());
    lu_fill(&plan);
    const double seconds = node.timed([&] { factor(node, plan); });

    bool verified = true;
    if (node.me() == 0) {
        if (spoil) *lu_at(&plan, plan.blocks - 1, plan.blocks / 2) += 1e-6;
        for (std::size_t seed = 0; seed < (thorough ? 8u : 1u); ++seed)
            if (!(lu_residual(&plan, seed) < 1)) verified = false;
    }
    lu_plan_free(&plan);
    return node.finish("lu", size, seconds, verified);
}

}  // namespace

int main(int argc, char** argv) {
    long size = 2048, block = 32, by_rows = 0, thorough = 0, spoil = 0;
    const option_number options[] = {
        {'n', "rows of the matrix", &size, 1, 32768},
        {'b', "rows of a block", &block, 1, LU_BLOCK_MAX},
        {'r', "lay the matrix out by rows, not by blocks", &by_rows, 1, 1},
        {'t', "verify with more vectors", &thorough, 1, 1},
        {'x', "spoil the result before it is verified", &spoil, 1, 1},
    };
    options_read(argc, argv, "lu", options, std::size(options));
    return program::main("lu", [&] {
        return run(static_cast<std::size_t>(size), static_cast<std::size_t>(block), by_rows != 0, thorough != 0,
                   spoil != 0);
    });
}
