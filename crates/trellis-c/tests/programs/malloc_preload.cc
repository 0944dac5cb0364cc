// A C++17 program that knows nothing of Trellis: maps, strings, exceptions, aligned and placement new, threads.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

namespace {

struct alignas(256) Wide {
    std::uint64_t numbers[32] = {};
};

thread_local std::vector<std::string> of_thread;

struct Shape {
    virtual ~Shape() = default;
    virtual std::string name() const = 0;
};
struct Circle : Shape {
    std::string name() const override { return "circle"; }
};
struct Square : Shape {
    std::string name() const override { return "square"; }
};

std::map<std::string, std::size_t> counted(std::size_t from, std::size_t to) {
    std::map<std::string, std::size_t> counts;
    for (std::size_t at = from; at < to; at++)
        counts["a word that is too long to lie within a string " + std::to_string(at * 7919 % 1009)]++;
    return counts;
}

std::size_t thrown(std::size_t times) {
    std::size_t caught = 0;
    for (std::size_t time = 0; time < times; time++) {
        try {
            if (time % 2) throw std::runtime_error("number " + std::to_string(time));
            (void)std::string("short").at(time + 10);
        } catch (const std::out_of_range &) {
            caught += 2;
        } catch (const std::exception &error) {
            caught += std::string_view(error.what()).size() > 7;
        }
    }
    return caught;
}

} // namespace

int main() {
    std::mutex mutex;
    std::map<std::string, std::size_t> all;
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < 4; thread++)
        threads.emplace_back([&, thread] {
            auto part = counted(thread * 5000, (thread + 1) * 5000);
            of_thread.assign(100, "kept by a thread until it ends, and destroyed then " + std::to_string(thread));
            std::lock_guard<std::mutex> lock(mutex);
            for (auto &[word, count] : part) all[word] += count;
        });
    for (auto &thread : threads) thread.join();
    std::size_t total = 0;
    for (const auto &[word, count] : all) total += count * word.size();
    std::cout << all.size() << ' ' << total << '\n';

    std::vector<std::unique_ptr<Wide>> wide;
    for (int at = 0; at < 100; at++) wide.push_back(std::make_unique<Wide>());
    std::cout << std::all_of(wide.begin(), wide.end(),
                             [](const auto &one) { return reinterpret_cast<std::uintptr_t>(one.get()) % 256 == 0; })
              << '\n';

    std::vector<std::shared_ptr<Shape>> shapes;
    for (int at = 0; at < 1000; at++)
        shapes.push_back(at % 3 ? std::shared_ptr<Shape>(new Circle) : std::make_shared<Square>());
    std::unordered_map<std::string, int> names;
    for (const auto &shape : shapes) names[shape->name()] += dynamic_cast<Circle *>(shape.get()) ? 1 : 100;
    std::cout << names["circle"] << ' ' << names["square"] << ' ' << thrown(2000) << '\n';

    std::variant<int, std::string> either = std::string(1000, 'x');
    std::function<std::size_t()> length = [either] { return std::get<std::string>(either).size(); };
    std::cout << length() << ' ' << (new (std::nothrow) char[PTRDIFF_MAX / 2] == nullptr) << '\n';
    try {
        std::vector<char> impossible(static_cast<std::size_t>(PTRDIFF_MAX));
        std::cout << impossible.size() << '\n';
    } catch (const std::bad_alloc &) {
        std::cout << "bad_alloc\n";
    }
    return 0;
}
