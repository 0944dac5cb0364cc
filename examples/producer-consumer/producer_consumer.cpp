// producer_consumer: one node fills a buffer in shared memory, another empties it, and so on.
//
//     c++ -std=c++20 -O2 producer_consumer.cpp $(pkg-config --cflags --libs trellis) -o producer_consumer
//     trellis run -n 2 ./producer_consumer --with lock
//     trellis run -n 2 ./producer_consumer --with test-and-set --pages 3 --items 5000 --work-microseconds 20
//
// There is one buffer, so the two take turns. Who may use it is decided in one of two ways:
//
//   lock            the pages of the buffer are locked: they come, all of them for stores, and do not leave until they
//                   are unlocked; a request for them waits at the holder. The protocol is lock(dynamic(forward)).
//   test-and-set    a word on a page of its own is exchanged by the processor until it was 0, as on any machine with
//                   shared memory. The protocol is dynamic(forward), in which any page goes to whoever asks for it.
//
// Every item is checked by the consumer. What is printed at the end: the time of an item, and how many messages and
// pages travelled for it, between all nodes. Packets count as in the paper from which this program is (Sane, MacGregor
// and Campbell, 1990, section 5.2): a message is one packet of an Ethernet, a page in it two more.
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include <trellis.hpp>

namespace {

using word = std::uint64_t;

struct options {
    std::size_t pages = 1, items = 2000, work_microseconds = 20;
    bool lock = true;
};

options options_from(int argc, char** argv) {
    const std::string usage =
        "usage: producer_consumer [--with lock | test-and-set] [--pages N] [--items N] [--work-microseconds N]";
    options chosen;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
        const auto number = [&](std::size_t least) {
            std::size_t result = 0;
            const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
            if (error != std::errc{} || end != value.data() + value.size() || result < least)
                throw std::invalid_argument(usage);
            return result;
        };
        if (name == "--pages") chosen.pages = number(1);
        else if (name == "--items") chosen.items = number(1);
        else if (name == "--work-microseconds") chosen.work_microseconds = number(0);
        else if (name == "--with" && (value == "lock" || value == "test-and-set")) chosen.lock = value == "lock";
        else throw std::invalid_argument(usage);
    }
    return chosen;
}

// The processor is busy for so long, as with the processing of an item.
void work(std::size_t microseconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    while (std::chrono::steady_clock::now() < end) {}
}

word content(word item, std::size_t index) { return item * 0x9E3779B97F4A7C15u + index; }

// What one node adds to the traffic of the whole run; each on a page of its own.
struct traffic {
    word messages, pages;
};

class exchange {
public:
    exchange(trellis::cluster& member, const options& options)
        : cluster(member),
          chosen(options),
          page_bytes(member.page_bytes()),
          buffer(member.view<word>(0, chosen.pages * page_bytes / sizeof(word))),
          taken(member.view<word>(buffer.size_bytes(), 1)[0]) {
        cluster.set_protocol(member.view<word>(0, buffer.size() + page_bytes / sizeof(word)),
                             chosen.lock ? "lock(dynamic(forward))" : "dynamic(forward)");
    }

    void produce() {
        for (word item = 1; item <= chosen.items; ++item)
            in_turn([&] { return buffer[0] == 0; },
                    [&] {
                        for (std::size_t i = 1; i < buffer.size(); ++i) buffer[i] = content(item, i);
                        work(chosen.work_microseconds);
                        buffer[0] = item;
                    });
    }

    // Returns whether every item came once, in order and whole.
    bool consume() {
        bool right = true;
        for (word item = 1; item <= chosen.items; ++item)
            in_turn([&] { return buffer[0] != 0; },
                    [&] {
                        right &= buffer[0] == item;
                        for (std::size_t i = 1; i < buffer.size(); ++i) right &= buffer[i] == content(item, i);
                        work(chosen.work_microseconds);
                        buffer[0] = 0;
                    });
        return right;
    }

    // The place of a node's own traffic.
    traffic& traffic_of(std::size_t node) const {
        return cluster.view<traffic>(buffer.size_bytes() + (1 + node) * page_bytes, 1)[0];
    }

private:
    // Has the buffer for itself until `mine` says that it is this node's turn, and then does `task`.
    template <typename Condition, typename Task>
    void in_turn(Condition mine, Task task) {
        for (bool done = false; !done;) {
            if (chosen.lock) {
                const trellis::range_lock stays(cluster, buffer);
                if ((done = mine())) task();
            } else {
                const std::atomic_ref<word> flag(taken);
                while (flag.exchange(1) != 0) {}
                if ((done = mine())) task();
                flag.store(0);
            }
        }
    }

    trellis::cluster& cluster;
    const options& chosen;
    const std::size_t page_bytes;
    const std::span<word> buffer;  // its first word is the number of the item in it, 0 when it is empty
    word& taken;
};

int run(const options& chosen) {
    trellis::cluster cluster;
    const std::size_t node = cluster.node();
    if (cluster.nodes() < 2) throw std::invalid_argument("producer_consumer needs two nodes: trellis run -n 2");
    exchange items(cluster, chosen);
    cluster.barrier();

    const auto start = std::chrono::steady_clock::now();
    const trellis_counters before = cluster.counters();
    if (node == 0) items.produce();
    const bool right = node != 1 || items.consume();
    const trellis_counters after = cluster.counters();
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
    items.traffic_of(node) = {after.messages_out - before.messages_out, after.pages_out - before.pages_out};
    cluster.barrier();

    if (!right) std::cout << "an item was lost, came twice or was broken (WRONG)\n";
    if (node == 1 && right) {
        traffic sum{};
        for (std::size_t other = 0; other < cluster.nodes(); ++other) {
            sum.messages += items.traffic_of(other).messages;
            sum.pages += items.traffic_of(other).pages;
        }
        const double count = static_cast<double>(chosen.items);
        std::cout << chosen.items << " items of " << chosen.pages << (chosen.pages == 1 ? " page" : " pages")
                  << " with " << (chosen.lock ? "lock" : "test-and-set") << ": " << taken.count() / count << " us, "
                  << sum.messages / count << " messages, " << sum.pages / count << " pages, "
                  << (sum.messages + 2 * sum.pages) / count << " packets per item (verified)\n";
    }
    cluster.leave();
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
    return run(options_from(argc, argv));
} catch (const std::exception& error) {
    std::cerr << "producer_consumer: " << error.what() << '\n';
    return 1;
}
