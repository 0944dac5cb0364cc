// trellis/synchronisation.hpp - synchronisation of threads of different nodes; included by trellis.hpp.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     trellis::cluster cluster;
//     trellis::mutex lock(cluster, 1);
//     trellis::condition_variable changed(cluster, 1);
//     std::unique_lock guard(lock);
//     changed.wait(guard, [&] { return ready; });      // somebody on any node calls changed.notify_one()
//
// Each object is a number or a name ("queue"); constructing one creates nothing and costs nothing, and two with the
// same number or name are the same object. They have the interface of the standard library's, so its guards take them.
// A wait throws trellis::error with TRELLIS_ERROR_DEADLINE after wait_seconds_max; what() says who holds the object or
// who is missing. A wait with a time (`_for`, `_until`) waits for that time instead, longer or shorter, and its result
// says when it is over. None may outlive its cluster.
#ifndef TRELLIS_SYNCHRONISATION_HPP
#define TRELLIS_SYNCHRONISATION_HPP

#include <cstring>

#include "../trellis.hpp"

namespace trellis {

/// Read-write lock `id`. Threads are served in the order in which they asked; adjacent readers share the lock.
using shared_mutex = detail::basic_shared_mutex<detail::of_cluster>;

/// Condition variable `id`, for threads of all nodes. Only a notification that was given during the wait ends it.
using condition_variable = detail::basic_condition_variable<detail::of_cluster, mutex>;

/// Semaphore `id`.
using counting_semaphore = detail::basic_counting_semaphore<detail::of_cluster>;

/// Event flag `id`.
using event = detail::basic_event<detail::of_cluster>;

/// Work `id` that is done once in a cluster: call_once(flag, function, arguments...).
using once_flag = detail::basic_once_flag<detail::of_cluster>;
using detail::call_once;

/// Counting barrier `id` of threads of any nodes. cluster::barrier() is for one thread of every node, and costs fewer
/// messages.
class barrier : public detail::basic_barrier<detail::of_cluster> {
public:
    explicit barrier(cluster& where, std::uint64_t id, std::uint32_t participants) noexcept
        : basic_barrier(participants, where, id) {}
    explicit barrier(cluster& where, const std::string& name, std::uint32_t participants)
        : basic_barrier(participants, where, name) {}
};

/// Latch `id`, with the interface of std::latch: a counter that starts at `expected` and is used once. It takes the
/// word and the event flag with its number.
class latch {
public:
    explicit latch(cluster& where, std::uint64_t id, std::uint64_t expected)
        : count_(where.atomic(id)), zero_(where, id), expected_(expected) {}
    explicit latch(cluster& where, const std::string& name, std::uint64_t expected)
        : latch(where, where.id(name), expected) {}

    void count_down(std::uint64_t times = 1) {
        if (times > 0 && count_.fetch_add(times) + times >= expected_) zero_.set();
    }
    [[nodiscard]] bool try_wait() const { return expected_ == 0 || zero_.is_set(); }
    void wait() {
        if (expected_ > 0) zero_.wait();
    }
    void arrive_and_wait(std::uint64_t times = 1) {
        count_down(times);
        wait();
    }

private:
    atomic_word count_;
    event zero_;
    std::uint64_t expected_;
};

/// The operation by which reduce() combines values.
enum class reduction : int {
    sum = TRELLIS_SUM,
    least = TRELLIS_LEAST,
    greatest = TRELLIS_GREATEST,
    bit_and = TRELLIS_AND,
    bit_or = TRELLIS_OR,
    bit_xor = TRELLIS_XOR,
};

/// cluster::barrier(id), and every node gets the reduction by `how` of the values of all nodes, in the widest type of
/// its kind: std::int64_t, std::uint64_t (bool too) or double.
template <typename T>
    requires std::is_arithmetic_v<T>
auto reduce(cluster& where, std::uint64_t id, reduction how, T value) {
    if constexpr (std::is_floating_point_v<T>) {
        double all = value;
        detail::check(trellis_barrier_reduce_double(where.handle(), id, static_cast<int>(how), &all));
        return all;
    } else if constexpr (std::is_signed_v<T>) {
        std::int64_t all = value;
        detail::check(trellis_barrier_reduce_i64(where.handle(), id, static_cast<int>(how), &all));
        return all;
    } else {
        std::uint64_t all = value;
        detail::check(trellis_barrier_reduce_u64(where.handle(), id, static_cast<int>(how), &all));
        return all;
    }
}

/// cluster::barrier(id), and every node gets the value of node `from`: any plain type of at most 8 bytes.
template <typename T>
T broadcast(cluster& where, std::uint64_t id, std::size_t from, T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t),
                  "a barrier carries a plain value of 8 bytes at most; put more into the region");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    detail::check(trellis_broadcast(where.handle(), id, from, &bits));
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace trellis

#endif  // TRELLIS_SYNCHRONISATION_HPP
