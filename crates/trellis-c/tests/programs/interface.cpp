// trellis.hpp on a cluster of any size. Exit 0 when all is right.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include <trellis.hpp>

static void check(bool condition, const char* what) {
    if (condition) return;
    std::cerr << "wrong: " << what << "; last error: " << trellis_last_error() << std::endl;
    std::_Exit(1);
}

// Several threads of each node fault, lock and add at once.
static void work_in_threads(trellis::cluster& cluster) {
    auto words = cluster.view<std::atomic<std::uint64_t>>(0, 4 * 512);
    auto plain = cluster.view<std::uint64_t>(4 * 4096, 1);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            trellis::mutex lock = cluster.mutex(1);
            for (int i = 0; i < 50; ++i) {
                words[static_cast<std::size_t>(thread) * 512] += 1;
                const std::scoped_lock guard(lock);
                plain[0] += 1;
            }
        });
    }
    threads.clear();
    cluster.barrier();
    for (int thread = 0; thread < 4; ++thread) {
        check(words[static_cast<std::size_t>(thread) * 512] == 50 * cluster.nodes(), "an atomic lost an increment");
    }
    check(plain[0] == 200 * cluster.nodes(), "a lock lost an increment");
}

// A range is a lock between nodes and threads, and its update appears at once.
static void lock_ranges(trellis::cluster& cluster) {
    const std::size_t page_words = cluster.page_bytes() / sizeof(std::uint64_t);
    auto pages = cluster.view<std::uint64_t>(32 * cluster.page_bytes(), 4 * page_words);
    trellis::set_protocol(cluster, pages, "lock(ivy)");
    check(cluster.protocol_at(pages.data()) == "lock(ivy)", "the protocol of a page");
    auto pair = pages.subspan(page_words - 1, 2);
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 2; ++thread) {
            threads.emplace_back([&] {
                for (int i = 0; i < 50; ++i) {
                    const trellis::range_lock guard(cluster, pair);
                    pair[0] += 1;
                    pair[1] += 1;
                }
            });
        }
    }
    cluster.barrier();
    check(pair[0] == 100 * cluster.nodes() && pair[1] == pair[0], "a range lock lost an increment");
    cluster.barrier();
    trellis::range_lock brief(cluster, pages.subspan(3 * page_words), std::chrono::seconds(600));
    brief.unlock();
    cluster.set_protocol(pages, "delay(lock(dynamic(redirect)), 500us)");
    check(cluster.protocol_at(pages.data() + 1) == "delay(lock(dynamic(redirect)), 500us)", "a longer name");
    check(pair[0] == 100 * cluster.nodes(), "bytes stay when the protocol changes");
    cluster.barrier();
    try {
        const trellis::range_lock guard(cluster, cluster.view<int>(0, 1));
        check(false, "a lock without a lock layer");
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_STATE, "the status of a lock without a lock layer");
    }
}

static void refuse(trellis::cluster& cluster) {
    try {
        (void)cluster.view<int>(cluster.region_bytes(), 1);
        check(false, "a view past the end");
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_ARGUMENT, "the status of a view past the end");
    }
    const auto says = [](const trellis::error& error, const char* part) {
        return std::string_view(error.what()).find(part) != std::string_view::npos;
    };
    try {
        (void)cluster.view<int>(0, cluster.region_bytes() / sizeof(int));
        check(false, "a view of the heap's part");
    } catch (const trellis::error& error) {
        check(says(error, "heap_bytes=0"), "the sentence of a view of the heap's part");
    }
    try {
        (void)cluster.view<std::uint64_t>(9, 1);
        check(false, "a crooked view");
    } catch (const trellis::error& error) {
        check(says(error, "a multiple of 8, for example 16"), "the sentence of a crooked view");
        check(!says(error, "region_bytes"), "a crooked view needs no larger region");
    }
    try {
        trellis::configuration().set("page_bytes", "5000");
        check(false, "a wrong page size");
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_CONFIGURATION, "the status of a wrong page size");
    }
}

int main() {
    trellis::configuration config;
    config.set("region_bytes", "1MiB");
    trellis::cluster first(config);
    trellis::cluster cluster(std::move(first));
    check(cluster.region().size() == 1 << 20 && cluster.base() == cluster.region().data(), "the region");
    work_in_threads(cluster);
    lock_ranges(cluster);
    refuse(cluster);
    trellis::atomic_word word = cluster.atomic(3);
    word.fetch_add(cluster.node() + 1);
    cluster.barrier(7);
    check(word.load() == cluster.nodes() * (cluster.nodes() + 1) / 2, "the word");
    cluster.prefetch(cluster.view<std::uint64_t>(0, 512), trellis::access::write);
    cluster.phase("end");
    check(cluster.counters().barriers >= 2, "the counters");
    cluster.barrier();
    if (cluster.node() == 0) std::cout << "interface complete" << std::endl;
}
