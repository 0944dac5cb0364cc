// trellis/array.hpp - arrays with names, which every node finds; included by trellis.hpp.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     auto u = cluster.array<double>("u", 1'000'000);     // the same memory at every node, zero at first
//     for (double& value : u.mine()) value = 1;           // the partition of this node
//     cluster.barrier();
//     double all = std::accumulate(u.begin(), u.end(), 0.0);
//
// An array is a view: copying it copies no element, and it must not outlive its cluster. Its elements are like all
// shared memory: a barrier or a lock orders stores and loads of different nodes. The memory starts at a page, shares no
// page with anything else, and exists until the cluster ends. A node that asks for a name with another type or another
// size than the first one gets a trellis::error that states both.
#ifndef TRELLIS_ARRAY_HPP
#define TRELLIS_ARRAY_HPP

#include <cstddef>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#if __has_include(<version>)
#include <version>
#endif
#ifdef __cpp_lib_mdspan
#include <mdspan>
#endif

#include "../trellis.hpp"

namespace trellis {

namespace detail {

/// The type of an element, as trellis_array() compares it.
template <typename T>
constexpr int element_type() noexcept {
    if constexpr (std::is_floating_point_v<T>) return TRELLIS_FLOAT;
    if constexpr (std::is_integral_v<T>) return std::is_signed_v<T> ? TRELLIS_SIGNED : TRELLIS_UNSIGNED;
    return TRELLIS_OTHER;
}

template <typename T>
std::span<T> named(trellis_cluster* cluster, const std::string& name, std::size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && std::is_trivially_copyable_v<T> && !std::is_polymorphic_v<T>,
                  "an element of shared memory must be plain: every node sees its bytes, no node destroys it");
    static_assert(alignof(T) <= 4096, "an array is aligned to a page, which may have 4096 bytes");
    void* const first = trellis_array(cluster, name.c_str(), count, sizeof(T), element_type<T>());
    if (first == nullptr) throw error(trellis_last_status(), trellis_last_error());
    return {static_cast<T*>(first), count};
}

/// How elements, or rows, are divided among the nodes, and the barrier at which the nodes meet after a parallel_for.
class division {
public:
    division(cluster& where, const std::string& name, std::size_t count, std::size_t bytes)
        : cluster_(where.handle()),
          count_(count),
          bytes_(bytes),
          barrier_(where.id("parallel_for " + name)),
          mine_(of(where.node())) {}

    [[nodiscard]] std::ranges::iota_view<std::size_t, std::size_t> of(std::size_t node) const {
        std::size_t first = 0, length = 0;
        check(trellis_partition(cluster_, count_, bytes_, node, &first, &length));
        return {first, first + length};
    }
    [[nodiscard]] std::ranges::iota_view<std::size_t, std::size_t> mine() const noexcept { return mine_; }
    void meet() const { check(trellis_barrier(cluster_, barrier_)); }

private:
    trellis_cluster* cluster_;
    std::size_t count_;
    std::size_t bytes_;
    std::uint64_t barrier_;
    std::ranges::iota_view<std::size_t, std::size_t> mine_;
};

}  // namespace detail

/// Indexes, for a range-based for: for (std::size_t row : u.my_rows()).
using indexes = std::ranges::iota_view<std::size_t, std::size_t>;

/// An array of a cluster. Each node has a partition of it, in the order of the nodes. Partitions start at pages unless
/// that makes one of them more than a quarter larger or smaller than an equal share.
template <typename T>
class array {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;
    using iterator = typename std::span<T>::iterator;

    array(cluster& where, const std::string& name, std::size_t count)
        : all_(detail::named<T>(where.handle(), name, count)), division_(where, name, count, sizeof(T)) {}

    [[nodiscard]] T* data() const noexcept { return all_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
    [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
    [[nodiscard]] iterator begin() const noexcept { return all_.begin(); }
    [[nodiscard]] iterator end() const noexcept { return all_.end(); }
    [[nodiscard]] T& operator[](std::size_t index) const noexcept { return all_[index]; }
    /// The elements of all nodes.
    [[nodiscard]] std::span<T> span() const noexcept { return all_; }
    [[nodiscard]] operator std::span<T>() const noexcept { return all_; }

    /// The indexes of the elements of a node, and of this node.
    [[nodiscard]] indexes indexes_of(std::size_t node) const { return division_.of(node); }
    [[nodiscard]] indexes my_indexes() const noexcept { return division_.mine(); }
    /// The elements of a node, and of this node.
    [[nodiscard]] std::span<T> partition(std::size_t node) const { return part(division_.of(node)); }
    [[nodiscard]] std::span<T> mine() const noexcept { return part(division_.mine()); }

    [[nodiscard]] const detail::division& division() const noexcept { return division_; }

private:
    [[nodiscard]] std::span<T> part(indexes of) const noexcept {
        return of.empty() ? std::span<T>() : all_.subspan(*of.begin(), of.size());
    }

    std::span<T> all_;
    detail::division division_;
};

/// A matrix of a cluster, row by row. Each node has whole rows, divided like the elements of an array.
template <typename T>
class grid {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;
    using iterator = typename std::span<T>::iterator;

    grid(cluster& where, const std::string& name, std::size_t rows, std::size_t columns)
        : rows_(rows),
          columns_(columns),
          all_(detail::named<T>(where.handle(), name, elements(rows, columns))),
          division_(where, name, rows, columns * sizeof(T)) {}

    [[nodiscard]] T* data() const noexcept { return all_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] iterator begin() const noexcept { return all_.begin(); }
    [[nodiscard]] iterator end() const noexcept { return all_.end(); }
    [[nodiscard]] std::span<T> span() const noexcept { return all_; }
    [[nodiscard]] std::span<T> row(std::size_t index) const noexcept {
        return all_.subspan(index * columns_, columns_);
    }
    [[nodiscard]] T& operator()(std::size_t row, std::size_t column) const noexcept {
        return all_[row * columns_ + column];
    }
#ifdef __cpp_lib_mdspan
    /// The same elements as a std::mdspan.
    [[nodiscard]] std::mdspan<T, std::dextents<std::size_t, 2>> mdspan() const noexcept {
        return std::mdspan<T, std::dextents<std::size_t, 2>>(data(), rows_, columns_);
    }
#endif

    /// The rows of a node, and of this node.
    [[nodiscard]] indexes rows_of(std::size_t node) const { return division_.of(node); }
    [[nodiscard]] indexes my_rows() const noexcept { return division_.mine(); }

    [[nodiscard]] const detail::division& division() const noexcept { return division_; }

private:
    [[nodiscard]] static std::size_t elements(std::size_t rows, std::size_t columns) {
        if (columns == 0 || rows > static_cast<std::size_t>(-1) / columns / sizeof(T)) {
            throw error(TRELLIS_ERROR_ARGUMENT, "a grid of " + std::to_string(rows) + " rows and " +
                                                    std::to_string(columns) + " columns is not possible");
        }
        return rows * columns;
    }

    std::size_t rows_;
    std::size_t columns_;
    std::span<T> all_;
    detail::division division_;
};

/// Call work(index) for the elements of this node, or work(row) for its rows, and wait until every node has done the
/// same for this array or grid. Every node calls this, with one thread. If `work` throws, this node does not wait;
/// leave the cluster then.
template <typename T, typename Work>
void parallel_for(const array<T>& over, Work work) {
    for (const std::size_t index : over.my_indexes()) work(index);
    over.division().meet();
}
template <typename T, typename Work>
void parallel_for(const grid<T>& over, Work work) {
    for (const std::size_t row : over.my_rows()) work(row);
    over.division().meet();
}

}  // namespace trellis

#endif  // TRELLIS_ARRAY_HPP
