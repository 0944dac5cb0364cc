// pdot: the dot product of two vectors in shared memory, every node multiplying its own part.
//
//     c++ -std=c++20 -O2 pdot.cpp $(pkg-config --cflags --libs trellis) -o pdot
//     trellis run -n 4 ./pdot [elements per vector, 32768 by default]
//
// Node 0 fills both vectors, so what is measured includes bringing each part to the node that multiplies it.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <trellis.hpp>

namespace {

// Small factors: even 2^32 products of them fit a 64-bit sum, so the result can be checked exactly.
std::uint64_t factor(std::uint64_t i, std::uint64_t vector) {
    return ((i * 2654435761u + vector * 40503u) >> 7) & 0xFFFF;
}

std::size_t elements_from(int argc, char** argv) {
    if (argc < 2) return 32'768;
    char* end = nullptr;
    const std::size_t elements = std::strtoull(argv[1], &end, 10);
    if (argc > 2 || *end != '\0' || elements == 0) throw std::invalid_argument("usage: pdot [elements per vector]");
    return elements;
}

std::uint64_t expected_product(std::size_t elements) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < elements; ++i) sum += factor(i, 0) * factor(i, 1);
    return sum;
}

int run(std::size_t elements) {
    trellis::cluster cluster;
    const std::size_t node = cluster.node(), nodes = cluster.nodes();
    auto a = cluster.view<std::uint64_t>(0, elements);
    auto b = cluster.view<std::uint64_t>(a.size_bytes(), elements);

    if (node == 0) {
        for (std::size_t i = 0; i < elements; ++i) a[i] = factor(i, 0), b[i] = factor(i, 1);
    }
    cluster.barrier();  // the vectors are complete

    const auto start = std::chrono::steady_clock::now();
    const std::size_t from = elements * node / nodes, to = elements * (node + 1) / nodes;
    const auto mine_a = a.subspan(from, to - from), mine_b = b.subspan(from, to - from);
    cluster.prefetch(mine_a);  // in large steps; without this line it is the same result, one fault per page
    cluster.prefetch(mine_b);
    const std::uint64_t part = std::inner_product(mine_a.begin(), mine_a.end(), mine_b.begin(), std::uint64_t{0});

    // The sum is one word at its home node: adding to it moves eight bytes, not a page.
    trellis::atomic_word sum = cluster.atomic(0);
    sum.fetch_add(part);
    cluster.barrier();  // every part is in

    bool right = true;
    if (node == 0) {
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
        const std::uint64_t product = sum.load();
        right = product == expected_product(elements);
        std::cout << "dot product of " << elements << " elements on " << nodes << " nodes in " << taken.count()
                  << " ms: " << product << (right ? " (verified)" : " (WRONG)") << '\n';
    }
    cluster.leave();
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
    return run(elements_from(argc, argv));
} catch (const std::exception& error) {
    std::cerr << "pdot: " << error.what() << '\n';
    return 1;
}
