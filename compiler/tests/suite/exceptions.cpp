// Exceptions: by value, by reference, of the library, rethrown, through frames with destructors, from constructors.
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

struct Failure {
    int code;
    char text[20];
};
struct Derived : std::runtime_error {
    int number;
    explicit Derived(int number) : std::runtime_error("derived failure"), number(number) {}
};
struct Noisy {
    int *count;
    explicit Noisy(int *count) : count(count) { ++*count; }
    ~Noisy() { --*count; }
};
struct Throwing {
    std::unique_ptr<int> held{new int(4)};
    Throwing() { throw 17; }
};

[[gnu::noinline]] static int fail(int depth, int *count) {
    Noisy noisy(count);
    if (depth == 0) {
        Failure failure{*count, {}};
        std::strcpy(failure.text, "deep");
        throw failure;
    }
    return fail(depth - 1, count) + 1;
}

int main() {
    int *count = new int(0);
    try {
        fail(5, count);
    } catch (const Failure &failure) {
        std::printf("%d %s %d\n", failure.code, failure.text, *count);
    }
    try {
        try {
            throw Derived(5);
        } catch (const std::exception &error) {
            std::printf("%s\n", error.what());
            throw;
        }
    } catch (Derived &derived) {
        derived.number += 2;
        std::printf("%d %s\n", derived.number, derived.what());
    }
    try {
        throw std::runtime_error("plain");
    } catch (std::runtime_error error) {
        std::printf("%s\n", error.what());
    }
    try {
        auto *throwing = new Throwing;
        delete throwing;
    } catch (int code) {
        std::printf("%d\n", code);
    }
    try {
        std::vector<int> numbers(3);
        std::printf("%d\n", numbers.at(7));
    } catch (const std::out_of_range &) {
        std::printf("out of range\n");
    }
    try {
        std::vector<long> large;
        large.reserve(large.max_size() + 1);
    } catch (const std::length_error &error) {
        std::printf("length %d\n", error.what() != nullptr);
    }
    try {
        throw count;
    } catch (int *same) {
        std::printf("%d\n", same == count);
    }
    delete count;
}
