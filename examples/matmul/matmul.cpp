// matmul: multiplies two square matrices in shared memory with three loops, every node calculating some of the rows.
//
//     c++ -std=c++20 -O2 matmul.cpp $(pkg-config --cflags --libs trellis) -o matmul
//     trellis run -n 2 ./matmul 512              # the loops in the order ijk
//     trellis run -n 2 ./matmul 512 kij
//     trellis run -n 2 --set 'coherence=lock(dynamic(forward))' ./matmul 512 ijk --lock
//
// Node 0 fills both factors. What is timed begins after that and includes bringing every page to the node that uses
// it: nobody announces anything, the loops just load and store. With --lock the pages of a row stay with their node
// while the row is calculated, for which the protocol needs the layer `lock`.
//
// Every product is checked: all of it up to 256 rows or with --verify, else a sample of its elements.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include <trellis.hpp>

namespace {

struct options {
    std::size_t size = 256;
    bool kij = false, lock = false, verify = false;
};

options options_from(int argc, char** argv) {
    options chosen;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--lock") chosen.lock = true;
        else if (word == "--verify") chosen.verify = true;
        else if (word == "ijk" || word == "kij") chosen.kij = word == "kij";
        else {
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), chosen.size);
            if (error != std::errc{} || end != word.data() + word.size() || chosen.size == 0 || chosen.size > 1 << 20)
                throw std::invalid_argument("usage: matmul [rows] [ijk | kij] [--lock] [--verify]");
        }
    }
    return chosen;
}

// Small whole numbers: their products and sums are exact, in whatever order they are added.
double factor(std::size_t row, std::size_t column, std::size_t matrix) {
    return static_cast<double>((row * 7 + column * 13 + matrix * 5) % 19) - 9;
}

// How the matrices lie in the region. A row begins on a page, or some whole rows fill one, so that no page holds rows
// of two nodes.
struct layout {
    std::size_t size, pitch, rows_per_page, bytes;

    layout(std::size_t rows, std::size_t page_bytes) : size(rows) {
        const std::size_t per_page = page_bytes / sizeof(double);
        pitch = 1;
        while (pitch < size && pitch < per_page) pitch *= 2;
        if (pitch < size) pitch = (size + per_page - 1) / per_page * per_page;
        rows_per_page = std::max<std::size_t>(1, per_page / pitch);
        bytes = (size * pitch * sizeof(double) + page_bytes - 1) / page_bytes * page_bytes;
    }

    // The first row of a node's part.
    std::size_t first(std::size_t node, std::size_t nodes) const {
        const std::size_t units = (size + rows_per_page - 1) / rows_per_page;
        return std::min(size, units * node / nodes * rows_per_page);
    }
};

struct matrices {
    trellis::cluster& cluster;
    layout shape;
    std::span<double> a, b, c;

    matrices(trellis::cluster& member, std::size_t size)
        : cluster(member),
          shape(size, member.page_bytes()),
          a(member.view<double>(0, size * shape.pitch)),
          b(member.view<double>(shape.bytes, size * shape.pitch)),
          c(member.view<double>(2 * shape.bytes, size * shape.pitch)) {}

    void fill() {
        for (std::size_t i = 0; i < shape.size; ++i)
            for (std::size_t j = 0; j < shape.size; ++j) {
                a[i * shape.pitch + j] = factor(i, j, 0);
                b[i * shape.pitch + j] = factor(i, j, 1);
            }
    }

    // Rows [from, to) of the product: each element is complete before the next.
    void calculate_ijk(std::size_t from, std::size_t to, bool lock) {
        const std::size_t size = shape.size, pitch = shape.pitch;
        for (std::size_t i = from; i < to; ++i) {
            const auto stays = held(i, i + 1, lock);
            for (std::size_t j = 0; j < size; ++j) {
                double sum = 0;
                for (std::size_t k = 0; k < size; ++k) sum += a[i * pitch + k] * b[k * pitch + j];
                c[i * pitch + j] = sum;
            }
        }
    }

    // The same rows, along the rows of all three matrices. A row is complete with the last k, so all of them are being
    // calculated from the beginning to the end.
    void calculate_kij(std::size_t from, std::size_t to, bool lock) {
        const std::size_t size = shape.size, pitch = shape.pitch;
        const auto stays = held(from, to, lock);
        for (std::size_t k = 0; k < size; ++k)
            for (std::size_t i = from; i < to; ++i) {
                const double left = a[i * pitch + k];
                for (std::size_t j = 0; j < size; ++j) c[i * pitch + j] += left * b[k * pitch + j];
            }
    }

    bool is_right(bool all) const {
        const std::size_t size = shape.size, elements = size * size;
        const std::size_t step = all || size <= 256 ? 1 : elements / 4096 | 1;
        for (std::size_t n = 0; n < elements; n += step) {
            double sum = 0;
            for (std::size_t k = 0; k < size; ++k) sum += factor(n / size, k, 0) * factor(k, n % size, 1);
            if (c[n / size * shape.pitch + n % size] != sum) return false;
        }
        return true;
    }

private:
    // The pages of rows [from, to) of the product, locked until the value is gone; or nothing.
    std::optional<trellis::range_lock> held(std::size_t from, std::size_t to, bool lock) {
        if (!lock || from == to) return std::nullopt;
        const auto rows = c.subspan(from * shape.pitch, (to - from) * shape.pitch);
        return std::make_optional<trellis::range_lock>(cluster, rows);
    }
};

int run(const options& chosen) {
    trellis::cluster cluster;
    matrices all(cluster, chosen.size);
    if (cluster.node() == 0) all.fill();
    cluster.barrier();  // the factors are complete

    const auto start = std::chrono::steady_clock::now();
    const std::size_t from = all.shape.first(cluster.node(), cluster.nodes());
    const std::size_t to = all.shape.first(cluster.node() + 1, cluster.nodes());
    if (chosen.kij) all.calculate_kij(from, to, chosen.lock);
    else all.calculate_ijk(from, to, chosen.lock);
    cluster.barrier();  // every row is there

    bool right = true;
    if (cluster.node() == 0) {
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        right = all.is_right(chosen.verify);
        std::cout << "product of " << chosen.size << " x " << chosen.size << " matrices, "
                  << (chosen.kij ? "kij" : "ijk") << (chosen.lock ? ", locked" : "") << ", on " << cluster.nodes()
                  << " nodes in " << taken.count() << " s" << (right ? " (verified)" : " (WRONG)") << '\n';
    }
    cluster.leave();
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
    return run(options_from(argc, argv));
} catch (const std::exception& error) {
    std::cerr << "matmul: " << error.what() << '\n';
    return 1;
}
