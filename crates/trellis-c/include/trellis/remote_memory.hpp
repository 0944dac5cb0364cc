// trellis/remote_memory.hpp - memory of this process at memory servers: an allocator and a memory resource.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     trellis::remote_memory memory("memory-server:fd12:3456:7::/48", 256 << 20);    // 256 MiB of it here at a time
//     std::pmr::vector<double> row(1 << 30, &memory);                                // 8 GiB
//     std::vector<long, trellis::remote_allocator<long>> other(1 << 20);             // from the same memory
//
// Loads and stores work as usual; a page that is not here is fetched when it is touched, and evicted when another one
// needs its room. A program that `trellis store run` started has all its malloc memory there and needs none of this:
// here a program chooses what is there. A process has one such memory, which ends with the process. If a page is not
// available because its server is gone, the process ends with one sentence and status 70. Based on trellis/stored.h;
// this header touches no memory that it allocates.
#ifndef TRELLIS_REMOTE_MEMORY_HPP
#define TRELLIS_REMOTE_MEMORY_HPP

#include <cstddef>
#include <limits>
#include <memory_resource>
#include <new>
#include <string>
#include <type_traits>

#include "heap.hpp"
#include "stored.h"

namespace trellis {

namespace detail {

/// Every allocation has a unique address.
inline void* allocate_remote(std::size_t bytes, std::size_t alignment) {
    return got(trellis_store_aligned_alloc(alignment, bytes == 0 ? 1 : bytes));
}

}  // namespace detail

/// For std::pmr containers: memory at memory servers. All objects of this type stand for the one memory of this
/// process.
class remote_memory : public std::pmr::memory_resource {
public:
    /// The activity so far: faults, pages_fetched, pages_fetched_ahead, pages_evicted, bytes_written_back and so on.
    using counters = trellis_store_statistics_t;

    /// The existing memory of this process, opened by `trellis store run` or an earlier object; otherwise the one
    /// that TRELLIS_STORE and related variables name. Throws trellis::error.
    remote_memory() {
        if (trellis_store_base() == nullptr) open(nullptr, 0, 0);
    }

    /// Memory at these servers, "memory-server:PREFIX,PREFIX" or "memory-server:anywhere". At most `cache_bytes_max`
    /// bytes of it are here at a time (default 256 MiB); in total it has at most `bytes` bytes (default 64 GiB),
    /// which cost nothing until they are used. Throws trellis::error.
    explicit remote_memory(const std::string& servers, std::size_t cache_bytes_max = 0, std::size_t bytes = 0) {
        open(servers.c_str(), cache_bytes_max, bytes);
    }

    /// Throws trellis::error.
    [[nodiscard]] static counters statistics() {
        counters counters{};
        detail::check(trellis_store_statistics(&counters));
        return counters;
    }

private:
    static void open(const char* store, std::size_t cache_bytes_max, std::size_t bytes) {
        trellis_store_options options{};
        options.store = store;
        options.region_bytes = bytes;
        options.cache_bytes_max = cache_bytes_max;
        detail::check(trellis_store_open(&options));
    }

    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        return detail::allocate_remote(bytes, alignment);
    }
    void do_deallocate(void* block, std::size_t, std::size_t) noexcept override { trellis_store_free(block); }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return dynamic_cast<const remote_memory*>(&other) != nullptr;
    }
};

/// For standard containers: std::vector<int, trellis::remote_allocator<int>>. The process's memory must exist before
/// the first element: create a remote_memory, or start the program with `trellis store run`. Throws
/// trellis::allocation_error.
template <typename T>
class remote_allocator {
public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;

    constexpr remote_allocator() noexcept = default;
    template <typename U>
    constexpr remote_allocator(const remote_allocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t count) {
        return static_cast<T*>(detail::allocate_remote(detail::bytes_of<T>(count), alignof(T)));
    }
    void deallocate(T* block, std::size_t) noexcept { trellis_store_free(block); }

    template <typename U>
    friend constexpr bool operator==(const remote_allocator&, const remote_allocator<U>&) noexcept {
        return true;
    }
};

}  // namespace trellis

#endif  // TRELLIS_REMOTE_MEMORY_HPP
