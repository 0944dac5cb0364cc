// trellis/heap.hpp - objects of any size in the shared region: functions, an allocator, a memory resource.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     using numbers = std::vector<int, trellis::allocator<int>>;
//     auto* shared = new (trellis::allocate<numbers>(1)) numbers(1000, 7);    // the vector and its elements
//     cluster.view<numbers*>(0, 1)[0] = shared;                               // other nodes find it here
//
// Part of trellis.hpp. Memory that one node allocates never shares a page with memory that another allocates, and may
// be freed at any node. The functions use the cluster of this process. This header touches no memory that it
// allocates.
#ifndef TRELLIS_HEAP_HPP
#define TRELLIS_HEAP_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "../trellis.hpp"

namespace trellis {

/// The node that is to keep the pages of an allocation, if their protocol allows a choice. A hint.
class home {
public:
    /// The protocol decides for large allocations, and small ones are kept here.
    constexpr home() noexcept = default;
    [[nodiscard]] static constexpr home here() noexcept { return home(TRELLIS_HOME_HERE); }
    /// The nodes in turn, for allocations with pages of their own.
    [[nodiscard]] static constexpr home interleaved() noexcept { return home(TRELLIS_HOME_INTERLEAVED); }
    [[nodiscard]] static constexpr home node(std::size_t number) noexcept { return home(number); }

    [[nodiscard]] constexpr std::size_t value() const noexcept { return value_; }
    friend constexpr bool operator==(home, home) noexcept = default;

private:
    explicit constexpr home(std::size_t value) noexcept : value_(value) {}

    std::size_t value_ = TRELLIS_HOME_UNSPECIFIED;
};

/// The distance of an allocation from others.
enum class padding : int {
    packed = TRELLIS_PACKED,
    per_cache_line = TRELLIS_PER_CACHE_LINE,  ///< for what threads of one node use at the same time
    per_page = TRELLIS_PER_PAGE,              ///< for what different nodes write
    /// as `per_page` while this node has about 256 blocks of the size: where it is not known who writes them
    per_page_while_few = TRELLIS_PER_PAGE_WHILE_FEW,
};

/// A failed allocation; what() is the message.
class allocation_error : public std::bad_alloc {
public:
    explicit allocation_error(const char* sentence) : sentence_(sentence) {}
    [[nodiscard]] const char* what() const noexcept override { return sentence_.what(); }

private:
    /// Holds text that can be copied without an exception.
    std::runtime_error sentence_;
};

namespace detail {

inline void* got(void* block) {
    if (block == nullptr) throw allocation_error(trellis_last_error());
    return block;
}

inline void* allocate_bytes(std::size_t bytes, std::size_t alignment, home where, padding apart) {
    return got(trellis_allocate(trellis_current(), bytes, alignment, where.value(), static_cast<int>(apart)));
}

/// For destructors: a pointer that is not a block is a broken program and ends it here. A lost cluster is reported by
/// the next call that can throw; its memory is gone anyway.
inline void free_bytes(void* block) noexcept {
    trellis_cluster* cluster = trellis_current();
    if (cluster != nullptr && trellis_free(cluster, block) == TRELLIS_ERROR_ARGUMENT) {
        std::fprintf(stderr, "trellis: %s\n", trellis_last_error());
        std::terminate();
    }
}

template <typename T>
[[nodiscard]] std::size_t bytes_of(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return count * sizeof(T);
}

}  // namespace detail

/// Room for `count` objects of type T, which are not constructed; throws allocation_error.
template <typename T>
[[nodiscard]] T* allocate(std::size_t count, home where = {}, padding apart = padding::packed) {
    return static_cast<T*>(detail::allocate_bytes(detail::bytes_of<T>(count), alignof(T), where, apart));
}

/// The same; every byte is zero.
template <typename T>
[[nodiscard]] T* allocate_zeroed(std::size_t count, home where = {}, padding apart = padding::packed) {
    return static_cast<T*>(detail::got(trellis_allocate_zeroed(trellis_current(), detail::bytes_of<T>(count),
                                                               alignof(T), where.value(), static_cast<int>(apart))));
}

/// Free memory, at any node; no object in it is destroyed. Throws trellis::error if it was freed before, or no
/// allocation returned it. A null pointer is ignored.
inline void deallocate(void* block) { detail::check(trellis_free(trellis_current(), block)); }

/// The size of a block in bytes: what was requested, or a little more.
[[nodiscard]] inline std::size_t usable_size(const void* block) {
    const std::size_t bytes = trellis_usable_size(trellis_current(), block);
    if (bytes == 0)
        throw error(TRELLIS_ERROR_ARGUMENT, block == nullptr ? "no block is at NULL" : trellis_last_error());
    return bytes;
}

/// The allocations of this node.
[[nodiscard]] inline trellis_heap_counts heap_statistics() {
    trellis_heap_counts counts{};
    detail::check(trellis_heap_statistics(trellis_current(), &counts, sizeof counts));
    return counts;
}

/// For standard containers: std::vector<int, trellis::allocator<int>>. The elements are in the region; if other nodes
/// are to see the container itself, put it there too. Every allocator frees what any other allocated, on any node.
template <typename T>
class allocator {
public:
    using value_type = T;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_copy_assignment = std::false_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::true_type;

    constexpr allocator() noexcept = default;
    constexpr explicit allocator(home where, padding apart = padding::packed) noexcept : where_(where), apart_(apart) {}
    template <typename U>
    constexpr allocator(const allocator<U>& other) noexcept : where_(other.where()), apart_(other.apart()) {}

    [[nodiscard]] T* allocate(std::size_t count) { return trellis::allocate<T>(count, where_, apart_); }
    void deallocate(T* block, std::size_t) noexcept { detail::free_bytes(block); }

    [[nodiscard]] constexpr home where() const noexcept { return where_; }
    [[nodiscard]] constexpr padding apart() const noexcept { return apart_; }

    template <typename U>
    friend constexpr bool operator==(const allocator&, const allocator<U>&) noexcept {
        return true;
    }

private:
    home where_;
    padding apart_ = padding::packed;
};

/// For std::pmr containers. A container keeps a pointer to its resource, which belongs to the process that created
/// it: other nodes may read the elements, and only that process may change or destroy the container.
class memory_resource : public std::pmr::memory_resource {
public:
    explicit memory_resource(home where = {}, padding apart = padding::packed) noexcept
        : where_(where), apart_(apart) {}

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        return detail::allocate_bytes(bytes, alignment, where_, apart_);
    }
    void do_deallocate(void* block, std::size_t, std::size_t) noexcept override { detail::free_bytes(block); }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return dynamic_cast<const memory_resource*>(&other) != nullptr;
    }

    home where_;
    padding apart_;
};

}  // namespace trellis

#endif  // TRELLIS_HEAP_HPP
