// trellis/array.hpp - arrays with names, which every node finds; included by trellis.hpp.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     auto u = cluster.array<double>("u", 1'000'000);     // the same memory at every node, zero at first
//     for (double& value : u.mine()) value = 1;           // the block of this node
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
    if (first == nullptr) throw error(TRELLIS_ERROR_ARGUMENT, trellis_last_error());
    return {static_cast<T*>(first), count};
}

/// A part of an array, from an index on.
struct block {
    std::size_t first = 0;
    std::size_t length = 0;
};

inline block block_of(const trellis_cluster* cluster, std::size_t count, std::size_t bytes, std::size_t node) {
    block found;
    check(trellis_block(cluster, count, bytes, node, &found.first, &found.length));
    return found;
}

}  // namespace detail

/// Indexes [begin(), end()), for a range-based for: for (std::size_t row : u.my_rows()).
class indexes {
public:
    class iterator {
    public:
        using value_type = std::size_t;
        using difference_type = std::ptrdiff_t;

        constexpr std::size_t operator*() const noexcept { return at_; }
        constexpr iterator& operator++() noexcept { return ++at_, *this; }
        constexpr iterator operator++(int) noexcept { return iterator(at_++); }
        friend constexpr bool operator==(iterator, iterator) noexcept = default;

    private:
        friend class indexes;
        explicit constexpr iterator(std::size_t at) noexcept : at_(at) {}

        std::size_t at_;
    };

    constexpr indexes(std::size_t first, std::size_t length) noexcept : first_(first), length_(length) {}

    [[nodiscard]] constexpr iterator begin() const noexcept { return iterator(first_); }
    [[nodiscard]] constexpr iterator end() const noexcept { return iterator(first_ + length_); }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return length_; }

private:
    std::size_t first_;
    std::size_t length_;
};

/// An array of a cluster. Each node has a block of it, in the order of the nodes; where that costs little balance, the
/// blocks start at pages.
template <typename T>
class array {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;
    using iterator = typename std::span<T>::iterator;

    array(cluster& where, const std::string& name, std::size_t count)
        : cluster_(where.handle()), all_(detail::named<T>(cluster_, name, count)) {}

    [[nodiscard]] T* data() const noexcept { return all_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
    [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
    [[nodiscard]] iterator begin() const noexcept { return all_.begin(); }
    [[nodiscard]] iterator end() const noexcept { return all_.end(); }
    T& operator[](std::size_t index) const noexcept { return all_[index]; }
    /// The elements of all nodes.
    [[nodiscard]] std::span<T> span() const noexcept { return all_; }
    operator std::span<T>() const noexcept { return all_; }

    /// The indexes of the elements of a node, and of this node.
    [[nodiscard]] indexes indexes_of(std::size_t node) const {
        const detail::block found = detail::block_of(cluster_, size(), sizeof(T), node);
        return {found.first, found.length};
    }
    [[nodiscard]] indexes my_indexes() const { return indexes_of(trellis_node(cluster_)); }
    /// The elements of a node, and of this node.
    [[nodiscard]] std::span<T> block(std::size_t node) const {
        const detail::block found = detail::block_of(cluster_, size(), sizeof(T), node);
        return all_.subspan(found.first, found.length);
    }
    [[nodiscard]] std::span<T> mine() const { return block(trellis_node(cluster_)); }

    [[nodiscard]] trellis_cluster* handle() const noexcept { return cluster_; }

private:
    trellis_cluster* cluster_;
    std::span<T> all_;
};

/// A matrix of a cluster, row by row. Each node has whole rows.
template <typename T>
class grid {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;

    grid(cluster& where, const std::string& name, std::size_t rows, std::size_t columns)
        : cluster_(where.handle()), rows_(rows), columns_(columns) {
        if (columns == 0 || rows > static_cast<std::size_t>(-1) / columns / sizeof(T)) {
            throw error(TRELLIS_ERROR_ARGUMENT, "a grid of " + std::to_string(rows) + " rows and " +
                                                    std::to_string(columns) + " columns is not possible");
        }
        all_ = detail::named<T>(cluster_, name, rows * columns);
    }

    [[nodiscard]] T* data() const noexcept { return all_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::span<T> row(std::size_t index) const noexcept {
        return all_.subspan(index * columns_, columns_);
    }
    T& operator()(std::size_t row, std::size_t column) const noexcept { return all_[row * columns_ + column]; }
#ifdef __cpp_lib_mdspan
    /// The same elements as a std::mdspan.
    [[nodiscard]] std::mdspan<T, std::dextents<std::size_t, 2>> mdspan() const noexcept {
        return std::mdspan<T, std::dextents<std::size_t, 2>>(data(), rows_, columns_);
    }
#endif

    /// The rows of a node, and of this node.
    [[nodiscard]] indexes rows_of(std::size_t node) const {
        const detail::block found = detail::block_of(cluster_, rows_, columns_ * sizeof(T), node);
        return {found.first, found.length};
    }
    [[nodiscard]] indexes my_rows() const { return rows_of(trellis_node(cluster_)); }

    [[nodiscard]] trellis_cluster* handle() const noexcept { return cluster_; }

private:
    trellis_cluster* cluster_;
    std::size_t rows_;
    std::size_t columns_;
    std::span<T> all_;
};

/// Call work(index) for the elements of this node, or work(row) for its rows, and wait at a barrier until every node
/// has done the same. Every node calls this. If `work` throws, this node does not wait; leave the cluster then.
template <typename T, typename Work>
void parallel_for(const array<T>& over, Work work) {
    for (const std::size_t index : over.my_indexes()) work(index);
    detail::check(trellis_barrier(over.handle(), trellis_id(over.handle(), "parallel_for")));
}
template <typename T, typename Work>
void parallel_for(const grid<T>& over, Work work) {
    for (const std::size_t row : over.my_rows()) work(row);
    detail::check(trellis_barrier(over.handle(), trellis_id(over.handle(), "parallel_for")));
}

}  // namespace trellis

#endif  // TRELLIS_ARRAY_HPP
