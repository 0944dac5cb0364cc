// Threads, locks and atomics of the C++ library.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

struct Shared {
    std::mutex lock;
    std::condition_variable changed;
    std::atomic<int> finished{0};
    long sum = 0;
    bool go = false;
};

int main() {
    auto shared = std::make_shared<Shared>();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([shared, i] {
            std::unique_lock<std::mutex> hold(shared->lock);
            shared->changed.wait(hold, [&] { return shared->go; });
            for (int step = 0; step < 50; step++) shared->sum += i;
            shared->finished++;
        });
    {
        std::lock_guard<std::mutex> hold(shared->lock);
        shared->go = true;
    }
    shared->changed.notify_all();
    for (std::thread &thread : threads) thread.join();
    std::printf("%ld %d %ld\n", shared->sum, shared->finished.load(), shared.use_count());
    static std::once_flag once;
    for (int i = 0; i < 3; i++) std::call_once(once, [] { std::printf("once\n"); });
}
