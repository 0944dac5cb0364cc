// trellis/synchronisation.hpp - how threads of different nodes wait for each other; included by trellis.hpp.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     trellis::cluster cluster;
//     trellis::mutex lock(cluster, 1);
//     trellis::condition_variable changed(cluster, 1);
//     std::unique_lock guard(lock);
//     changed.wait(guard, [&] { return ready; });      // somebody on any node calls changed.notify_one()
//
// Each object is a number; constructing one makes nothing and costs nothing, and two with the same number are the same
// object. They have the shape of the standard library's, so its guards take them. A wait throws trellis::error with
// TRELLIS_ERROR_DEADLINE after wait_seconds_max; what() says who holds or who is missing. One that is given a time
// (`_for`, `_until`) waits for that time instead, longer or shorter, and says by its result that it is over. None may
// outlive its cluster.
#ifndef TRELLIS_SYNCHRONISATION_HPP
#define TRELLIS_SYNCHRONISATION_HPP

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>

#include "../trellis.hpp"

namespace trellis {

inline mutex::mutex(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

/// Read-write lock `id`: a SharedTimedLockable, so std::shared_lock takes it to read, std::unique_lock and the others
/// to write. In the order in which threads asked; readers that are next to each other go in together. Not recursive.
class shared_mutex : public detail::object {
public:
    explicit shared_mutex(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

    void lock() { detail::check(trellis_rwlock_write(cluster_, id_)); }
    [[nodiscard]] bool try_lock() { return detail::check(trellis_rwlock_try_write(cluster_, id_)) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_rwlock_try_write_for(cluster_, id_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_for(detail::until(time));
    }
    void unlock() noexcept { detail::ended(trellis_rwlock_end_write(cluster_, id_)); }

    void lock_shared() { detail::check(trellis_rwlock_read(cluster_, id_)); }
    [[nodiscard]] bool try_lock_shared() { return detail::check(trellis_rwlock_try_read(cluster_, id_)) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_rwlock_try_read_for(cluster_, id_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_shared_for(detail::until(time));
    }
    void unlock_shared() noexcept { detail::ended(trellis_rwlock_end_read(cluster_, id_)); }
};

/// Condition variable `id`, for threads of all nodes. A wait ends by a notification that was given while it waited, and
/// by nothing else; still, look again, because another thread may have taken the lock first.
class condition_variable : public detail::object {
public:
    explicit condition_variable(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

    void notify_one() { detail::check(trellis_condition_signal(cluster_, id_)); }
    void notify_all() { detail::check(trellis_condition_broadcast(cluster_, id_)); }

    /// When it throws, `lock` says whether it is held.
    void wait(std::unique_lock<mutex>& lock) {
        woken(lock, trellis_condition_wait(cluster_, id_, lock.mutex()->id()));
    }
    template <typename Predicate>
    void wait(std::unique_lock<mutex>& lock, Predicate is_so) {
        while (!is_so()) wait(lock);
    }

    template <typename Rep, typename Period>
    std::cv_status wait_for(std::unique_lock<mutex>& lock, const std::chrono::duration<Rep, Period>& duration) {
        const std::uint64_t microseconds = detail::microseconds(duration);
        const int status = trellis_condition_wait_for(cluster_, id_, lock.mutex()->id(), microseconds);
        return woken(lock, status) == 1 ? std::cv_status::no_timeout : std::cv_status::timeout;
    }
    template <typename Rep, typename Period, typename Predicate>
    bool wait_for(std::unique_lock<mutex>& lock, const std::chrono::duration<Rep, Period>& duration, Predicate is_so) {
        return wait_until(lock, std::chrono::steady_clock::now() + duration, std::move(is_so));
    }
    template <typename Clock, typename Duration>
    std::cv_status wait_until(std::unique_lock<mutex>& lock, const std::chrono::time_point<Clock, Duration>& time) {
        return wait_for(lock, detail::until(time));
    }
    template <typename Clock, typename Duration, typename Predicate>
    bool wait_until(std::unique_lock<mutex>& lock, const std::chrono::time_point<Clock, Duration>& time,
                    Predicate is_so) {
        while (!is_so()) {
            if (wait_until(lock, time) == std::cv_status::timeout) return is_so();
        }
        return true;
    }

private:
    static int woken(std::unique_lock<mutex>& lock, int status) {
        // After these the lock is not held, so nobody may give it back.
        if (status == TRELLIS_ERROR_NODE_LOST || status == TRELLIS_ERROR_STATE) (void)lock.release();
        return detail::check(status);
    }
};

/// Semaphore `id`: 0 at first; one thread releases what it is to start with.
class counting_semaphore : public detail::object {
public:
    explicit counting_semaphore(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

    void release(std::uint64_t count = 1) { detail::check(trellis_semaphore_post(cluster_, id_, count)); }
    void acquire() { detail::check(trellis_semaphore_wait(cluster_, id_)); }
    [[nodiscard]] bool try_acquire() { return detail::check(trellis_semaphore_try_wait(cluster_, id_)) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_acquire_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_semaphore_wait_for(cluster_, id_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_acquire_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_acquire_for(detail::until(time));
    }
    /// What it stands at; others may change it at any moment.
    [[nodiscard]] std::uint64_t value() const {
        std::uint64_t value = 0;
        detail::check(trellis_semaphore_value(cluster_, id_, &value));
        return value;
    }
};

/// Event flag `id`, not set at first: who waits goes on when it is set, and nobody waits while it is.
class event : public detail::object {
public:
    explicit event(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

    void set() { detail::check(trellis_event_set(cluster_, id_)); }
    void clear() { detail::check(trellis_event_clear(cluster_, id_)); }
    void wait() { detail::check(trellis_event_wait(cluster_, id_)); }
    template <typename Rep, typename Period>
    [[nodiscard]] bool wait_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_event_wait_for(cluster_, id_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool wait_until(const std::chrono::time_point<Clock, Duration>& time) {
        return wait_for(detail::until(time));
    }
    [[nodiscard]] bool is_set() const { return detail::check(trellis_event_is_set(cluster_, id_)) == 1; }
};

/// What is done once in a cluster; see call_once.
class once_flag : public detail::object {
public:
    explicit once_flag(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

private:
    template <typename Function, typename... Arguments>
    friend bool call_once(once_flag& flag, Function&& function, Arguments&&... arguments);
};

/// Have `function(arguments...)` called once in the cluster, and return when it has been; whether it was by this call.
/// If it throws, the exception is thrown here, and the next thread that waits or comes calls it.
template <typename Function, typename... Arguments>
bool call_once(once_flag& flag, Function&& function, Arguments&&... arguments) {
    if (detail::check(trellis_once_begin(flag.cluster_, flag.id_)) == 0) return false;
    try {
        std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
    } catch (...) {
        // What the function threw says more than that the cluster is lost too.
        (void)trellis_once_failed(flag.cluster_, flag.id_);
        throw;
    }
    detail::check(trellis_once_done(flag.cluster_, flag.id_));
    return true;
}

/// Counting barrier `id`: opens when so many threads, of whichever nodes, have come. cluster::barrier() is for one
/// thread of every node, and costs fewer messages.
class barrier : public detail::object {
public:
    explicit barrier(cluster& where, std::uint64_t id, std::uint32_t participants) noexcept
        : object(where.handle(), id), participants_(participants) {}

    /// True for the last that came.
    bool arrive_and_wait() { return detail::check(trellis_barrier_of(cluster_, id_, participants_)) == 1; }

private:
    std::uint32_t participants_;
};

/// How reduce() makes one value of many.
enum class reduction : int {
    sum = TRELLIS_SUM,
    least = TRELLIS_LEAST,
    greatest = TRELLIS_GREATEST,
    bit_and = TRELLIS_AND,
    bit_or = TRELLIS_OR,
    bit_xor = TRELLIS_XOR,
};

/// cluster::barrier(id), and every node gets what `how` makes of the values that all of them gave, in the widest type
/// of its kind: std::int64_t, std::uint64_t (bool too) or double.
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
