// nlohmann's json in threads: documents are built, printed, read again, changed and compared; wrong ones throw.
#include "json.hpp"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using nlohmann::json;

namespace {
std::mutex lock;
std::map<std::string, unsigned long> sums; // of each thread

json built(int number, int depth) {
    json document = {{"number", number}, {"text", "document " + std::to_string(number)}, {"third", number / 3.0}};
    for (int at = 0; at < 6; at++) document["list"].push_back(at * number);
    if (depth > 0) document["inside"] = built(number + 1, depth - 1);
    if (number % 2) document["flags"] = {true, nullptr, "\u00e4\n\"quoted\""};
    return document;
}

unsigned long sum_of(const std::string &text) {
    unsigned long sum = 0;
    for (unsigned char byte : text) sum = sum * 31 + byte;
    return sum;
}

std::string refused(const char *text) {
    try {
        json document = json::parse(text);
        return document.at("missing").get<std::string>();
    } catch (const json::parse_error &error) {
        return std::string("parse error ") + std::to_string(error.byte);
    } catch (const json::exception &error) {
        return error.what();
    }
}

void work(const std::string &name, int first, int count) {
    unsigned long sum = 0;
    std::unordered_map<std::string, json> cache;
    for (int at = first; at < first + count; at++) {
        json document = built(at, at % 3);
        json again = json::parse(document.dump());
        if (again != document) throw std::runtime_error("a document changed when it was read");
        again["list"].erase(1);
        again["merged"] = {{"by", name}};
        again.update(document);
        json patch = json::diff(document, again);
        if (document.patch(patch) != again) throw std::logic_error("a patch is not the difference");
        sum = sum * 7 + sum_of(again.dump(2)) + json::to_cbor(again).size();
        const std::string key = again["text"];
        cache[key] = std::move(again);
    }
    for (int at = first; at < first + count; at++) sum += cache.at("document " + std::to_string(at)).size();
    std::lock_guard<std::mutex> guard(lock);
    sums[name] = sum;
}
} // namespace

int main(int count, char **arguments) {
    int documents = count > 1 ? std::atoi(arguments[1]) : 10;
    std::vector<std::thread> threads;
    for (int at = 0; at < 3; at++)
        threads.emplace_back(work, "thread number " + std::to_string(at), at * documents, documents);
    for (std::thread &thread : threads) thread.join();
    for (const auto &[name, sum] : sums) std::printf("%s: %lu\n", name.c_str(), sum);
    std::printf("%s\n", built(3, 1).dump().c_str());
    for (const char *text :
         {"{\"a\": [1, 2", "[1, 2]", "{\"a\": 1e5}", "", "{\"missing\": 4}", "{\"missing\": \"there\"}"})
        std::printf("%s -> %s\n", text, refused(text).c_str());
}
