// A sort in libivy's idiom: the manager loads, two workers wait for a flag in shared memory, sort their halves and set
// flags of their own; the manager looks at them now and then, merges, and prints. Nobody ever leaves: the programs of
// libivy end in an endless loop.
//
//     ivy_sort <file: count, then integers> <libivy JSON> <id: 0 manager, 1 and 2 workers>
#include "libivy/libivy.hh"

typedef uint8_t* byte_ptr;

using libivy::Ivy;
using std::optional;
using std::span;

constexpr static size_t WORKERS = 2;

struct header {
    uint64_t count;
    uint8_t ready;
    uint8_t done[WORKERS];
    uint8_t padding[libivy::Ivy::PAGE_SZ - sizeof(uint64_t) - 1 - WORKERS - 5];
};
static_assert(sizeof(header) == libivy::Ivy::PAGE_SZ);

struct layout {
    header head;
    uint64_t data[];
};

optional<volatile layout*> shm;

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

span<uint64_t> half(size_t worker) {
    auto data = const_cast<uint64_t*>(shm.value()->data);
    return {data + shm.value()->head.count / WORKERS * worker, shm.value()->head.count / WORKERS};
}

void manage(std::string input) {
    std::fstream in(input);
    size_t count, i = 0;
    uint64_t number;
    in >> count;
    std::memset(const_cast<layout*>(shm.value()), 0, libivy::Ivy::PAGE_SZ);
    while (in >> number) shm.value()->data[i++] = number;
    shm.value()->head.count = count;
    DBGH << "first number at " << P(&shm.value()->data[0]) << std::endl;
    shm.value()->head.ready = 1;
    for (size_t worker = 0; worker < WORKERS; worker++)
        while (!shm.value()->head.done[worker]) nap();
    std::vector<uint64_t> merged(count);
    std::merge(half(0).begin(), half(0).end(), half(1).begin(), half(1).end(), merged.begin());
    for (auto value : merged) std::cout << value << "\n";
}

void work(size_t worker) {
    while (!shm.value()->head.ready) nap();
    auto mine = half(worker);
    std::sort(mine.begin(), mine.end());
    shm.value()->head.done[worker] = 1;
}

int main(int argc, char* argv[]) {
    IVY_ASSERT(argc == 4, "wrong number of arguments");
    uint64_t id = std::stoul(argv[3], nullptr, 10);
    Ivy ivy(argv[2], id);
    auto is_manager_res = ivy.is_manager();
    if (is_manager_res.second.has_value()) throw is_manager_res.second.value();
    auto [shm_, err] = ivy.get_shm();
    if (err.has_value()) throw std::runtime_error("get_shm(): " + err.value());
    DBGH << "region at " << shm_ << std::endl;
    shm = reinterpret_cast<layout*>(shm_);
    if (is_manager_res.first) manage(argv[1]);
    else work(id - 1);
    std::cout << "All done" << std::endl;
    while (1) nap();
}
