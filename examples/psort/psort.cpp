// psort: sorts 64-bit integers with every node of a cluster.
//
//     c++ -std=c++20 -O2 psort.cpp $(pkg-config --cflags --libs trellis) -o psort
//     trellis run -n 4 ./psort                                       # 262,144 random integers
//     trellis run -n 4 ./psort 1000000 --seed 7
//     trellis run -n 4 ./psort --input numbers.bin --output sorted.bin
//     trellis run -n 4 ./psort --input numbers.txt --output sorted.txt --text
//
// Integers are signed. A binary file holds them as they lie in memory (8 bytes each, little-endian); with --text both
// files are decimal numbers separated by white space. Only node 0 needs to see the files.
//
// Node 0 loads the integers into the shared region, every node sorts one part of them where they lie, and node 0
// merges the sorted parts. Nobody copies a part to anybody: pages move because they are used.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <trellis.hpp>

namespace {

using integer = std::int64_t;
using clock_type = std::chrono::steady_clock;

struct options {
    std::size_t count = 262'144;
    std::uint64_t seed = 1;
    std::string input, output;
    bool text = false;
};

std::uint64_t number_from(const std::string& text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size())
        throw std::invalid_argument(text + " is not a number");
    return number;
}

options options_from(int argc, char** argv) {
    options chosen;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 == argc) throw std::invalid_argument(word + " needs a value");
            return argv[++i];
        };
        if (word == "--input") chosen.input = value();
        else if (word == "--output") chosen.output = value();
        else if (word == "--seed") chosen.seed = number_from(value());
        else if (word == "--text") chosen.text = true;
        else if (word == "--help" || word.starts_with("-"))
            throw std::invalid_argument("usage: psort [count] [--seed N] [--input FILE] [--output FILE] [--text]");
        else chosen.count = number_from(word);
    }
    return chosen;
}

// ------------------------------------------------------------------------------------------------------- files --

// A file descriptor that closes itself; its errors name the file.
class file {
public:
    file(const std::string& path, int flags) : path_(path), descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
        if (descriptor_ < 0) fail();
    }
    file(const file&) = delete;
    file& operator=(const file&) = delete;
    ~file() { ::close(descriptor_); }

    std::size_t size_bytes() const {
        struct stat status;
        if (::fstat(descriptor_, &status) != 0) fail();
        return static_cast<std::size_t>(status.st_size);
    }
    void read_all(void* to, std::size_t bytes) { move_all(::read, static_cast<char*>(to), bytes); }
    void write_all(const void* from, std::size_t bytes) { move_all(::write, static_cast<const char*>(from), bytes); }

private:
    // read(2) and write(2) may move less than was asked for, and never more than 2 GiB.
    template <typename Call, typename Byte>
    void move_all(Call call, Byte* bytes, std::size_t left) {
        while (left > 0) {
            const ssize_t moved = call(descriptor_, bytes, left);
            if (moved < 0 && errno == EINTR) continue;
            if (moved < 0) fail();
            if (moved == 0) throw std::runtime_error(path_ + ": is shorter than it was when it was opened");
            bytes += moved;
            left -= static_cast<std::size_t>(moved);
        }
    }
    [[noreturn]] void fail() const { throw std::runtime_error(path_ + ": " + std::strerror(errno)); }

    std::string path_;
    int descriptor_;
};

std::vector<integer> parse(const std::string& text, const std::string& path) {
    std::vector<integer> numbers;
    const char *at = text.data(), *const end = at + text.size();
    while (true) {
        while (at != end && std::string_view(" \t\r\n").find(*at) != std::string_view::npos) ++at;
        if (at == end) return numbers;
        integer number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error != std::errc{})
            throw std::runtime_error(path + ": integer " + std::to_string(numbers.size() + 1) +
                                     " is not a 64-bit integer");
        numbers.push_back(number);
        at = next;
    }
}

std::string print(std::span<const integer> numbers) {
    std::string text;
    for (const integer number : numbers) text += std::to_string(number) + '\n';
    return text;
}

// ------------------------------------------------------------------------------------------------- shared memory --

// The region: one page with the count, then the integers. A part starts on a page of its own, so that no two nodes
// ever write to one page.
class shared_numbers {
public:
    explicit shared_numbers(trellis::cluster& cluster)
        : cluster_(cluster), count_(cluster.view<std::size_t>(0, 1)[0]) {}

    // Room for `count` integers. Brought here for writing first: one large step instead of a fault per page.
    std::span<integer> make_room(std::size_t count) {
        const auto numbers = cluster_.view<integer>(cluster_.page_bytes(), count);
        cluster_.prefetch(numbers, trellis::access::write);
        count_ = count;
        return numbers;
    }

    std::span<integer> part(std::size_t node) const {
        const auto numbers = cluster_.view<integer>(cluster_.page_bytes(), count_);
        const std::size_t page = cluster_.page_bytes() / sizeof(integer);
        const std::size_t pages = (numbers.size() + page - 1) / page;
        const std::size_t from = std::min(numbers.size(), pages * node / cluster_.nodes() * page);
        const std::size_t to = std::min(numbers.size(), pages * (node + 1) / cluster_.nodes() * page);
        return numbers.subspan(from, to - from);
    }

private:
    trellis::cluster& cluster_;
    std::size_t& count_;
};

void load(const options& chosen, shared_numbers& shared) {
    if (chosen.input.empty()) {
        std::mt19937_64 random(chosen.seed);
        for (integer& number : shared.make_room(chosen.count)) number = static_cast<integer>(random());
        return;
    }
    file input(chosen.input, O_RDONLY);
    const std::size_t bytes = input.size_bytes();
    if (chosen.text) {
        std::string text(bytes, '\0');
        input.read_all(text.data(), bytes);
        const std::vector<integer> numbers = parse(text, chosen.input);
        std::ranges::copy(numbers, shared.make_room(numbers.size()).begin());
    } else {
        if (bytes % sizeof(integer) != 0)
            throw std::runtime_error(chosen.input +
                                     ": is not a whole number of 64-bit integers (with --text it is read as text)");
        input.read_all(shared.make_room(bytes / sizeof(integer)).data(), bytes);  // straight into shared memory
    }
}

// --------------------------------------------------------------------------------------------------------- merge --

// Sorted integers in private memory, or in the region when one node had them all.
struct result {
    std::unique_ptr<integer[]> memory;
    std::span<const integer> numbers;
};

// Merge neighbours, round after round, until one run is left.
result merge_all(std::vector<std::span<const integer>> runs) {
    std::size_t count = 0;
    for (const auto& run : runs) count += run.size();
    result merged;
    while (runs.size() > 1) {
        auto memory = std::make_unique_for_overwrite<integer[]>(count);
        std::vector<std::span<const integer>> longer;
        integer* out = memory.get();
        for (std::size_t i = 0; i < runs.size(); i += 2) {
            const auto partner = i + 1 < runs.size() ? runs[i + 1] : std::span<const integer>();
            integer* const end = std::ranges::merge(runs[i], partner, out).out;
            longer.emplace_back(out, end);
            out = end;
        }
        runs = std::move(longer);
        merged.memory = std::move(memory);  // the previous round is no longer needed
    }
    merged.numbers = runs.front();
    return merged;
}

// Equal for two lists that hold the same integers in any order; different otherwise, but for one chance in 2^64.
std::uint64_t fingerprint(std::span<const integer> numbers) {
    std::uint64_t sum = 0;
    for (const integer number : numbers) {
        std::uint64_t mixed = static_cast<std::uint64_t>(number) * 0x9E3779B97F4A7C15u;
        mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
        sum += mixed ^ mixed >> 32;
    }
    return sum;
}

// ------------------------------------------------------------------------------------------------------- program --

result sort_together(trellis::cluster& cluster, const shared_numbers& shared) {
    cluster.phase("sort");
    const auto mine = shared.part(cluster.node());
    cluster.prefetch(mine, trellis::access::write);
    std::sort(mine.begin(), mine.end());
    cluster.barrier();  // every part is sorted
    if (cluster.node() != 0) return {};

    cluster.phase("merge");
    std::vector<std::span<const integer>> runs;
    for (std::size_t node = 0; node < cluster.nodes(); ++node) {
        cluster.prefetch(shared.part(node));
        runs.emplace_back(shared.part(node));
    }
    return merge_all(std::move(runs));
}

int run(const options& chosen) {
    trellis::cluster cluster;
    shared_numbers shared(cluster);
    std::uint64_t before = 0;
    if (cluster.node() == 0) {
        cluster.phase("load");
        load(chosen, shared);
        for (std::size_t node = 0; node < cluster.nodes(); ++node) before += fingerprint(shared.part(node));
    }
    cluster.barrier();  // everything is loaded

    const auto start = clock_type::now();
    const result sorted = sort_together(cluster, shared);
    const std::chrono::duration<double, std::milli> taken = clock_type::now() - start;

    bool right = true;
    if (cluster.node() == 0) {
        cluster.phase("check");
        right = std::ranges::is_sorted(sorted.numbers) && fingerprint(sorted.numbers) == before;
        std::cout << "sorted " << sorted.numbers.size() << " integers on " << cluster.nodes() << " nodes in "
                  << taken.count() << " ms" << std::endl;
        if (!right) std::cerr << "psort: the result is WRONG: not sorted, or not the integers that were loaded\n";
        if (right && !chosen.output.empty()) {
            cluster.phase("write");
            file output(chosen.output, O_WRONLY | O_CREAT | O_TRUNC);
            const std::string text = chosen.text ? print(sorted.numbers) : std::string();
            if (chosen.text) output.write_all(text.data(), text.size());
            else output.write_all(sorted.numbers.data(), sorted.numbers.size_bytes());
        }
    }
    cluster.leave();
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
    return run(options_from(argc, argv));
} catch (const std::exception& error) {
    std::cerr << "psort: " << error.what() << '\n';
    return 1;
}
