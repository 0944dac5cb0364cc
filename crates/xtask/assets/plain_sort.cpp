// What the demonstration compares with: a sort of 64-bit integers by one process, without Trellis.
//
//   plain_sort make COUNT FILE    writes COUNT random integers
//   plain_sort sort INPUT OUTPUT  sorts them with std::sort and prints how many milliseconds the sort took
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Numbers = std::vector<std::int64_t>;

// SplitMix64 (Steele, Lea, Flood 2014): every run makes the same numbers.
std::int64_t next(std::uint64_t &state) {
    std::uint64_t mixed = state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::int64_t>(mixed ^ (mixed >> 31));
}

Numbers make(std::size_t count) {
    Numbers numbers(count);
    std::uint64_t state = 1;
    for (auto &number : numbers) number = next(state);
    return numbers;
}

Numbers read(const std::string &path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    Numbers numbers(file ? static_cast<std::size_t>(file.tellg()) / sizeof(std::int64_t) : 0);
    file.seekg(0);
    const auto bytes = static_cast<std::streamsize>(numbers.size() * sizeof(std::int64_t));
    file.read(reinterpret_cast<char *>(numbers.data()), bytes);
    if (!file) throw std::runtime_error("cannot read " + path);
    return numbers;
}

void write(const Numbers &numbers, const std::string &path) {
    std::ofstream file(path, std::ios::binary);
    const auto bytes = static_cast<std::streamsize>(numbers.size() * sizeof(std::int64_t));
    file.write(reinterpret_cast<const char *>(numbers.data()), bytes);
    file.close();
    if (!file) throw std::runtime_error("cannot write " + path);
}

}  // namespace

int main(int count, char **words) try {
    const std::vector<std::string> arguments(words + 1, words + count);
    if (arguments.size() == 3 && arguments[0] == "make") {
        write(make(std::stoull(arguments[1])), arguments[2]);
        return 0;
    }
    if (arguments.size() == 3 && arguments[0] == "sort") {
        Numbers numbers = read(arguments[1]);
        const auto start = std::chrono::steady_clock::now();
        std::sort(numbers.begin(), numbers.end());
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
        write(numbers, arguments[2]);
        std::cout << taken.count() << std::endl;
        return 0;
    }
    std::cerr << "usage: plain_sort make COUNT FILE | plain_sort sort INPUT OUTPUT" << std::endl;
    return 2;
} catch (const std::exception &error) {
    std::cerr << "plain_sort: " << error.what() << std::endl;
    return 1;
}
