// Containers and strings of the C++ library.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

static void strings() {
    std::string text = "short";
    text += " and then a good deal longer than any small buffer";
    std::string *heap = new std::string(text.substr(6, 20));
    heap->insert(3, "INSERTED").append(3, '!');
    std::printf("%s|%zu|%zu|%d\n", heap->c_str(), heap->size(), text.find("good"), text.compare(*heap) > 0);
    heap->replace(0, 5, std::to_string(12345) + "/" + std::to_string(2.5));
    std::string moved = std::move(*heap);
    moved.erase(2, 3).push_back('#');
    std::printf("%s %d %f %d\n", moved.c_str(), std::stoi("  42x"), std::stod("1.25"), moved < text);
    delete heap;
    std::vector<std::string> words{"pear", "apple", "fig", "a longer word than the others in this list", "date"};
    std::sort(words.begin(), words.end());
    for (const std::string &word : words) std::printf("%s,", word.c_str());
    std::printf("\n");
}

static void trees() {
    std::map<int, std::string> map;
    for (int i = 0; i < 300; i++) map[i * 37 % 101] = std::string(i % 30, 'x');
    for (int i = 0; i < 101; i += 3) map.erase(i);
    long sum = 0;
    int last = -1, ordered = 1;
    for (const auto &[key, value] : map) {
        ordered &= key > last;
        last = key;
        sum += key * static_cast<long>(value.size());
    }
    std::printf("%zu %ld %d %d %d\n", map.size(), sum, ordered, map.lower_bound(50)->first, map.rbegin()->first);
    std::multiset<int> set{5, 1, 5, 3, 5, 2};
    set.erase(set.find(5));
    std::set<std::string> names{"b", "a", "c"};
    names.insert("aa");
    std::printf("%zu %zu %s\n", set.count(5), set.size(), std::next(names.begin())->c_str());
    std::map<int, int> other{{1, 2}, {3, 4}}, copy = other;
    std::swap(other, copy);
    copy.clear();
    for (auto at = other.end(); at != other.begin();) std::printf("%d ", (--at)->second);
    std::printf("\n");
}

static void hashed() {
    std::unordered_map<std::string, int> counts;
    for (int i = 0; i < 500; i++) counts["key" + std::to_string(i % 83)] += i;
    long sum = 0;
    for (const auto &[key, count] : counts) sum += count * static_cast<long>(key.size());
    counts.erase("key5");
    std::unordered_map<int, std::unique_ptr<int>> owned;
    for (int i = 0; i < 100; i++) owned.emplace(i, std::make_unique<int>(i));
    std::printf("%zu %ld %d %d\n", counts.size(), sum, counts.count("key5") == 0, *owned.at(77));
}

static void sequences() {
    std::list<int> list{3, 1, 2};
    list.push_front(9);
    list.sort();
    list.splice(list.end(), std::list<int>{7, 8});
    list.reverse();
    for (int value : list) std::printf("%d ", value);
    std::deque<int> deque;
    for (int i = 0; i < 1000; i++) i % 2 ? deque.push_back(i) : deque.push_front(i);
    std::priority_queue<int> heap(deque.begin(), deque.end());
    std::printf("%d %d %d\n", deque.front(), deque[600], heap.top());
    std::vector<bool> bits(100);
    bits[63] = bits[64] = true;
    std::variant<int, std::string> either = "text";
    std::optional<std::vector<int>> maybe{{1, 2, 3}};
    std::function<int(int)> function = [&](int x) { return x + static_cast<int>(maybe->size()); };
    auto shared = std::make_shared<std::vector<int>>(10, 3);
    std::weak_ptr<std::vector<int>> weak = shared;
    std::printf("%ld %s %d %ld %zu\n", std::count(bits.begin(), bits.end(), true), std::get<1>(either).c_str(),
                function(4), shared.use_count(), weak.lock()->size());
}

int main() {
    strings();
    trees();
    hashed();
    sequences();
}
