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
// Each object is a number; constructing one creates nothing and costs nothing, and two with the same number are the
// same object. They have the interface of the standard library's, so its guards take them. A wait throws
// trellis::error with TRELLIS_ERROR_DEADLINE after wait_seconds_max; what() says who holds the object or who is
// missing. A wait with a time (`_for`, `_until`) waits for that time instead, longer or shorter, and its result says
// when it is over. None may outlive its cluster.
#ifndef TRELLIS_SYNCHRONISATION_HPP
#define TRELLIS_SYNCHRONISATION_HPP

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>

#include "../trellis.hpp"

namespace trellis {

inline mutex::mutex(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

/// Read-write lock `id`: a SharedTimedLockable, for std::shared_lock to read, and for std::unique_lock and the others
/// to write. Threads are served in the order in which they asked; adjacent readers share the lock. Not recursive.
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

/// Condition variable `id`, for threads of all nodes. Only a notification that was given during the wait ends it;
/// still, check the condition again, because another thread may have acquired the lock first.
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
        // After these errors the lock is not held, so it must not be released.
        if (status == TRELLIS_ERROR_NODE_LOST || status == TRELLIS_ERROR_STATE) (void)lock.release();
        return detail::check(status);
    }
};

/// Semaphore `id`, initially 0; one thread releases the initial value.
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
    /// The value; others may change it at any moment.
    [[nodiscard]] std::uint64_t value() const {
        std::uint64_t value = 0;
        detail::check(trellis_semaphore_value(cluster_, id_, &value));
        return value;
    }
};

/// Event flag `id`, initially not set: all waiters go on when it is set, and no thread waits while it is set.
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

/// Work that is done once in a cluster; see call_once.
class once_flag : public detail::object {
public:
    explicit once_flag(cluster& where, std::uint64_t id) noexcept : object(where.handle(), id) {}

private:
    template <typename Function, typename... Arguments>
    friend bool call_once(once_flag& flag, Function&& function, Arguments&&... arguments);
};

/// Call `function(arguments...)` once in the cluster, and return when it has been called; returns whether this call
/// did it. If the function throws, the exception is thrown here, and the next thread that waits or arrives calls it.
template <typename Function, typename... Arguments>
bool call_once(once_flag& flag, Function&& function, Arguments&&... arguments) {
    if (detail::check(trellis_once_begin(flag.cluster_, flag.id_)) == 0) return false;
    try {
        std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
    } catch (...) {
        // The function's exception is more useful than the error of a lost cluster.
        (void)trellis_once_failed(flag.cluster_, flag.id_);
        throw;
    }
    detail::check(trellis_once_done(flag.cluster_, flag.id_));
    return true;
}

/// Counting barrier `id`: opens when so many threads, of any nodes, have arrived. cluster::barrier() is for one
/// thread of every node, and costs fewer messages.
class barrier : public detail::object {
public:
    explicit barrier(cluster& where, std::uint64_t id, std::uint32_t participants) noexcept
        : object(where.handle(), id), participants_(participants) {}

    /// True for the last to arrive.
    bool arrive_and_wait() { return detail::check(trellis_barrier_of(cluster_, id_, participants_)) == 1; }

private:
    std::uint32_t participants_;
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
