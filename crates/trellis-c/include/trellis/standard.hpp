// trellis/standard.hpp - what the C++ headers share: errors; and mutexes, condition variables, semaphores and so on
// with the interface of the standard library. synchronisation.hpp has them for a cluster, stored_synchronisation.hpp
// for memory in a key-value store; both include this file.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Each class is a template over `Calls`: the name of an object, and the functions of the C interface for it. Their
// results are those of C: negative is an error, and 1 or 0 answers a question.
#ifndef TRELLIS_STANDARD_HPP
#define TRELLIS_STANDARD_HPP

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "../trellis.h"

namespace trellis {

/// The category of Trellis' error codes; message() is trellis_status_text().
inline const std::error_category& error_category() noexcept {
    static const class : public std::error_category {
        [[nodiscard]] const char* name() const noexcept override { return "trellis"; }
        [[nodiscard]] std::string message(int status) const override { return trellis_status_text(status); }
    } category;
    return category;
}

/// A failed call: what() is the message, status() the code (TRELLIS_ERROR_...), code() the same for <system_error>.
class error : public std::runtime_error {
public:
    error(int status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {}
    [[nodiscard]] int status() const noexcept { return status_; }
    [[nodiscard]] std::error_code code() const noexcept { return {status_, error_category()}; }

private:
    int status_;
};

namespace detail {

/// Convert a negative result of the C interface to an exception; pass anything else on.
inline int check(int status) {
    if (status < 0) throw error(status, trellis_last_error());
    return status;
}

/// Handles the status of unlock functions, which never throw because guards call them during stack unwinding: a lost
/// cluster or store is reported by the next call that can throw. The program ends here if a lock is released that is
/// not held, or if it cannot be released in time, because the others would wait for it forever.
inline void ended(int status) noexcept {
    if (status == TRELLIS_ERROR_STATE || status == TRELLIS_ERROR_DEADLINE) {
        std::fprintf(stderr, "trellis: %s\n", trellis_last_error());
        std::terminate();
    }
}

/// A duration in microseconds, rounded up: a wait lasts at least this long.
template <typename Rep, typename Period>
std::uint64_t microseconds(const std::chrono::duration<Rep, Period>& duration) {
    const auto rounded = std::chrono::ceil<std::chrono::microseconds>(duration).count();
    return rounded < 0 ? 0 : static_cast<std::uint64_t>(rounded);
}

/// The time until then.
template <typename Clock, typename Duration>
auto until(const std::chrono::time_point<Clock, Duration>& time) {
    return time - Clock::now();
}

/// An object, by its name; it has the constructors of `Calls`. Constructing one creates nothing and costs nothing; two
/// with the same name are the same object.
template <typename Calls>
class object : protected Calls {
public:
    using Calls::Calls;
    object(const object&) = delete;
    object& operator=(const object&) = delete;

    /// Its name: a number in a cluster, an address in a store.
    [[nodiscard]] auto id() const noexcept
        requires requires(const Calls& calls) { calls.id(); }
    {
        return Calls::id();
    }
    [[nodiscard]] auto address() const noexcept
        requires requires(const Calls& calls) { calls.address(); }
    {
        return Calls::address();
    }
    /// The functions of C.
    [[nodiscard]] const Calls& calls() const noexcept { return *this; }
};

/// A TimedLockable, for std::lock_guard, std::unique_lock, std::scoped_lock (of several, in any order) and
/// std::condition_variable_any. Not recursive.
template <typename Calls>
class basic_mutex : public object<Calls> {
public:
    using object<Calls>::object;

    void lock() { check(Calls::lock()); }
    [[nodiscard]] bool try_lock() { return check(Calls::try_lock()) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& duration) {
        return check(Calls::try_lock_for(microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_for(until(time));
    }
    void unlock() noexcept { ended(Calls::unlock()); }
};

/// A SharedTimedLockable, for std::shared_lock to read, and for std::unique_lock and the others to write. Not
/// recursive.
template <typename Calls>
class basic_shared_mutex : public object<Calls> {
public:
    using object<Calls>::object;

    void lock() { check(Calls::write()); }
    [[nodiscard]] bool try_lock() { return check(Calls::try_write()) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_for(const std::chrono::duration<Rep, Period>& duration) {
        return check(Calls::try_write_for(microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_for(until(time));
    }
    void unlock() noexcept { ended(Calls::end_write()); }

    void lock_shared() { check(Calls::read()); }
    [[nodiscard]] bool try_lock_shared() { return check(Calls::try_read()) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_lock_shared_for(const std::chrono::duration<Rep, Period>& duration) {
        return check(Calls::try_read_for(microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_lock_shared_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_lock_shared_for(until(time));
    }
    void unlock_shared() noexcept { ended(Calls::end_read()); }
};

/// A condition variable. Check the condition again after a wait, because another thread may have acquired the lock
/// first.
template <typename Calls, typename Mutex>
class basic_condition_variable : public object<Calls> {
public:
    using object<Calls>::object;

    void notify_one() { check(Calls::notify_one()); }
    void notify_all() { check(Calls::notify_all()); }

    /// When it throws, `lock` says whether it is held.
    void wait(std::unique_lock<Mutex>& lock) { woken(lock, Calls::wait(lock.mutex()->calls())); }
    template <typename Predicate>
    void wait(std::unique_lock<Mutex>& lock, Predicate is_so) {
        while (!is_so()) wait(lock);
    }

    template <typename Rep, typename Period>
    std::cv_status wait_for(std::unique_lock<Mutex>& lock, const std::chrono::duration<Rep, Period>& duration) {
        const int status = Calls::wait_for(lock.mutex()->calls(), microseconds(duration));
        return woken(lock, status) == 1 ? std::cv_status::no_timeout : std::cv_status::timeout;
    }
    template <typename Rep, typename Period, typename Predicate>
    bool wait_for(std::unique_lock<Mutex>& lock, const std::chrono::duration<Rep, Period>& duration, Predicate is_so) {
        return wait_until(lock, std::chrono::steady_clock::now() + duration, std::move(is_so));
    }
    template <typename Clock, typename Duration>
    std::cv_status wait_until(std::unique_lock<Mutex>& lock, const std::chrono::time_point<Clock, Duration>& time) {
        return wait_for(lock, until(time));
    }
    template <typename Clock, typename Duration, typename Predicate>
    bool wait_until(std::unique_lock<Mutex>& lock, const std::chrono::time_point<Clock, Duration>& time,
                    Predicate is_so) {
        while (!is_so()) {
            if (wait_until(lock, time) == std::cv_status::timeout) return is_so();
        }
        return true;
    }

private:
    static int woken(std::unique_lock<Mutex>& lock, int status) {
        // After errors other than these the lock is not held, so it must not be released.
        if (status < 0 && status != TRELLIS_ERROR_DEADLINE && status != TRELLIS_ERROR_ARGUMENT) (void)lock.release();
        return check(status);
    }
};

/// A semaphore, initially 0; one thread releases the initial value.
template <typename Calls>
class basic_counting_semaphore : public object<Calls> {
public:
    using object<Calls>::object;

    void release(std::uint64_t count = 1) { check(Calls::release(count)); }
    void acquire() { check(Calls::acquire()); }
    [[nodiscard]] bool try_acquire() { return check(Calls::try_acquire()) == 1; }
    template <typename Rep, typename Period>
    [[nodiscard]] bool try_acquire_for(const std::chrono::duration<Rep, Period>& duration) {
        return check(Calls::try_acquire_for(microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool try_acquire_until(const std::chrono::time_point<Clock, Duration>& time) {
        return try_acquire_for(until(time));
    }
    /// The value; others may change it at any moment.
    [[nodiscard]] std::uint64_t value() const {
        std::uint64_t value = 0;
        check(Calls::semaphore_value(&value));
        return value;
    }
};

/// An event flag, initially not set: all waiters go on when it is set, and no thread waits while it is set.
template <typename Calls>
class basic_event : public object<Calls> {
public:
    using object<Calls>::object;

    void set() { check(Calls::event_set()); }
    void clear() { check(Calls::event_clear()); }
    void wait() { check(Calls::event_wait()); }
    template <typename Rep, typename Period>
    [[nodiscard]] bool wait_for(const std::chrono::duration<Rep, Period>& duration) {
        return check(Calls::event_wait_for(microseconds(duration))) == 1;
    }
    template <typename Clock, typename Duration>
    [[nodiscard]] bool wait_until(const std::chrono::time_point<Clock, Duration>& time) {
        return wait_for(until(time));
    }
    [[nodiscard]] bool is_set() const { return check(Calls::event_is_set()) == 1; }
};

/// A barrier that opens when so many threads have arrived.
template <typename Calls>
class basic_barrier : public object<Calls> {
public:
    /// True for the last to arrive.
    bool arrive_and_wait() { return check(Calls::barrier_of(participants_)) == 1; }

protected:
    template <typename... Name>
    explicit basic_barrier(std::uint32_t participants, Name&... name) noexcept
        : object<Calls>(name...), participants_(participants) {}

private:
    std::uint32_t participants_;
};

/// Work that is done once; see call_once.
template <typename Calls>
class basic_once_flag : public object<Calls> {
public:
    using object<Calls>::object;
};

/// Call `function(arguments...)` once, and return when it has been called; returns whether this call did it. If the
/// function throws, the exception is thrown here, and the next thread that waits or arrives calls it.
template <typename Calls, typename Function, typename... Arguments>
bool call_once(basic_once_flag<Calls>& flag, Function&& function, Arguments&&... arguments) {
    if (check(flag.calls().once_begin()) == 0) return false;
    try {
        std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
    } catch (...) {
        // The function's exception is more useful than the error of a lost cluster or store.
        (void)flag.calls().once_failed();
        throw;
    }
    check(flag.calls().once_done());
    return true;
}

}  // namespace detail
}  // namespace trellis

#endif  // TRELLIS_STANDARD_HPP
