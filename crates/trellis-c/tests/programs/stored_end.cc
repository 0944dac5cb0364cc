// What still runs while a program ends, over heap memory that is larger than the cache: with LIBRARY the library,
// without the program. Each says "ok" when every byte is what it was.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

extern "C" void fill();
extern "C" bool holds();

#ifdef LIBRARY

static const int BLOCKS = 64;
static const size_t WORDS = 32768;
static unsigned *blocks[BLOCKS];

void fill() {
    for (int block = 0; block < BLOCKS; ++block) {
        blocks[block] = static_cast<unsigned *>(std::malloc(WORDS * sizeof(unsigned)));
        for (size_t word = 0; word < WORDS; ++word)
            blocks[block][word] = static_cast<unsigned>(block * 1000003 + word) | 1;
    }
}

bool holds() {
    for (int block = 0; block < BLOCKS; ++block) {
        for (size_t word = 0; word < WORDS; word += 128) {
            if (blocks[block][word] != (static_cast<unsigned>(block * 1000003 + word) | 1)) return false;
        }
    }
    return true;
}

static void say(const char *who) {
    char line[64];
    const int bytes = std::snprintf(line, sizeof line, "%s: %s\n", who, holds() ? "ok" : "wrong");
    if (write(STDOUT_FILENO, line, static_cast<size_t>(bytes)) != bytes) _exit(98);
}

// Of this file alone: the program has one, too.
namespace {
struct keeper {
    ~keeper() { say("static of the library"); }
};
keeper of_library;
}  // namespace

__attribute__((destructor)) static void last() {
    say("destructor of the library");
    // It may allocate and free.
    void *more = std::malloc(100);
    std::memset(more, 1, 100);
    std::free(more);
}

#else

#include <thread>

namespace {
struct keeper {
    ~keeper() {
        if (!holds()) _exit(97);
        std::puts("static of the program: ok");
        std::fflush(stdout);
    }
};
keeper of_program;
}  // namespace

int main(int count, char **) {
    fill();
    std::atexit([] { std::puts(holds() ? "handler: ok" : "handler: wrong"); });
    if (count > 1) {
        // It goes on until the process is gone.
        std::thread([] {
            while (holds()) {
            }
            _exit(99);
        }).detach();
    }
    return 3;
}

#endif
