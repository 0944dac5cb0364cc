// The paper's Listing 1, letter for letter, in a program that gives it the names it leaves open.
#include "libivy.hh"

static void invoke_worker(uint64_t* words, libivy::idx_t node_id) {
    words[512 * (1 + node_id)] = 42 + node_id;
    std::cout << "node " << node_id << " wrote at " << words << std::endl;
}

int main(int, char** argv) {
    const libivy::idx_t node_id = std::stoul(argv[1]);

// 1. Create an object of the class
//    `IVY` with the config file and
//    node ID
Ivy ivy("path/to/config", node_id);

// 2. Automatically sets up the shared
//    memory and all the handlers
auto [shm, err] = ivy.get_shm();

// 3. Handle any error
if (err.has_value())
    ERROR(err.value());

auto arr_ul
    = reinterpret_cast<uint64_t*>(*shm);

// 4. Work on the shared region
invoke_worker(arr_ul, node_id);

// 5. Unmount the shared memory
ivy.drop_shm();
}
