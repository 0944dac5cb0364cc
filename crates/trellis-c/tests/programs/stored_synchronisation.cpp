// The types of trellis/stored_synchronisation.hpp with the guards of the standard library. Exit 0 when all is right.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include <trellis/stored.h>
#include <trellis/stored_synchronisation.hpp>

using namespace std::chrono_literals;
namespace stored = trellis::stored;

static_assert(!std::is_copy_constructible_v<stored::mutex> && !std::is_copy_assignable_v<stored::mutex>);

static void check(bool condition, const char* what) {
    if (condition) return;
    std::cerr << "wrong: " << what << "; last error: " << trellis_last_error() << std::endl;
    std::_Exit(1);
}

template <typename Work>
static void in_threads(Work work) {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) threads.emplace_back([&, thread] { work(thread); });
}

// Two locks taken in different orders: std::scoped_lock must avoid a deadlock by try_lock.
static void take_several(long* sums) {
    in_threads([&](int thread) {
        stored::mutex one(&sums[0]), two(&sums[1]);
        for (int i = 0; i < 25; ++i) {
            if ((thread + i) % 2 == 0) {
                const std::scoped_lock guard(one, two);
                sums[0] += 1, sums[1] += 1;
            } else {
                const std::scoped_lock guard(two, one);
                sums[1] += 1, sums[0] += 1;
            }
            const std::lock_guard<stored::mutex> guard(one);
            sums[0] += 1;
        }
    });
    check(sums[0] == 200 && sums[1] == 100, "two locks keep increments apart");
    stored::mutex lock(stored::name("a lock")), same(stored::name("a lock"));
    std::unique_lock guard(lock, std::defer_lock);
    check(guard.try_lock_for(60s) && guard.owns_lock() && lock.token() > 0, "a lock that nobody has");
    std::unique_lock other(same, std::try_to_lock);
    check(!other.owns_lock() && !other.try_lock_for(1ms), "a lock that this process has");
    check(!lock.try_lock_until(std::chrono::steady_clock::now() + 1ms), "nor later");
}

static void read_and_write(long* pair) {
    in_threads([&](int thread) {
        stored::shared_mutex lock(pair);
        for (int i = 0; i < 20; ++i) {
            if (i % 4 == thread) {
                const std::unique_lock guard(lock);
                pair[0] += 1, pair[1] += 1;
            } else {
                const std::shared_lock guard(lock);
                check(pair[0] == pair[1], "a reader sees half of a write");
            }
        }
    });
    check(pair[0] == 20, "writes under a shared mutex");
    stored::shared_mutex lock(&pair[1]);
    const std::shared_lock one(lock);
    const std::shared_lock two(lock, 60s);
    check(two.owns_lock() && !lock.try_lock() && !lock.try_lock_for(1ms), "readers together, no writer");
}

// The library's own condition variable takes any lock; Trellis' one is for all processes.
static void wait_for_each_other() {
    stored::mutex lock(stored::name("queue"));
    std::condition_variable_any arrived;
    stored::condition_variable left(stored::name("queue"));
    std::deque<int> queue;
    std::jthread consumer([&] {
        for (int item = 0; item < 20; ++item) {
            std::unique_lock guard(lock);
            arrived.wait(guard, [&] { return !queue.empty(); });
            check(queue.front() == item, "items come in order");
            queue.pop_front();
            left.unlock_and_notify_all(guard);
            check(!guard.owns_lock(), "it was given back");
        }
    });
    for (int item = 0; item < 20; ++item) {
        std::unique_lock guard(lock);
        left.wait(guard, [&] { return queue.empty(); });
        queue.push_back(item);
        arrived.notify_one();
    }
    consumer.join();
    std::unique_lock guard(lock);
    check(left.wait_for(guard, 1ms) == std::cv_status::timeout && guard.owns_lock(), "nobody notifies");
    check(!left.wait_for(guard, 1ms, [] { return false; }), "and nothing happens");
    check(left.wait_until(guard, std::chrono::steady_clock::now() + 60s, [] { return true; }), "what is so already");
}

static void the_others() {
    stored::counting_semaphore items(stored::name("items"));
    items.begin(2);
    items.begin(9);
    check(items.value() == 2 && items.try_acquire(), "it began at 2");
    items.acquire();
    check(!items.try_acquire() && !items.try_acquire_for(1ms), "there is none left");
    items.release(3);
    check(items.try_acquire_until(std::chrono::steady_clock::now() + 60s) && items.value() == 2, "three came");

    stored::event flag(stored::name("flag"));
    check(!flag.is_set() && !flag.wait_for(1ms), "it is not set");
    flag.set();
    flag.wait();
    check(flag.wait_until(std::chrono::steady_clock::now() + 60s), "it is set");
    flag.clear();
    check(!flag.is_set(), "it is cleared");

    std::atomic<int> last{0}, called{0};
    in_threads([&](int) {
        stored::barrier all(stored::name("all"), 4);
        for (int round = 0; round < 5; ++round) last += all.arrive_and_wait();
        stored::once_flag flag(stored::name("made"));
        stored::call_once(flag, [&](int by) { called += by; }, 1);
    });
    check(last == 5 && called == 1, "one of four is the last, and one calls");

    stored::once_flag failing(stored::name("fails first"));
    try {
        stored::call_once(failing, [] { throw std::runtime_error("not now"); });
        check(false, "it throws what the function threw");
    } catch (const std::runtime_error& error) {
        check(std::string(error.what()) == "not now", "it is that one");
    }
    check(stored::call_once(failing, [] {}) && !stored::call_once(failing, [] {}), "the next one calls it");
}

static void refusals() {
    stored::mutex nowhere(nullptr);
    try {
        nowhere.lock();
        check(false, "NULL is no lock");
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_ARGUMENT, "it is an argument");
    }
    try {
        (void)stored::name(nullptr);
        check(false, "NULL is not a text");
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_ARGUMENT, "it is an argument, too");
    }
}

int main() {
    check(trellis_store_open(nullptr) == TRELLIS_OK, "the region opens");
    long* shared = static_cast<long*>(trellis_store_malloc(4 * sizeof(long)));
    for (int i = 0; i < 4; ++i) shared[i] = 0;
    take_several(&shared[0]);
    read_and_write(&shared[2]);
    wait_for_each_other();
    the_others();
    refusals();
    std::cout << "done" << std::endl;
}
