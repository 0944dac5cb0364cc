// A dot product in libivy's idiom: node 0 only manages, node 1 loads and collects, nodes 2 and 3 multiply.
//
//     ivy_dot <file: count, then that many integers, both vectors one after the other> <libivy JSON> <id>
#include "common.hh"
#include "libivy.hh"

using namespace libivy;

constexpr size_t MULTIPLIERS = 2;

struct header {
    uint64_t count;
    uint64_t result[MULTIPLIERS];
    std::atomic<uint8_t> ready;
    std::atomic<uint8_t> done[MULTIPLIERS];
};

struct layout {
    header head;
    uint8_t padding[Ivy::PAGE_SZ - sizeof(header)];
    uint64_t vectors[];
};

void collect(layout* shm, string input) {
    std::ifstream in(input);
    in >> shm->head.count;
    for (size_t i = 0; i < shm->head.count; i++) in >> shm->vectors[i];
    shm->head.ready = 1;
    uint64_t sum = 0;
    for (size_t i = 0; i < MULTIPLIERS; i++) {
        while (!shm->head.done[i]) std::this_thread::sleep_for(5ms);
        sum += shm->head.result[i];
    }
    std::cout << "Dot product: " << sum << std::endl;
}

void multiply(layout* shm, size_t which) {
    while (!shm->head.ready) std::this_thread::sleep_for(5ms);
    const size_t half = shm->head.count / 2, part = half / MULTIPLIERS;
    uint64_t sum = 0;
    for (size_t i = part * which; i < part * (which + 1); i++) sum += shm->vectors[i] * shm->vectors[half + i];
    shm->head.result[which] = sum;
    shm->head.done[which] = 1;
}

int main(int, char* argv[]) {
    idx_t id = std::stoul(argv[3]);
    Ivy ivy(argv[2], id);
    auto shm = reinterpret_cast<layout*>(unwrap(ivy.get_shm()));
    if (id == 1) collect(shm, argv[1]);
    if (id >= 2) multiply(shm, id - 2);
    std::cout << "All done" << std::endl;
    while (1) std::this_thread::sleep_for(5ms);
}
