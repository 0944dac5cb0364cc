// The types of trellis/synchronisation.hpp with the guards of the standard library, on a cluster of any size. Exit 0
// when all is right.
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include <trellis.hpp>

using namespace std::chrono_literals;

static void check(bool condition, const char* what) {
    if (condition) return;
    std::cerr << "wrong: " << what << "; last error: " << trellis_last_error() << std::endl;
    std::_Exit(1);
}

// Four threads of each node.
template <typename Work>
static void in_threads(Work work) {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) threads.emplace_back([&, thread] { work(thread); });
}

// Two locks taken in different orders: std::scoped_lock must avoid a deadlock by try_lock.
static void take_several(trellis::cluster& cluster) {
    auto sums = cluster.view<std::uint64_t>(0, 2);
    in_threads([&](int thread) {
        trellis::mutex one(cluster, 1);
        trellis::mutex two = cluster.mutex(2);
        for (int i = 0; i < 25; ++i) {
            if ((thread + i) % 2 == 0) {
                const std::scoped_lock guard(one, two);
                sums[0] += 1, sums[1] += 1;
            } else {
                const std::scoped_lock guard(two, one);
                sums[1] += 1, sums[0] += 1;
            }
            const std::lock_guard<trellis::mutex> guard(one);
            sums[0] += 1;
        }
    });
    cluster.barrier();
    check(sums[0] == 200 * cluster.nodes() && sums[1] == 100 * cluster.nodes(), "two locks keep increments apart");

    trellis::mutex lock(cluster, 3 + cluster.node());
    std::unique_lock guard(lock, std::defer_lock);
    check(guard.try_lock_for(60s) && guard.owns_lock(), "a lock that nobody has");
    std::unique_lock other(lock, std::try_to_lock);
    check(!other.owns_lock() && !other.try_lock_for(1ms), "a lock that this thread has");
    check(!lock.try_lock_until(std::chrono::steady_clock::now() + 1ms), "nor later");
    cluster.barrier();
}

static void read_and_write(trellis::cluster& cluster) {
    auto pair = cluster.view<std::uint64_t>(4096, 2);
    in_threads([&](int thread) {
        trellis::shared_mutex lock(cluster, 1);
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
    cluster.barrier();
    check(pair[0] == 20 * cluster.nodes(), "writes under a shared mutex");
    trellis::shared_mutex lock(cluster, 100 + cluster.node());
    const std::shared_lock one(lock);
    const std::shared_lock two(lock, 60s);
    check(two.owns_lock() && !lock.try_lock() && !lock.try_lock_for(1ms), "readers together, no writer");
    cluster.barrier();
}

struct ring {
    std::uint64_t filled, taken, sum, items[8];
};

// Node 0 produces; every node, 0 too, consumes in a thread of its own.
static void produce_and_consume(trellis::cluster& cluster) {
    ring& shared = cluster.view<ring>(2 * 4096, 1)[0];
    const std::uint64_t each = 40, all = each * cluster.nodes();
    trellis::mutex lock(cluster, 10);
    trellis::condition_variable added(cluster, 10), taken(cluster, 11);
    std::jthread consumer([&] {
        for (std::uint64_t i = 0; i < each; ++i) {
            std::unique_lock guard(lock);
            added.wait(guard, [&] { return shared.filled > shared.taken; });
            shared.sum += shared.items[shared.taken++ % 8];
            taken.notify_one();
        }
    });
    if (cluster.node() == 0) {
        for (std::uint64_t item = 1; item <= all; ++item) {
            std::unique_lock guard(lock);
            check(taken.wait_for(guard, 60s, [&] { return shared.filled - shared.taken < 8; }), "the ring has room");
            shared.items[shared.filled++ % 8] = item;
            added.notify_one();
        }
    }
    consumer.join();
    cluster.barrier();
    check(shared.sum == all * (all + 1) / 2, "every item was taken once");
    trellis::mutex own(cluster, 20 + cluster.node());
    trellis::condition_variable never(cluster, 20 + cluster.node());
    std::unique_lock guard(own);
    check(never.wait_for(guard, 1ms) == std::cv_status::timeout && guard.owns_lock(), "nobody notifies");
    check(!never.wait_until(guard, std::chrono::steady_clock::now() + 1ms, [] { return false; }), "nobody still");
}

// The standard's own condition variable works between the threads of a node, with our lock.
static void use_condition_variable_any(trellis::cluster& cluster) {
    trellis::mutex lock(cluster, 30 + cluster.node());
    std::condition_variable_any changed;
    std::deque<int> queue;
    std::jthread sender([&] {
        for (int i = 0; i < 50; ++i) {
            const std::lock_guard guard(lock);
            queue.push_back(i);
            changed.notify_one();
        }
    });
    for (int i = 0; i < 50; ++i) {
        std::unique_lock guard(lock);
        changed.wait(guard, [&] { return !queue.empty(); });
        check(queue.front() == i, "items come in order");
        queue.pop_front();
    }
}

static void count_flag_and_meet(trellis::cluster& cluster) {
    auto numbers = cluster.view<std::uint64_t>(3 * 4096, 8);
    trellis::counting_semaphore permits(cluster, 1);
    if (cluster.node() == 0) permits.release(2 * cluster.nodes());
    permits.acquire();
    check(permits.try_acquire_for(60s), "there are two for each node");
    cluster.barrier();
    check(permits.value() == 0 && !permits.try_acquire() && !permits.try_acquire_for(1ms), "and no more");

    trellis::event ready(cluster, 1);
    check(!ready.is_set() && !ready.wait_for(1ms), "it is not set");
    cluster.barrier();
    if (cluster.node() == cluster.nodes() - 1) ready.set();
    ready.wait();
    check(ready.is_set() && ready.wait_until(std::chrono::steady_clock::now() + 60s), "it is set");

    trellis::once_flag flag(cluster, 1);
    trellis::once_flag fails(cluster, 100 + cluster.node());
    std::uint64_t here = 0;
    in_threads([&](int) {
        const bool mine = trellis::call_once(flag, [&](std::uint64_t by) { numbers[0] += by; }, 3u);
        if (mine) here += 1;
        check(numbers[0] == 3, "it was done once, and is seen");
    });
    check(trellis::reduce(cluster, 1, trellis::reduction::sum, here) == 1, "by one thread of one node");
    bool thrown = false;
    try {
        trellis::call_once(fails, [] { throw 7; });
    } catch (int) {
        thrown = true;
    }
    check(thrown && trellis::call_once(fails, [] {}), "who fails leaves it undone");
    check(!trellis::call_once(fails, [] {}), "the next call did it");

    std::atomic<int> last = 0;
    auto words = cluster.view<std::atomic<std::uint64_t>>(4 * 4096, 1);
    in_threads([&](int) {
        trellis::barrier gate(cluster, 5, static_cast<std::uint32_t>(4 * cluster.nodes()));
        for (std::uint64_t round = 1; round <= 5; ++round) {
            words[0] += 1;
            last += gate.arrive_and_wait();
            check(words[0] == round * 4 * cluster.nodes(), "nobody goes on before all have come");
            gate.arrive_and_wait();
        }
    });
    const auto lasts = trellis::reduce(cluster, 2, trellis::reduction::sum, static_cast<std::int64_t>(last));
    check(lasts == 5, "one is the last");
    const double own = 0.5 * static_cast<double>(cluster.node());
    const auto nodes = static_cast<std::int64_t>(cluster.nodes());
    check(trellis::reduce(cluster, 2, trellis::reduction::sum, -1) == -nodes, "int");
    check(trellis::reduce(cluster, 2, trellis::reduction::sum, true) == cluster.nodes(), "bool");
    check(trellis::reduce(cluster, 2, trellis::reduction::greatest, 0.5F) == 0.5, "float");
    const double most = trellis::reduce(cluster, 2, trellis::reduction::greatest, own);
    check(most == 0.5 * static_cast<double>(cluster.nodes() - 1), "the greatest");
    check(trellis::broadcast(cluster, 2, cluster.nodes() - 1, static_cast<char>('a' + cluster.node())) ==
              static_cast<char>('a' + cluster.nodes() - 1),
          "the letter of the last node");
}

int main() {
    {
        trellis::cluster cluster;
        take_several(cluster);
        read_and_write(cluster);
        produce_and_consume(cluster);
        use_condition_variable_any(cluster);
        count_flag_and_meet(cluster);
        cluster.barrier();
    }
    std::cout << "waits complete\n";
}
