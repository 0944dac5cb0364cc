// cluster_program.hpp - what the C++ versions of the programs have in common: a place in the region for what they
// share, and the result.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Every node runs main and makes the same calls in the same order. Over trellis.hpp only; the algorithms are in the
// kernels that the PARMACS versions use too.
#ifndef CLUSTER_PROGRAM_HPP
#define CLUSTER_PROGRAM_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include <trellis.hpp>

#include "program.h"

namespace program {

// A node of the cluster that runs this program, in a region that has room for what it shares.
class node {
public:
    // `shared_bytes` is asked how much the program shares when it runs on so many nodes.
    template <typename Bytes>
    explicit node(Bytes shared_bytes) : cluster_(join(shared_bytes)) {}

    [[nodiscard]] std::size_t me() const noexcept { return cluster_.node(); }
    [[nodiscard]] std::size_t nodes() const noexcept { return cluster_.nodes(); }
    [[nodiscard]] trellis::cluster& cluster() noexcept { return cluster_; }
    void barrier() { cluster_.barrier(); }

    // The next `bytes` of the region, from a page on: the same on every node, and zero.
    template <typename T>
    [[nodiscard]] T* take(std::size_t bytes) {
        const std::size_t begin = taken_;
        taken_ += pages_of(bytes);
        return cluster_.view<T>(begin, bytes / sizeof(T)).data();
    }

    // Runs `work` between two barriers, the second of which it brings itself, and returns how long it took.
    template <typename Work>
    double timed(Work work) {
        barrier();
        const auto start = std::chrono::steady_clock::now();
        work();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    // Leaves; node 0 prints the line. Returns the exit status.
    int finish(const char* name, std::size_t size, double seconds, bool verified) {
        const auto processors = static_cast<long>(nodes());
        const bool prints = me() == 0;
        cluster_.leave();
        return prints ? result_print(name, "cpp", processors, static_cast<long>(size), seconds, verified) : 0;
    }

private:
    template <typename Bytes>
    static trellis::cluster join(Bytes shared_bytes) {
        trellis::configuration chosen;
        const std::size_t needed = shared_bytes(chosen.nodes());
        if (chosen.region_bytes() < needed) chosen.set("region_bytes", std::to_string(needed));
        chosen.set("heap_bytes", "0");  // everything is taken by place
        return trellis::cluster(chosen);
    }

    trellis::cluster cluster_;
    std::size_t taken_ = 0;
};

// What main does: failures become one sentence and status 1.
template <typename Run>
int main(const char* name, Run run) {
    try {
        return run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", name, error.what());
        return 1;
    }
}

}  // namespace program

#endif
