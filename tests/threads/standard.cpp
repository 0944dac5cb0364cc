// Threads of the standard library of C++20, and what uses them underneath. Ends with status 0 if all results are right.
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <latch>
#include <map>
#include <mutex>
#include <numeric>
#include <semaphore>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #what); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

namespace {

constexpr int threads_count = 6;

struct Counted {
    static inline std::atomic<int> alive{0};
    Counted() { ++alive; }
    ~Counted() { --alive; }
    std::string text = "a text that is too long for the object itself";
};

thread_local Counted of_thread;
std::once_flag once;
int called = 0;

Counted& only_one() {
    static Counted one;
    return one;
}

int fails(int i) {
    if (i % 2) throw std::runtime_error("odd " + std::to_string(i));
    return i;
}

void locks() {
    std::mutex mutex;
    std::recursive_timed_mutex again;
    std::shared_mutex shared;
    std::map<std::string, int> words;
    long sum = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < threads_count; ++t) {
        threads.emplace_back([&, t] {
            std::call_once(once, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); ++called; });
            CHECK(called == 1);
            CHECK(of_thread.text.size() == 45 && only_one().text.size() == 45);
            for (int i = 0; i < 100; ++i) {
                std::scoped_lock lock(mutex);
                sum += i;
                words["thread " + std::to_string((t + i) % 10)] += 1;
            }
            for (int i = 0; i < 50; ++i) {
                std::shared_lock read(shared);
                volatile long seen = sum;
                (void)seen;
            }
            std::unique_lock outer(again);
            std::unique_lock inner(again, std::chrono::milliseconds(100));
            CHECK(inner.owns_lock());
        });
    }
    threads.clear();
    CHECK(sum == threads_count * 4950L);
    int total = 0;
    for (auto& [word, count] : words) total += count;
    CHECK(words.size() == 10 && total == threads_count * 100);
}

void queue() {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::vector<int> waiting;
    std::atomic<long> sum{0};
    std::vector<std::jthread> consumers;
    for (int t = 0; t < 3; ++t) {
        consumers.emplace_back([&](std::stop_token stop) {
            for (;;) {
                std::unique_lock lock(mutex);
                if (!changed.wait(lock, stop, [&] { return !waiting.empty(); })) return;
                sum += waiting.back();
                waiting.pop_back();
            }
        });
    }
    for (int i = 1; i <= 300; ++i) {
        std::lock_guard lock(mutex);
        waiting.push_back(i);
        changed.notify_one();
    }
    for (;;) {
        std::lock_guard lock(mutex);
        if (waiting.empty()) break;
    }
    consumers.clear();
    CHECK(sum == 300 * 301 / 2);
}

void meetings() {
    std::latch ready(threads_count);
    int rounds = 0;
    std::barrier meeting(threads_count, [&]() noexcept { ++rounds; });
    std::counting_semaphore<2> two(2);
    std::atomic<int> inside{0}, flag{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < threads_count; ++t) {
        threads.emplace_back([&] {
            ready.arrive_and_wait();
            for (int i = 0; i < 20; ++i) meeting.arrive_and_wait();
            two.acquire();
            CHECK(++inside <= 2);
            --inside;
            two.release();
            flag.wait(0);
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    flag = 1;
    flag.notify_all();
    threads.clear();
    CHECK(rounds == 20);
}

void futures() {
    std::vector<std::future<int>> all;
    for (int i = 0; i < 8; ++i) all.push_back(std::async(std::launch::async, fails, i));
    int sum = 0, thrown = 0;
    for (auto& one : all) {
        try {
            sum += one.get();
        } catch (const std::runtime_error& error) {
            CHECK(std::string(error.what()).starts_with("odd "));
            ++thrown;
        }
    }
    CHECK(sum == 12 && thrown == 4);
    std::promise<std::string> promise;
    auto future = promise.get_future();
    std::thread([&] { promise.set_value("from another thread"); }).join();
    CHECK(future.get() == "from another thread");
    std::packaged_task<int(int, int)> task([](int a, int b) { return a + b; });
    auto result = task.get_future();
    std::thread(std::move(task), 2, 3).join();
    CHECK(result.get() == 5);
}

void once_that_throws() {
    std::once_flag flag;
    int caught = 0, done = 0;
    std::mutex mutex;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            try {
                std::call_once(flag, [&] {
                    std::lock_guard lock(mutex);
                    if (caught == 0) throw std::runtime_error("not yet");
                    ++done;
                });
            } catch (const std::runtime_error&) {
                std::lock_guard lock(mutex);
                ++caught;
            }
        });
    }
    threads.clear();
    CHECK(caught >= 1 && done <= 1);
}

void flags() {
    // A flag and data that is not atomic, without a lock.
    std::vector<int> data(10000);
    std::atomic<bool> is_ready{false};
    std::thread writer([&] {
        std::iota(data.begin(), data.end(), 0);
        is_ready.store(true, std::memory_order_release);
    });
    while (!is_ready.load(std::memory_order_acquire)) std::this_thread::yield();
    CHECK(std::accumulate(data.begin(), data.end(), 0L) == 49995000L);
    writer.join();
}

}  // namespace

int main() {
    CHECK(std::thread::hardware_concurrency() >= 1);
    locks();
    queue();
    meetings();
    futures();
    once_that_throws();
    flags();
    std::ostringstream text;
    text << "standard: " << Counted::alive << " left";
    std::thread([&] { std::cout << text.str() << std::endl; }).join();
    CHECK(Counted::alive == 1 || Counted::alive == 2);
    return 0;
}
