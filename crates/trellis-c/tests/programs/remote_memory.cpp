// trellis/remote_memory.hpp: containers whose elements lie in the memory that the first argument names, of which 2 MiB
// are here at a time. Exit 0 when all is right.

#include <cstdint>
#include <cstdio>
#include <list>
#include <memory_resource>
#include <numeric>
#include <string>
#include <vector>

#include <trellis/remote_memory.hpp>

namespace {

int failures = 0;

void must(bool is_right, const char* what) {
    if (is_right) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    ++failures;
}

bool is_there(const void* address) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const auto base = reinterpret_cast<std::uintptr_t>(trellis_store_base());
    return base <= at && at < base + trellis_store_bytes();
}

struct alignas(256) wide {
    char bytes[256];
};

}  // namespace

int main(int, char** arguments) {
    std::vector<int, trellis::remote_allocator<int>> early;
    try {
        early.push_back(1);
        must(false, "there is no memory yet");
    } catch (const trellis::allocation_error& error) {
        must(std::string(error.what()).find("no region is open") == 0, error.what());
    }

    trellis::remote_memory memory(arguments[1], 2 << 20, std::size_t{1} << 30);
    {
        std::pmr::vector<std::uint64_t> numbers(1 << 20, &memory);  // 8 MiB
        must(is_there(numbers.data()), "its elements are there");
        for (std::size_t round = 0; round < 3; ++round) {
            for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] += i * (round + 1);
        }
        const std::uint64_t sum = std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
        must(sum == 6 * (std::uint64_t{1} << 20) * ((1 << 20) - 1) / 2, "every number is what it was made");
        const auto counted = trellis::remote_memory::statistics();
        must(counted.faults > 0 && counted.pages_fetched > 0 && counted.bytes_written_back > 0, "it does not fit here");
        must(counted.bytes_in_memory <= 2 << 20, "no more is here than was allowed");

        std::list<std::string, trellis::remote_allocator<std::string>> texts;
        for (int i = 0; i < 1000; ++i) texts.push_back(std::to_string(i));
        must(is_there(&texts.front()) && texts.back() == "999", "an allocator gives from the same memory");

        std::vector<wide, trellis::remote_allocator<wide>> aligned(3);
        must(reinterpret_cast<std::uintptr_t>(aligned.data()) % 256 == 0, "what is aligned is aligned");
        must(trellis_store_aligned_alloc(3, 8) == nullptr, "3 is not an alignment");
    }
    trellis::remote_memory again;
    must(again == memory, "a process has one");
    try {
        trellis::remote_memory other("embedded:other");
        must(false, "a process has one");
    } catch (const trellis::error& error) {
        must(error.status() == TRELLIS_ERROR_STATE, error.what());
    }
    std::puts(failures == 0 ? "done" : "wrong");
    return failures;
}
