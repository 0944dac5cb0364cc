// remote.cpp - trellis/remote.hpp against a server that is host 7; TRELLIS_PREFIX says who this one is.
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <trellis/remote.hpp>

namespace remote = trellis::remote;
using namespace std::chrono_literals;

static constexpr std::uint16_t server = 7;

static void check(bool condition, const char* what) {
    if (condition) return;
    std::cerr << "wrong: " << what << "; last error: " << trellis_last_error() << std::endl;
    std::_Exit(1);
}

template <typename F>
static void refused(int status, std::string_view says, F call) {
    try {
        call();
    } catch (const trellis::error& error) {
        if (error.status() == status && std::string_view(error.what()).find(says) != std::string_view::npos) return;
        std::cerr << "status " << error.status() << ", " << error.what() << std::endl;
    }
    check(false, std::string(says).c_str());
}

struct point {
    double x, y;
    std::int32_t colour;
    remote::pointer next;
    bool operator==(const point&) const = default;
};

static_assert(remote::plain<point> && !remote::plain<std::string> && !remote::plain<int*>);
static_assert(remote::values<std::vector<int>> && !remote::values<std::vector<std::string>> && !remote::values<point>);
static_assert(!std::is_copy_constructible_v<remote::client> && std::is_nothrow_move_constructible_v<remote::client>);

static void pointers(const remote::pointer& object) {
    check(!remote::pointer() && object, "a pointer that was not set is false");
    const remote::pointer later = object + 4096;
    check(later - object == 4096 && object - later == -4096 && later - 4096 == object, "sums and differences");
    check(object < later && later != object && std::max(object, later) == later, "order");
    check(later.home() == server && later.offset() == object.offset() + 4096, "fields");
    check(remote::pointer(later.text()) == later, "text");
    std::ostringstream stream;
    stream << later;
    check(stream.str() == later.text(), "a stream");
    const std::unordered_set<remote::pointer> set{object, later, object};
    check(set.size() == 2 && set.contains(later), "a hash");
#ifdef __cpp_lib_format
    check(std::format("{} {:>46}", later, object).ends_with(object.text()), "a format");
#endif
    refused(TRELLIS_ERROR_ARGUMENT, "is not a pointer", [] { (void)remote::pointer("nowhere"); });
    refused(TRELLIS_ERROR_ARGUMENT, "no memory can be", [&] { (void)(object - INT64_MIN); });
    const remote::pointer other("fd01:203:7:0:ffff::5");
    refused(TRELLIS_ERROR_ARGUMENT, "are not of one object", [&] { (void)(object - other); });
}

static void values(remote::client& client) {
    std::vector<std::int64_t> numbers(20000);
    std::iota(numbers.begin(), numbers.end(), -77);
    const remote::pointer object = client.create_with(numbers, server);
    pointers(object);
    std::vector<std::int64_t> read(numbers.size());
    client.read(object, read);
    check(read == numbers, "a vector");
    check(client.read<std::int64_t>(object + 8 * 100) == 23, "a value");
    const std::array<std::int64_t, 3> three{-76, -75, -74};
    check((client.read<std::array<std::int64_t, 3>>(object + 8) == three), "an array");
    client.write(object + 16, std::span(numbers).subspan(5, 2));
    client.read(object, std::span(read).first(5));
    check(read[2] == numbers[5] && read[3] == numbers[6] && read[4] == numbers[4], "a span");
    const point wanted{1.5, -2.5, 3, object};
    const remote::pointer single = client.create_with(wanted, server);
    check(client.read<point>(single) == wanted && client.read<point>(single).next == object, "a structure");
    client.write(single, point{});
    check(client.read<point>(single) == point{}, "another structure");
    client.write_whole(object, std::string_view("in one step"));
    client.write_whole(object + 16, std::uint64_t{40});
    std::uint64_t expected = 0;
    check(client.fetch_add(object + 16, 2) == 40, "an addition");
    check(!client.compare_exchange(object + 16, expected, 9) && expected == 42, "an exchange that is none");
    check(client.compare_exchange(object + 16, expected, 9) && client.read<std::uint64_t>(object + 16) == 9, "one");
    const remote::object found = client.inquire(object + 1000);
    check(found.first == object && found.bytes == 160000, "an object");
    check(client.hello(server).used_bytes == (40 + 1) * 4096, "what there is");
    refused(TRELLIS_REMOTE_BOUNDS, "READ of fd01:203:7:", [&] { (void)client.read<point>(single + 1); });
    refused(TRELLIS_ERROR_DEADLINE, "did not answer", [&] { (void)client.create(1, 8); });
    refused(TRELLIS_ERROR_ARGUMENT, "in one step", [&] { client.write_whole(object, numbers); });
    client.erase(single);
    refused(TRELLIS_REMOTE_STALE, "deleted", [&] { client.write(single, wanted); });
    client.erase(object);
}

static void batches(remote::client& client) {
    const std::vector<int> some(3000, 7);
    remote::batch making;
    const std::size_t zeros = making.create(800, server), sevens = making.create_with(some, server);
    making.run(client);
    const remote::pointer words = making.object(zeros).first, object = making.object(sevens).first;
    std::vector<int> read(3000);
    std::array<int, 10> past{};
    remote::batch calls;
    for (std::size_t number = 0; number < 100; ++number) {
        check(calls.fetch_add(words + static_cast<std::int64_t>(8 * number), number) == number, "numbers of calls");
    }
    const std::size_t all = calls.read(object, read), wrong = calls.read(object + 11970, past);
    const std::size_t where = calls.inquire(object + 1);
    refused(TRELLIS_REMOTE_BOUNDS, "READ of", [&] { calls.run(client); });
    check(calls.status(all) == TRELLIS_OK && calls.status(wrong) == TRELLIS_REMOTE_BOUNDS, "statuses");
    check(read == some && calls.object(where).first == object && calls.object(where).bytes == 12000, "what was read");
    calls.clear();
    const std::size_t swap = calls.compare_exchange(words + 8 * 99, 99, 1), none = calls.compare_exchange(words, 5, 1);
    calls.write(words + 8, std::string_view("text"));
    calls.write_whole(words + 16, some | std::views::take(2));
    check(calls.try_run(client) == TRELLIS_OK && calls.before(swap) == 99 && calls.before(none) == 0, "exchanges");
    check((client.read<std::array<char, 4>>(words + 8) == std::array{'t', 'e', 'x', 't'}), "what was written");
    check((client.read<std::array<int, 2>>(words + 16) == std::array{7, 7}), "what was written in one step");
    calls.clear();
    calls.erase(words);
    calls.erase(object);
    calls.run(client);
    check(client.hello(server).used_bytes == 0, "nothing is left");
    remote::batch().run(client);
}

int main() {
    refused(TRELLIS_ERROR_CONFIGURATION, "is not a prefix", [] { remote::client({.prefix = "fd01::/16"}); });
    refused(TRELLIS_ERROR_ARGUMENT, "power of two", [] { remote::client({.piece_bytes = 3}); });
    for (const std::uint32_t piece_bytes : {1024U, 4096U}) {
        remote::client opened({.deadline = 500ms, .piece_bytes = piece_bytes});
        remote::client client = std::move(opened);
        values(client);
        batches(client);
    }
    std::cout << "remote complete\n";
}
