// trellis.hpp - the C++20 interface of Trellis: one memory over several processes. Header-only, over trellis.h.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     #include <iostream>
//     #include <mutex>
//     #include <trellis.hpp>
//
//     int main() {
//         trellis::cluster cluster;                       // configuration from file and environment
//         auto total = cluster.array<long>("total", 1);   // shared memory, which every node finds by this name
//         trellis::mutex lock = cluster.mutex("total");
//         {
//             std::lock_guard guard(lock);                // across every node
//             total[0] += 10;
//         }
//         cluster.barrier();
//         if (cluster.node() == 0) std::cout << total[0] << '\n';
//     }                                                   // leaves together with the other nodes
//
//     c++ -std=c++20 sum.cpp $(pkg-config --cflags --libs trellis) -o sum && trellis run -n 4 ./sum
//
// Failures are thrown as trellis::error, whose what() is one sentence for a person and whose status() is a code of
// trellis.h. Sizes and offsets are in bytes unless a name says otherwise. This header promises nothing that trellis.h
// does not: it owns handles, checks ranges and converts codes to exceptions, and it never touches the region itself.
#ifndef TRELLIS_HPP
#define TRELLIS_HPP

#if __cplusplus < 202002L
#error "trellis.hpp is C++20, and this compiler was not told so: compile with -std=c++20; what follows are its errors"
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "trellis.h"
#include "trellis/standard.hpp"

namespace trellis {

namespace detail {

struct free_config {
    void operator()(trellis_config* config) const noexcept { trellis_config_free(config); }
};

}  // namespace detail

enum class access : int { read = TRELLIS_READ, write = TRELLIS_WRITE };

/// File, then environment, then set(). Movable, not copyable.
class configuration {
public:
    /// The values of TRELLIS_CONFIG and the environment; without them, a cluster of one node.
    configuration() { load(nullptr); }
    /// A trellis.toml or a libivy JSON file, overridden by the environment.
    explicit configuration(const std::string& path) { load(path.c_str()); }

    /// Set one key, which overrides file and environment: set("region_bytes", "1GiB").
    configuration& set(const std::string& key, const std::string& value) {
        detail::check(trellis_config_set(config_.get(), key.c_str(), value.c_str()));
        return *this;
    }

    [[nodiscard]] std::size_t node() const noexcept { return trellis_config_node(config_.get()); }
    [[nodiscard]] std::size_t nodes() const noexcept { return trellis_config_nodes(config_.get()); }
    [[nodiscard]] std::size_t manager() const noexcept { return trellis_config_manager(config_.get()); }
    [[nodiscard]] std::size_t region_bytes() const noexcept { return trellis_config_region_bytes(config_.get()); }
    [[nodiscard]] const trellis_config* handle() const noexcept { return config_.get(); }

private:
    void load(const char* path) {
        trellis_config* config = nullptr;
        detail::check(trellis_config_load(path, &config));
        config_.reset(config);
    }

    std::unique_ptr<trellis_config, detail::free_config> config_;
};

class cluster;
template <typename T>
class array;
template <typename T>
class grid;

namespace detail {

/// An object of a cluster, by its number or its name.
class of_cluster {
public:
    explicit of_cluster(cluster& where, std::uint64_t id) noexcept;
    explicit of_cluster(cluster& where, const std::string& name);

    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

    int lock() const { return trellis_lock(cluster_, id_); }
    int try_lock() const { return trellis_try_lock(cluster_, id_); }
    int try_lock_for(std::uint64_t time) const { return trellis_try_lock_for(cluster_, id_, time); }
    int unlock() const { return trellis_unlock(cluster_, id_); }

    int read() const { return trellis_rwlock_read(cluster_, id_); }
    int try_read() const { return trellis_rwlock_try_read(cluster_, id_); }
    int try_read_for(std::uint64_t time) const { return trellis_rwlock_try_read_for(cluster_, id_, time); }
    int end_read() const { return trellis_rwlock_end_read(cluster_, id_); }
    int write() const { return trellis_rwlock_write(cluster_, id_); }
    int try_write() const { return trellis_rwlock_try_write(cluster_, id_); }
    int try_write_for(std::uint64_t time) const { return trellis_rwlock_try_write_for(cluster_, id_, time); }
    int end_write() const { return trellis_rwlock_end_write(cluster_, id_); }

    int notify_one() const { return trellis_condition_notify_one(cluster_, id_); }
    int notify_all() const { return trellis_condition_notify_all(cluster_, id_); }
    int wait(const of_cluster& mutex) const { return trellis_condition_wait(cluster_, id_, mutex.id_); }
    int wait_for(const of_cluster& mutex, std::uint64_t time) const {
        return trellis_condition_wait_for(cluster_, id_, mutex.id_, time);
    }

    int release(std::uint64_t count) const { return trellis_semaphore_release(cluster_, id_, count); }
    int acquire() const { return trellis_semaphore_acquire(cluster_, id_); }
    int try_acquire() const { return trellis_semaphore_try_acquire(cluster_, id_); }
    int try_acquire_for(std::uint64_t time) const { return trellis_semaphore_try_acquire_for(cluster_, id_, time); }
    int semaphore_value(std::uint64_t* value) const { return trellis_semaphore_value(cluster_, id_, value); }

    int event_set() const { return trellis_event_set(cluster_, id_); }
    int event_clear() const { return trellis_event_clear(cluster_, id_); }
    int event_wait() const { return trellis_event_wait(cluster_, id_); }
    int event_wait_for(std::uint64_t time) const { return trellis_event_wait_for(cluster_, id_, time); }
    int event_is_set() const { return trellis_event_is_set(cluster_, id_); }

    int once_begin() const { return trellis_once_begin(cluster_, id_); }
    int once_done() const { return trellis_once_done(cluster_, id_); }
    int once_failed() const { return trellis_once_failed(cluster_, id_); }

    int barrier_of(std::uint32_t participants) const { return trellis_barrier_of(cluster_, id_, participants); }

private:
    trellis_cluster* cluster_;
    std::uint64_t id_;
};

}  // namespace detail

/// A lock of a cluster: a number, or a name. Fair: first come, first served. try_lock() is false if another thread has
/// it, or waits for it, or it is being passed between nodes. Must not outlive its cluster.
using mutex = detail::basic_mutex<detail::of_cluster>;

/// A 64-bit word kept at its home node; every operation takes at most one round trip. Must not outlive its cluster.
class atomic_word {
public:
    [[nodiscard]] std::uint64_t load() const {
        std::uint64_t value = 0;
        detail::check(trellis_atomic_load(cluster_, id_, &value));
        return value;
    }
    void store(std::uint64_t value) { detail::check(trellis_atomic_store(cluster_, id_, value)); }
    std::uint64_t exchange(std::uint64_t value) {
        std::uint64_t before = 0;
        detail::check(trellis_atomic_exchange(cluster_, id_, value, &before));
        return before;
    }
    /// The value before the addition, which wraps at 2^64.
    std::uint64_t fetch_add(std::uint64_t addend) {
        std::uint64_t before = 0;
        detail::check(trellis_atomic_fetch_add(cluster_, id_, addend, &before));
        return before;
    }
    /// True if `expected` was replaced; otherwise `expected` becomes the present value.
    bool compare_exchange(std::uint64_t& expected, std::uint64_t desired) {
        return detail::check(trellis_atomic_compare_exchange(cluster_, id_, &expected, desired)) == 1;
    }

private:
    friend class cluster;
    atomic_word(trellis_cluster* cluster, std::uint64_t id) noexcept : cluster_(cluster), id_(id) {}

    trellis_cluster* cluster_;
    std::uint64_t id_;
};

/// Membership of a cluster. The destructor leaves together with the other nodes. During stack unwinding it abandons
/// the cluster instead, so that the others end with an error that names this node instead of waiting for it.
class cluster {
public:
    /// Join with the values of file and environment.
    cluster() { join(nullptr); }
    explicit cluster(const configuration& config) { join(config.handle()); }
    explicit cluster(const std::string& config_path) : cluster(configuration(config_path)) {}

    cluster(cluster&& other) noexcept
        : cluster_(std::exchange(other.cluster_, nullptr)), exceptions_at_join_(other.exceptions_at_join_) {}
    cluster& operator=(cluster&&) = delete;
    cluster(const cluster&) = delete;
    cluster& operator=(const cluster&) = delete;

    ~cluster() {
        if (cluster_ == nullptr) return;
        if (std::uncaught_exceptions() > exceptions_at_join_) {
            trellis_abandon(cluster_);
        } else if (const int status = trellis_leave(cluster_); status != TRELLIS_OK) {
            std::fprintf(stderr, "trellis: %s\n", trellis_last_error());
            // Refused because it holds a lock, which no thread is left to release.
            if (status == TRELLIS_ERROR_STATE) trellis_abandon(cluster_);
        }
    }

    /// Leave now and report failures. The region is gone afterwards; so are mutexes and words. A node that joined
    /// later and still holds a lock stays a member, and may try again after it has released the lock.
    void leave() {
        if (cluster_ == nullptr) return;
        const int status = trellis_leave(cluster_);
        if (status != TRELLIS_ERROR_STATE) cluster_ = nullptr;
        detail::check(status);
    }

    [[nodiscard]] std::size_t node() const noexcept { return trellis_node(cluster_); }
    [[nodiscard]] std::size_t nodes() const noexcept { return trellis_nodes(cluster_); }
    [[nodiscard]] std::size_t manager() const noexcept { return trellis_manager(cluster_); }
    [[nodiscard]] std::size_t members() const noexcept { return trellis_members(cluster_); }
    [[nodiscard]] bool joined_later() const noexcept { return trellis_joined_later(cluster_) != 0; }
    [[nodiscard]] bool leave_requested() const noexcept { return trellis_leave_requested(cluster_) != 0; }
    [[nodiscard]] std::size_t page_bytes() const noexcept { return trellis_page_bytes(cluster_); }
    [[nodiscard]] std::size_t region_bytes() const noexcept { return trellis_bytes(cluster_); }
    /// The offset at which the shared heap begins: half of the region, unless the key `heap_bytes` says otherwise.
    [[nodiscard]] std::size_t heap_start() const noexcept { return trellis_heap_start(cluster_); }
    [[nodiscard]] void* base() const noexcept { return trellis_base(cluster_); }

    /// All bytes of the region, including the shared heap: for calls on all of it, not for one's own data.
    [[nodiscard]] std::span<std::byte> region() const noexcept {
        return {static_cast<std::byte*>(base()), region_bytes()};
    }

    /// `count` objects of type T that start `offset_bytes` into the region and end at or before the start of the
    /// shared heap (`heap_start`). Fresh bytes are zero. T must mean the same bytes in every process: no virtual
    /// functions, and pointers only into the region.
    template <typename T>
    [[nodiscard]] std::span<T> view(std::size_t offset_bytes, std::size_t count) const {
        static_assert(std::is_trivially_destructible_v<T> && !std::is_polymorphic_v<T>,
                      "an object in shared memory must be plain: every node sees its bytes, no node destroys it");
        const auto fits = [&](std::size_t end) {
            return offset_bytes <= end && count <= (end - offset_bytes) / sizeof(T);
        };
        const auto refuse = [&](const std::string& why) {
            throw error(TRELLIS_ERROR_ARGUMENT, "a view of " + std::to_string(count) + " objects of " +
                                                    std::to_string(sizeof(T)) + " bytes at offset " +
                                                    std::to_string(offset_bytes) + " " + why);
        };
        if (!fits(region_bytes())) {
            refuse("does not fit the region of " + std::to_string(region_bytes()) +
                   " bytes; make it smaller, or set region_bytes (trellis run --set region_bytes=1GiB)");
        }
        if (!fits(heap_start())) {
            refuse("reaches into the shared heap, which has bytes " + std::to_string(heap_start()) + " to " +
                   std::to_string(region_bytes()) + " of the region; give it less (trellis run --set heap_bytes=0, " +
                   "or a multiple of page_bytes), or make the region larger (region_bytes)");
        }
        if (offset_bytes % alignof(T) != 0) {
            refuse("is not aligned; its offset must be a multiple of " + std::to_string(alignof(T)) + ", for example " +
                   std::to_string((offset_bytes / alignof(T) + 1) * alignof(T)));
        }
        return {reinterpret_cast<T*>(static_cast<std::byte*>(base()) + offset_bytes), count};
    }

    /// Fetch the pages of `part` in large steps instead of with one fault per page.
    template <typename T, std::size_t Extent>
    void prefetch(std::span<T, Extent> part, access how = access::read) {
        detail::check(trellis_prefetch(cluster_, part.data(), part.size_bytes(), static_cast<int>(how)));
    }

    /// Change the protocol of whole pages of the region: "ivy", "lock(dynamic)", "delay(migrate, 500us)". Every node
    /// makes the same call, as with a barrier; the contents stay the same.
    template <typename T, std::size_t Extent>
    void set_protocol(std::span<T, Extent> part, const std::string& protocol) {
        detail::check(trellis_set_protocol(cluster_, part.data(), part.size_bytes(), protocol.c_str()));
    }
    /// The protocol of the byte at `address`.
    [[nodiscard]] std::string protocol_at(const void* address) const {
        std::string text(64, '\0');
        std::size_t length = static_cast<std::size_t>(
            detail::check(trellis_protocol_at(cluster_, address, text.data(), text.size() + 1)));
        if (length > text.size()) {
            text.resize(length);
            length = static_cast<std::size_t>(
                detail::check(trellis_protocol_at(cluster_, address, text.data(), text.size() + 1)));
        }
        text.resize(length);
        return text;
    }

    /// Wait for every node at barrier `id`; one thread per node.
    void barrier(std::uint64_t id = 0) { detail::check(trellis_barrier(cluster_, id)); }
    [[nodiscard]] trellis::mutex mutex(std::uint64_t id) noexcept { return trellis::mutex(*this, id); }
    [[nodiscard]] atomic_word atomic(std::uint64_t id) noexcept { return {cluster_, id}; }

    /// The same by name: cluster.mutex("queue"). The same text is the same object at every node.
    void barrier(const std::string& name) { barrier(id(name)); }
    [[nodiscard]] trellis::mutex mutex(const std::string& name) { return trellis::mutex(*this, name); }
    [[nodiscard]] atomic_word atomic(const std::string& name) { return atomic(id(name)); }
    /// The number of a name.
    [[nodiscard]] std::uint64_t id(const std::string& name) const {
        const std::uint64_t number = trellis_id(cluster_, name.c_str());
        if (number == 0) throw error(TRELLIS_ERROR_ARGUMENT, trellis_last_error());
        return number;
    }

    /// The array `name` of `count` elements, which the first call of any node makes and the others find;
    /// trellis/array.hpp says more. Throws if another node asked for another type or count.
    template <typename T>
    [[nodiscard]] trellis::array<T> array(const std::string& name, std::size_t count) {
        return trellis::array<T>(*this, name, count);
    }
    /// The same with `rows` times `columns` elements.
    template <typename T>
    [[nodiscard]] trellis::grid<T> grid(const std::string& name, std::size_t rows, std::size_t columns) {
        return trellis::grid<T>(*this, name, rows, columns);
    }

    /// Name the following part of this node's record.
    void phase(const std::string& name) { detail::check(trellis_phase(cluster_, name.c_str())); }
    [[nodiscard]] trellis_counters counters() const {
        trellis_counters counters{};
        detail::check(trellis_read_counters(cluster_, &counters, sizeof counters));
        return counters;
    }

    [[nodiscard]] trellis_cluster* handle() const noexcept { return cluster_; }

private:
    void join(const trellis_config* config) { detail::check(trellis_join(config, &cluster_)); }

    trellis_cluster* cluster_ = nullptr;
    int exceptions_at_join_ = std::uncaught_exceptions();
};

inline detail::of_cluster::of_cluster(cluster& where, std::uint64_t id) noexcept
    : cluster_(where.handle()), id_(id) {}
inline detail::of_cluster::of_cluster(cluster& where, const std::string& name)
    : cluster_(where.handle()), id_(where.id(name)) {}

/// Locks the pages that contain a range of the region, as std::lock_guard locks a mutex: this node gets them for
/// stores, and no other node sees them until the guard is destroyed. The range must be under a protocol with a lock
/// layer. Not recursive. Must not outlive its cluster.
class range_lock {
public:
    template <typename T, std::size_t Extent>
    range_lock(cluster& where, std::span<T, Extent> part)
        : cluster_(where.handle()), address_(part.data()), bytes_(part.size_bytes()) {
        detail::check(trellis_lock_range(cluster_, address_, bytes_));
    }
    /// The lock ends by itself this long after it was acquired.
    template <typename T, std::size_t Extent>
    range_lock(cluster& where, std::span<T, Extent> part, std::chrono::microseconds stay)
        : cluster_(where.handle()), address_(part.data()), bytes_(part.size_bytes()) {
        const auto microseconds = static_cast<std::uint64_t>(stay.count() < 0 ? 0 : stay.count());
        detail::check(trellis_lock_range_for(cluster_, address_, bytes_, microseconds));
    }
    range_lock(const range_lock&) = delete;
    range_lock& operator=(const range_lock&) = delete;

    /// Never throws: a lost cluster is reported by the next call that can.
    ~range_lock() {
        if (address_ != nullptr) (void)trellis_unlock_range(cluster_, address_, bytes_);
    }

    /// Unlock the range now; throws if its time had ended before.
    void unlock() {
        if (address_ != nullptr) {
            detail::check(trellis_unlock_range(cluster_, std::exchange(address_, nullptr), bytes_));
        }
    }

private:
    trellis_cluster* cluster_;
    const void* address_;
    std::size_t bytes_;
};

/// As cluster::set_protocol.
template <typename T, std::size_t Extent>
void set_protocol(cluster& where, std::span<T, Extent> part, const std::string& protocol) {
    where.set_protocol(part, protocol);
}

}  // namespace trellis

#include "trellis/synchronisation.hpp"
#include "trellis/heap.hpp"
#include "trellis/array.hpp"

#endif  // TRELLIS_HPP
