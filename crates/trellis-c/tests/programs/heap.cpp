// Standard containers in the region, made by one node, read and destroyed by others. Exit 0 when all is right.
#include <cstdlib>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <trellis.hpp>

static void check(bool condition, const char* what) {
    if (condition) return;
    std::cerr << "wrong: " << what << "; last error: " << trellis_last_error() << std::endl;
    std::_Exit(1);
}

template <typename T>
using in_region = trellis::allocator<T>;
using text = std::basic_string<char, std::char_traits<char>, in_region<char>>;
using numbers = std::vector<int, in_region<int>>;
using by_name = std::map<text, numbers, std::less<>, in_region<std::pair<const text, numbers>>>;
using by_number = std::unordered_map<int, text, std::hash<int>, std::equal_to<>, in_region<std::pair<const int, text>>>;

static_assert(std::allocator_traits<in_region<int>>::is_always_equal::value);
static_assert(std::is_same_v<std::allocator_traits<in_region<int>>::rebind_alloc<long>, in_region<long>>);

struct library {
    numbers squares;
    by_name names;
    by_number numbered;
    std::list<long, in_region<long>> chain;
    std::pmr::vector<int>* resource_made;
};

static library* build(std::pmr::memory_resource* resource) {
    auto* made = new (trellis::allocate<library>(1)) library();
    for (int i = 0; i < 5000; ++i) made->squares.push_back(i * i);
    for (int i = 0; i < 200; ++i) {
        const std::string name = "a name that is too long to lie in the string itself " + std::to_string(i);
        made->names[text(name.c_str())].assign(static_cast<std::size_t>(i), i);
        made->numbered.emplace(i, text(name.c_str()));
        made->chain.push_front(i);
    }
    made->resource_made = new (trellis::allocate<std::pmr::vector<int>>(1)) std::pmr::vector<int>(resource);
    for (int i = 0; i < 1000; ++i) made->resource_made->push_back(i);
    return made;
}

static void read(const library& made) {
    check(made.squares.size() == 5000 && made.squares[70] == 4900, "a vector");
    check(made.names.size() == 200 && made.numbered.size() == 200 && made.chain.size() == 200, "sizes");
    int last = 200;
    for (const long value : made.chain) check(value == --last, "a list");
    for (int i = 0; i < 200; ++i) {
        const std::string name = "a name that is too long to lie in the string itself " + std::to_string(i);
        check(made.numbered.at(i) == text(name.c_str()), "an unordered map and its strings");
        const auto found = made.names.find(text(name.c_str()));
        check(found != made.names.end() && found->second.size() == static_cast<std::size_t>(i), "a map of vectors");
    }
    check(made.resource_made->size() == 1000 && (*made.resource_made)[999] == 999, "a vector with a resource");
}

template <typename Container>
static bool lies_in(const trellis::cluster& cluster, const Container& container) {
    const auto* first = reinterpret_cast<const std::byte*>(container.data());
    return first >= cluster.region().data() && first < cluster.region().data() + cluster.region_bytes();
}

static void functions(trellis::cluster& cluster) {
    double* values = trellis::allocate_zeroed<double>(100, trellis::home::here(), trellis::padding::per_page);
    check(reinterpret_cast<std::uintptr_t>(values) % cluster.page_bytes() == 0 && values[99] == 0, "pages of its own");
    check(trellis::usable_size(values) == cluster.page_bytes(), "usable size");
    trellis::deallocate(values);
    trellis::deallocate(nullptr);
    // Between two barriers, where nobody allocates: the pages that went back could be another node's block by now.
    cluster.barrier();
    try {
        trellis::deallocate(values);
        check(false, "freed twice");
    } catch (const trellis::error& failure) {
        check(failure.status() == TRELLIS_ERROR_ARGUMENT, "the status of a wrong pointer");
    }
    cluster.barrier();
    try {
        (void)trellis::allocate<char>(cluster.region_bytes() + 1);
        check(false, "more than there is");
    } catch (const std::bad_alloc& failure) {
        check(std::string_view(failure.what()).find("region_bytes") != std::string_view::npos, "the sentence");
    }
    try {
        std::vector<long, in_region<long>> large;
        large.reserve(large.max_size());
        check(false, "more than a number");
    } catch (const std::bad_alloc&) {
    }
    struct alignas(256) wide {
        char bytes[300];
    };
    std::vector<wide, in_region<wide>> aligned(3, in_region<wide>(trellis::home::node(0)));
    check(reinterpret_cast<std::uintptr_t>(aligned.data()) % 256 == 0, "the alignment of a type");
    const trellis::memory_resource one, other(trellis::home::interleaved());
    check(one == other && one != *std::pmr::new_delete_resource(), "resources are equal among themselves");
}

int main(int count, char** arguments) {
    const trellis::allocator<int> free_before_joining;
    trellis::cluster cluster;
    if (count > 1 && std::string_view(arguments[1]) == "free-twice") {
        trellis::allocator<int> of;
        int* block = of.allocate(3);
        of.deallocate(block, 3);
        of.deallocate(block, 3);
    }
    functions(cluster);
    trellis::memory_resource resource;
    auto shared = cluster.view<library*>(0, 1);
    const std::size_t builder = cluster.nodes() - 1;
    if (cluster.node() == builder) {
        shared[0] = build(&resource);
        check(lies_in(cluster, shared[0]->squares) && lies_in(cluster, *shared[0]->resource_made), "in the region");
    }
    cluster.barrier();
    read(*shared[0]);
    cluster.barrier();
    // Each node changes what all others see, one after the other.
    for (std::size_t turn = 0; turn < cluster.nodes(); ++turn) {
        if (cluster.node() == turn) {
            shared[0]->squares.push_back(static_cast<int>(turn));
            shared[0]->names.erase(shared[0]->names.begin());
            shared[0]->names[text("node")].push_back(static_cast<int>(turn));
        }
        cluster.barrier();
    }
    check(shared[0]->squares.size() == 5000 + cluster.nodes(), "every node appended");
    check(shared[0]->names.at(text("node")).size() == cluster.nodes(), "every node inserted");
    cluster.barrier();
    if (cluster.node() == builder) {
        std::destroy_at(shared[0]->resource_made);
        trellis::deallocate(shared[0]->resource_made);
    }
    cluster.barrier();
    if (cluster.node() == 0) {
        std::destroy_at(shared[0]);
        trellis::deallocate(shared[0]);
    }
    cluster.barrier();
    const trellis_heap_counts counts = trellis::heap_statistics();
    check(counts.blocks == 0 && counts.block_bytes == 0, "everything was freed");
    check((counts.frees_by_others > 100) == (cluster.nodes() > 1 && cluster.node() == builder), "who freed");
    cluster.barrier();
    cluster.leave();
    std::cout << "heap complete" << std::endl;
}
