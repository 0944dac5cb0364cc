// Node 1 fails with an exception of its own while the others wait for it: they learn who it was, and nobody hangs.
#include <cstring>
#include <iostream>
#include <stdexcept>

#include <trellis.hpp>

int main() try {
    trellis::cluster cluster;
    cluster.barrier(1);
    if (cluster.node() == 1) throw std::runtime_error("out of ideas");
    cluster.barrier(2);
    return 1;
} catch (const trellis::error& error) {
    std::cout << "told: " << error.what() << std::endl;
    return error.status() == TRELLIS_ERROR_NODE_LOST && std::strstr(error.what(), "node 1") != nullptr ? 0 : 2;
} catch (const std::runtime_error& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 3;
}
