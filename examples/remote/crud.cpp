// Objects in the memory of another machine: made, written, read, counted in, and deleted. crud.rs and crud.c do the
// same, and print the same.
//
//     c++ -std=c++20 crud.cpp $(pkg-config --cflags --libs trellis) -o crud
//     trellis lab up --clients 1 --servers 1
//     trellis lab run s1 -- trellis serve --memory 64MiB &
//     trellis lab run c1 -- ./crud s1
//     trellis lab down
//
// The argument is the server: its number in the cluster, or its name in a lab (`s1` is number 0x1001).
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <trellis/remote.hpp>

namespace remote = trellis::remote;

static std::uint16_t server_of(const std::string& text) {
    const bool is_named = text.starts_with('s');
    char* end = nullptr;
    const unsigned long number = std::strtoul(text.c_str() + is_named, &end, 10);
    if (number == 0 || *end != '\0' || number > (is_named ? 0xeffe : 0xfffe)) {
        throw std::invalid_argument("usage: crud SERVER, a number such as 4097, or s1");
    }
    return static_cast<std::uint16_t>(is_named ? 0x1000 + number : number);
}

static void run(std::uint16_t server) {
    remote::client client;

    const remote::pointer object = client.create(1 << 20, server);
    std::cout << "a mebibyte of zeros is at " << object << '\n';

    const std::string_view text = "memory is a place, and a place has an address";
    client.write(object, text);
    std::string read(text.size(), ' ');
    client.read(object, read);
    std::cout << "it begins: " << read << '\n';

    // Several calls at the same time, of any kind, each with a status of its own.
    const remote::pointer half = object + (1 << 19);
    std::array<char, 1> byte{};
    remote::batch calls;
    calls.write(half, std::string_view("left"));
    calls.write(half + 4, std::string_view("right"));
    calls.inquire(half);
    calls.read(half + (1 << 19), byte);
    (void)calls.try_run(client);
    int done = 0;
    for (std::size_t number = 0; number < calls.size(); ++number) done += calls.status(number) == TRELLIS_OK;
    std::cout << done << " of " << calls.size() << " calls were done\n";
    std::string both(9, ' ');
    client.read(half, both);
    std::cout << "in the middle: " << both << '\n';

    // Whole words can be changed by what they are; each is done once, however often its datagrams arrive.
    const remote::pointer word = half + 64;
    client.fetch_add(word, 40);
    std::uint64_t expected = 40;
    client.compare_exchange(word, expected, 42);
    std::cout << "the word is " << client.read<std::uint64_t>(word) << '\n';

    // Five datagrams, in no order; and a page in one step, which it is also where other servers keep copies.
    const remote::pointer place = object + 1000;
    client.write(place, std::vector<char>(20000, 7));
    client.write_whole(object + 4096, std::vector<char>(4096, 8));
    std::vector<char> bytes(20000);
    client.read(place, bytes);
    std::cout << std::ranges::count(bytes, 7) << " sevens and " << std::ranges::count(bytes, 8)
              << " eights are there\n";

    const remote::object found = client.inquire(place);
    std::cout << "that is in " << found.bytes << " bytes at " << found.first << '\n';
    const trellis_remote_welcome welcome = client.hello(server);
    std::cout << "this host has " << welcome.used_bytes << " of " << welcome.quota_bytes << " bytes\n";

    client.erase(object);
    try {
        client.read(object, read);
    } catch (const trellis::error& error) {
        std::cout << "afterwards: " << error.what() << '\n';
        return;
    }
    throw std::runtime_error("a deleted object was read");
}

int main(int count, char** arguments) {
    try {
        run(server_of(count > 1 ? arguments[1] : ""));
    } catch (const std::exception& error) {
        std::cerr << "crud: " << error.what() << '\n';
        return 1;
    }
}
