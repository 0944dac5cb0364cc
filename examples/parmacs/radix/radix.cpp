// radix.cpp - sorts integers digit by digit; C++.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     c++ -std=c++20 -O3 radix.cpp $(pkg-config --cflags --libs trellis) -o radix && trellis run -n 2 ./radix
//
// The same kernels, timed section and verification as radix.c.in.
#include "../cluster_program.hpp"
#include "radix_kernel.h"

#include <bit>
#include <mutex>

namespace {

struct totals {
    std::uint64_t sum_before, sum_after, sorted_parts;
};

void sort(program::node& node, radix& plan) {
    radix_step_count(&plan);
    for (unsigned pass = 0; pass < plan.passes; ++pass) {
        radix_step_permute(&plan, pass);
        node.barrier();
        radix_step_collect(&plan, pass);
        node.barrier();
    }
}

int run(std::size_t count, std::size_t values, std::uint64_t limit, bool spoil) {
    const auto bits = static_cast<unsigned>(std::bit_width(values - 1));
    const auto key_bits = static_cast<unsigned>(std::bit_width(limit - 1));
    const std::size_t counts_bytes = radix_counts_pitch(bits) * sizeof(std::uint32_t);
    program::node node([&](std::size_t nodes) {
        return 2 * radix_keys_bytes(count) + nodes * counts_bytes + pages_of(sizeof(totals));
    });
    radix plan = radix_plan(count, bits, key_bits, node.me(), node.nodes());
    plan.keys = node.take<radix_key>(radix_keys_bytes(count));
    plan.buffer = node.take<radix_key>(radix_keys_bytes(count));
    plan.counts = node.take<std::uint32_t>(node.nodes() * counts_bytes);
    totals* const total = node.take<totals>(sizeof(totals));
    trellis::mutex mutex = node.cluster().mutex(1);

    const std::uint64_t sum_before = radix_fill(&plan, limit);
    const double seconds = node.timed([&] { sort(node, plan); });

    if (spoil && node.me() == 0) plan.keys[count / 2] ^= 1;
    node.barrier();
    const std::uint64_t sum_after = radix_sum(&plan);
    const int sorted = radix_is_sorted(&plan);
    {
        const std::lock_guard guard(mutex);
        total->sum_before += sum_before;
        total->sum_after += sum_after;
        total->sorted_parts += static_cast<std::uint64_t>(sorted);
    }
    node.barrier();
    const bool verified = total->sorted_parts == node.nodes() && total->sum_before == total->sum_after;
    radix_plan_free(&plan);
    return node.finish("radix", count, seconds, verified);
}

}  // namespace

int main(int argc, char** argv) {
    long count = 8388608, values = 1024, limit = 524288, thorough = 0, spoil = 0;
    const option_number options[] = {
        {'n', "keys", &count, 1, 1L << 31},
        {'r', "values of a digit, a power of two", &values, 2, 65536},
        {'m', "keys are below this", &limit, 2, 1L << 32},
        {'t', "every key is verified anyway", &thorough, 1, 1},
        {'x', "spoil the result before it is verified", &spoil, 1, 1},
    };
    options_read(argc, argv, "radix", options, std::size(options));
    if ((values & (values - 1)) != 0)
        options_refuse("radix", "-r is not a power of two, which a digit must have; use 1024");
    return program::main("radix", [&] {
        return run(static_cast<std::size_t>(count), static_cast<std::size_t>(values), static_cast<std::uint64_t>(limit),
                   spoil != 0);
    });
}
