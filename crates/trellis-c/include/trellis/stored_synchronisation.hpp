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

#include <cstdint>
#include <mutex>

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

/// An object of a region, by an address.
class of_store {
public:
    explicit of_store(const void* address) noexcept : address_(address) {}

    [[nodiscard]] const void* address() const noexcept { return address_; }

    int lock() const { return trellis_store_lock(address_); }
    int try_lock() const { return trellis_store_try_lock(address_); }
    int try_lock_for(std::uint64_t time) const { return trellis_store_try_lock_for(address_, time); }
    int unlock() const { return trellis_store_unlock(address_); }

    int read() const { return trellis_store_rwlock_read(address_); }
    int try_read() const { return trellis_store_rwlock_try_read(address_); }
    int try_read_for(std::uint64_t time) const { return trellis_store_rwlock_try_read_for(address_, time); }
    int end_read() const { return trellis_store_rwlock_end_read(address_); }
    int write() const { return trellis_store_rwlock_write(address_); }
    int try_write() const { return trellis_store_rwlock_try_write(address_); }
    int try_write_for(std::uint64_t time) const { return trellis_store_rwlock_try_write_for(address_, time); }
    int end_write() const { return trellis_store_rwlock_end_write(address_); }

    int notify_one() const { return trellis_store_condition_notify_one(address_); }
    int notify_all() const { return trellis_store_condition_notify_all(address_); }
    int wait(const of_store& mutex) const { return trellis_store_condition_wait(address_, mutex.address_); }
    int wait_for(const of_store& mutex, std::uint64_t time) const {
        return trellis_store_condition_wait_for(address_, mutex.address_, time);
    }

    int release(std::uint64_t count) const { return trellis_store_semaphore_release(address_, count); }
    int acquire() const { return trellis_store_semaphore_acquire(address_); }
    int try_acquire() const { return trellis_store_semaphore_try_acquire(address_); }
    int try_acquire_for(std::uint64_t time) const { return trellis_store_semaphore_try_acquire_for(address_, time); }
    int semaphore_value(std::uint64_t* value) const { return trellis_store_semaphore_value(address_, value); }

    int event_set() const { return trellis_store_event_set(address_); }
    int event_clear() const { return trellis_store_event_clear(address_); }
    int event_wait() const { return trellis_store_event_wait(address_); }
    int event_wait_for(std::uint64_t time) const { return trellis_store_event_wait_for(address_, time); }
    int event_is_set() const { return trellis_store_event_is_set(address_); }

    int once_begin() const { return trellis_store_once_begin(address_); }
    int once_done() const { return trellis_store_once_done(address_); }
    int once_failed() const { return trellis_store_once_failed(address_); }

    int barrier_of(std::uint32_t participants) const { return trellis_store_barrier_of(address_, participants); }

private:
    const void* address_;
};

}  // namespace detail

/// A lock. Any thread of the process may release it.
class mutex : public trellis::detail::basic_mutex<detail::of_store> {
public:
    using basic_mutex::basic_mutex;

    /// The token of this acquisition, larger than that of every earlier acquisition by any process.
    [[nodiscard]] std::uint64_t token() const {
        std::uint64_t token = 0;
        trellis::detail::check(trellis_store_lock_token(address(), &token));
        return token;
    }
};

/// A read-write lock. A waiting writer comes before later readers.
using shared_mutex = trellis::detail::basic_shared_mutex<detail::of_store>;

/// A condition variable for threads of all processes. Every notification wakes all waiters, notify_one() too.
class condition_variable : public trellis::detail::basic_condition_variable<detail::of_store, mutex> {
public:
    using basic_condition_variable::basic_condition_variable;

    /// Release `lock` and wake all waiters, in one call of the store.
    void unlock_and_notify_all(std::unique_lock<mutex>& lock) {
        const int status = trellis_store_unlock_and_notify_all(lock.mutex()->address(), address());
        // After another error the lock is not held, so it must not be released.
        if (status != TRELLIS_ERROR_ARGUMENT) (void)lock.release();
        trellis::detail::check(status);
    }
};

/// A semaphore.
class counting_semaphore : public trellis::detail::basic_counting_semaphore<detail::of_store> {
public:
    using basic_counting_semaphore::basic_counting_semaphore;

    /// Set the initial value, for the first process that calls this.
    void begin(std::uint64_t value) {
        trellis::detail::check(trellis_store_semaphore_begin(address(), value));
    }
};

/// An event flag.
using event = trellis::detail::basic_event<detail::of_store>;

/// Work that is done once in a region: call_once(flag, function, arguments...).
using once_flag = trellis::detail::basic_once_flag<detail::of_store>;
using trellis::detail::call_once;

/// A counting barrier of threads of any processes.
class barrier : public trellis::detail::basic_barrier<detail::of_store> {
public:
    explicit barrier(const void* address, std::uint32_t participants) noexcept : basic_barrier(participants, address) {}
};

}  // namespace trellis::stored

#endif  // TRELLIS_STORED_SYNCHRONISATION_HPP
