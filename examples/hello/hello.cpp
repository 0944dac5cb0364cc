// hello.cpp: every node adds itself to a list that lives in shared memory; node 0 prints it.
//
//     c++ -std=c++20 hello.cpp $(pkg-config --cflags --libs trellis) -o hello
//     trellis run -n 4 ./hello
#include <cstddef>
#include <iostream>
#include <mutex>
#include <trellis.hpp>

// A plain struct: every process sees the same bytes. Fresh shared memory is zero, so the list starts empty.
struct guest_book {
    std::size_t guests;
    std::size_t guest[1000];
};

int main() try {
    trellis::cluster cluster;
    guest_book& book = cluster.array<guest_book>("guest book", 1)[0];

    {
        // One lock for all nodes; std::lock_guard takes it as it takes a std::mutex.
        trellis::mutex lock = cluster.mutex("guest book");
        std::lock_guard guard(lock);
        book.guest[book.guests++] = cluster.node();
    }

    cluster.barrier();  // everybody has signed
    if (cluster.node() == 0) {
        for (std::size_t i = 0; i < book.guests; ++i) std::cout << "hello from node " << book.guest[i] << '\n';
    }
    cluster.leave();  // waits for the others: node 0 may still be reading what they wrote
} catch (const trellis::error& error) {
    std::cerr << "hello: " << error.what() << '\n';
    return 1;
}
