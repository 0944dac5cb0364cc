// Nodes increment one counter in turn to 50, each waiting in a loop that does nothing but read it.
//
//     ivy_turns <libivy JSON> <id> <counting nodes>
#include "libivy.hh"

using namespace libivy;

int main(int, char* argv[]) {
    const idx_t id = std::stoul(argv[2]), nodes = std::stoul(argv[3]);
    Ivy ivy(argv[1], id);
    auto [shm, err] = ivy.get_shm();
    if (err.has_value()) throw std::runtime_error(err.value());
    volatile auto* counter = reinterpret_cast<uint64_t*>(shm);
    auto [is_manager, im_err] = ivy.is_manager();
    assert(!im_err.has_value() && "Manager lookup failed");
    std::cout << "manager = " << is_manager << std::endl;
    while (*counter < 50) {
        if (*counter % nodes == id && *counter < 50) *counter = *counter + 1;
    }
    std::cout << "Counter updated to " << *counter << std::endl;
    ivy.drop_shm(shm);
}
