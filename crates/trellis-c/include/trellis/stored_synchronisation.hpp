// trellis/stored_synchronisation.hpp - synchronisation of threads of different processes whose memory is in a
// key-value store, with the interface of the standard library: its guards take these.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     struct shared { int items[100], count; } *shared = ...;        // in the region of the store
//     trellis::stored::mutex lock(shared);
//     trellis::stored::condition_variable changed(shared);
//     std::unique_lock guard(lock);
//     changed.wait(guard, [&] { return shared->count > 0; });       // somebody in any process calls
//     changed.notify_all()
//
// Each object is named by an address in the region, or by a text: mutex lock(trellis::stored::name("jobs")).
// Constructing one creates nothing and costs nothing, and two with the same address are the same object.
// trellis/stored_synchronisation.h documents what an operation costs and what it makes visible to other processes. A
// wait throws trellis::error with TRELLIS_ERROR_DEADLINE after TRELLIS_STORE_WAIT_SECONDS_MAX; what() says who has
// the object or who is missing. A wait with a time (`_for`, `_until`) waits for that time instead, and its result
// says when it is over.
#ifndef TRELLIS_STORED_SYNCHRONISATION_HPP
#define TRELLIS_STORED_SYNCHRONISATION_HPP

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "../trellis.hpp"
#include "stored_synchronisation.h"

namespace trellis::stored {

/// The address that stands for a text, the same in every process.
inline const void* name(const char* text) {
    const void* address = trellis_store_name(text);
    if (address == nullptr) throw error(TRELLIS_ERROR_ARGUMENT, trellis_last_error());
    return address;
}

namespace detail {

using trellis::detail::check;
using trellis::detail::ended;
using trellis::detail::microseconds;
using trellis::detail::until;

/// An object that is named by an address.
class object {
public:
    object(const object&) = delete;
    object& operator=(const object&) = delete;
    /// Its name.
    [[nodiscard]] const void* address() const noexcept { return address_; }

protected:
    explicit object(const void* address) noexcept : address_(address) {}
    ~object() = default;

    const void* address_;
};

}  // namespace detail

/// A lock: a TimedLockable. Not recursive; any thread of the process may release it.
class mutex : public detail::object {
public:
    explicit mutex(const void* address) noexcept : object(address) {}

    void lock() { detail::check(trellis_store_lock(address_)); }
    [[nodiscard]] bool try_lock() { return detail::check(trellis_store_try_lock(address_)) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_store_try_lock_for(address_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_for(detail::until(time));
    }
    void unlock() noexcept { detail::ended(trellis_store_unlock(address_)); }

    /// The token of this acquisition, larger than that of every earlier acquisition by any process.
    [[nodiscard]] std::uint64_t token() const {
        std::uint64_t token = 0;
        detail::check(trellis_store_lock_token(address_, &token));
        return token;
    }
};

/// A read-write lock: a SharedTimedLockable, for std::shared_lock to read, and for std::unique_lock and the others to
/// write. A waiting writer comes before later readers. Not recursive.
class shared_mutex : public detail::object {
public:
    explicit shared_mutex(const void* address) noexcept : object(address) {}

    void lock() { detail::check(trellis_store_rwlock_write(address_)); }
    [[nodiscard]] bool try_lock() { return detail::check(trellis_store_rwlock_try_write_for(address_, 0)) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_store_rwlock_try_write_for(address_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_for(detail::until(time));
    }
    void unlock() noexcept { detail::ended(trellis_store_rwlock_end_write(address_)); }

    void lock_shared() { detail::check(trellis_store_rwlock_read(address_)); }
    [[nodiscard]] bool try_lock_shared() {
        return detail::check(trellis_store_rwlock_try_read_for(address_, 0)) == 1;
    }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_store_rwlock_try_read_for(address_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_shared_for(detail::until(time));
    }
    void unlock_shared() noexcept { detail::ended(trellis_store_rwlock_end_read(address_)); }
};

/// A condition variable for threads of all processes. A notification wakes all waiters, so check the condition again.
class condition_variable : public detail::object {
public:
    explicit condition_variable(const void* address) noexcept : object(address) {}

    void notify_all() { detail::check(trellis_store_condition_notify(address_)); }
    /// Wakes all waiters, too: they check the condition again.
    void notify_one() { notify_all(); }
    /// Release `lock` and wake all waiters, in one call of the store.
    void unlock_and_notify(std::unique_lock<mutex>& lock) {
        detail::check(trellis_store_unlock_and_notify(lock.mutex()->address(), address_));
        (void)lock.release();
    }

    /// When it throws, `lock` says whether it is held.
    void wait(std::unique_lock<mutex>& lock) {
        woken(lock, trellis_store_condition_wait(address_, lock.mutex()->address()));
    }
    template <typename Predicate>
    void wait(std::unique_lock<mutex>& lock, Predicate is_so) {
        while (!is_so()) wait(lock);
    }

    template <typename Rep, typename Period>
    std::cv_status wait_for(std::unique_lock<mutex>& lock, const std::chrono::duration<Rep, Period>& duration) {
        const std::uint64_t time = detail::microseconds(duration);
        const int status = trellis_store_condition_wait_for(address_, lock.mutex()->address(), time);
        return woken(lock, status) == 1 ? std::cv_status::no_timeout : std::cv_status::timeout;
    }
    template <typename Rep, typename Period, typename Predicate>
    bool wait_for(std::unique_lock<mutex>& lock, const std::chrono::duration<Rep, Period>& duration,
                  Predicate is_so) {
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
        // After errors other than these the lock is not held, so it must not be released.
        if (status < 0 && status != TRELLIS_ERROR_DEADLINE && status != TRELLIS_ERROR_ARGUMENT) (void)lock.release();
        return detail::check(status);
    }
};

/// A semaphore, initially 0. `begin` sets the initial value, for the first process that calls it.
class counting_semaphore : public detail::object {
public:
    explicit counting_semaphore(const void* address) noexcept : object(address) {}

    void begin(std::uint64_t value) { detail::check(trellis_store_semaphore_begin(address_, value)); }
    void release(std::uint64_t count = 1) { detail::check(trellis_store_semaphore_post(address_, count)); }
    void acquire() { detail::check(trellis_store_semaphore_wait(address_)); }
    [[nodiscard]] bool try_acquire() { return detail::check(trellis_store_semaphore_try_wait(address_)) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_acquire_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_store_semaphore_wait_for(address_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_acquire_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_acquire_for(detail::until(time));
    }
    /// The value; others may change it at any moment.
    [[nodiscard]] std::uint64_t value() const {
        std::uint64_t value = 0;
        detail::check(trellis_store_semaphore_value(address_, &value));
        return value;
    }
};

/// A counting barrier: opens when so many threads, of any processes, have arrived.
class barrier : public detail::object {
public:
  barrier(const void *address, std::uint32_t participants) noexcept : object(address), participants_(participants) {}

  /// True for the last to arrive.
  bool arrive_and_wait() { return detail::check(trellis_store_barrier(address_, participants_)) == 1; }

private:
    std::uint32_t participants_;
};

/// An event flag, initially not set: all waiters go on when it is set, and no thread waits while it is set.
class event : public detail::object {
public:
    explicit event(const void* address) noexcept : object(address) {}

    void set() { detail::check(trellis_store_event_set(address_)); }
    void clear() { detail::check(trellis_store_event_clear(address_)); }
    void wait() { detail::check(trellis_store_event_wait(address_)); }
    template <typename Rep, typename Period>
    [[nodiscard]] bool wait_for(const std::chrono::duration<Rep, Period>& duration) {
        return detail::check(trellis_store_event_wait_for(address_, detail::microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool wait_until(const std::chrono::time_point<Clock, Duration>& time) {
        return wait_for(detail::until(time));
    }
    [[nodiscard]] bool is_set() const { return detail::check(trellis_store_event_is_set(address_)) == 1; }
};

/// Work that is done once in a region; see call_once.
class once_flag : public detail::object {
public:
    explicit once_flag(const void* address) noexcept : object(address) {}

private:
    template <typename Function, typename... Arguments>
    friend bool call_once(once_flag& flag, Function&& function, Arguments&&... arguments);
};

/// Call `function(arguments...)` once in the region, and return when it has been called; returns whether this call
/// did it. If the function throws, the exception is thrown here, and the next thread that waits or arrives calls it.
template <typename Function, typename... Arguments>
bool call_once(once_flag& flag, Function&& function, Arguments&&... arguments) {
    if (detail::check(trellis_store_once_begin(flag.address_)) == 0) return false;
    try {
        std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
    } catch (...) {
        // The function's exception is more useful than the error of a lost store.
        (void)trellis_store_once_failed(flag.address_);
        throw;
    }
    detail::check(trellis_store_once_done(flag.address_));
    return true;
}

}  // namespace trellis::stored

#endif  // TRELLIS_STORED_SYNCHRONISATION_HPP
