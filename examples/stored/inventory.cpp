// A small stock-keeping program in C++17: maps, strings, exceptions, virtual functions, threads. It knows nothing of
// Trellis, and is run in each mode to show that such programs work.
//
//     inventory [ITEMS] [THREADS]
//
// Several threads book goods in and out; a booking that would leave less than nothing is refused with an exception. At
// the end the books must balance.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

namespace {

struct not_enough : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class article {
public:
    article(std::string name, long count) : name_(std::move(name)), count_(count) {}
    virtual ~article() = default;
    virtual std::string describe() const { return name_ + ": " + std::to_string(count_); }

    void book(long change) {
        std::lock_guard guard(mutex_);
        if (count_ + change < 0) throw not_enough("only " + std::to_string(count_) + " of " + name_);
        count_ += change;
        history_.push_back(change);
    }

    long count() const { return count_; }
    const std::string &name() const { return name_; }
    const std::vector<long> &history() const { return history_; }

protected:
    std::string name_;
    long count_;
    std::vector<long> history_;
    std::mutex mutex_;
};

class perishable : public article {
public:
    perishable(std::string name, long count, int days) : article(std::move(name), count), days_(days) {}
    std::string describe() const override { return article::describe() + ", " + std::to_string(days_) + " days left"; }
    int days() const { return days_; }

private:
    int days_;
};

using place = std::variant<int, std::string>;

class inventory {
public:
    void add(std::unique_ptr<article> item, place where) {
        auto [at, is_new] = articles_.try_emplace(item->name(), nullptr);
        if (!is_new) throw std::invalid_argument(item->name() + " is there already");
        places_.emplace(item->name(), std::move(where));
        at->second = std::move(item);
    }

    article &of(const std::string &name) const {
        auto at = articles_.find(name);
        if (at == articles_.end()) throw std::out_of_range("there is no " + name);
        return *at->second;
    }

    std::optional<std::string> place_of(const std::string &name) const {
        auto at = places_.find(name);
        if (at == places_.end()) return std::nullopt;
        if (auto shelf = std::get_if<int>(&at->second)) return "shelf " + std::to_string(*shelf);
        return std::get<std::string>(at->second);
    }

    template <class Function> void each(Function &&function) const {
        for (const auto &[name, item] : articles_) function(*item);
    }

private:
    std::map<std::string, std::unique_ptr<article>> articles_;
    std::unordered_map<std::string, place> places_;
};

void require(bool holds, const char *what) {
    if (!holds) throw std::logic_error(std::string("the books do not balance: ") + what);
}

} // namespace

int main(int argc, char **argv) try {
    const long items = argc > 1 ? std::atol(argv[1]) : 500;
    const long threads = argc > 2 ? std::atol(argv[2]) : 4;
    inventory stock;
    for (long i = 0; i < items; ++i) {
        std::ostringstream name;
        name << "article number " << i;
        if (i % 3 == 0)
            stock.add(std::make_unique<perishable>(name.str(), 10, int(i % 30)), int(i));
        else
            stock.add(std::make_unique<article>(name.str(), 10), std::string("cellar, ") + name.str());
    }
    std::vector<long> refused(threads), booked(threads);
    std::vector<std::thread> clerks;
    for (long t = 0; t < threads; ++t) {
        clerks.emplace_back([&, t] {
            std::uint64_t state = t + 1;
            for (long k = 0; k < 20 * items; ++k) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                auto &item = stock.of("article number " + std::to_string((state >> 33) % items));
                const long change = long(state >> 60) - 8;
                try {
                    item.book(change);
                    booked[t] += change;
                } catch (const not_enough &) {
                    ++refused[t];
                }
            }
        });
    }
    for (auto &clerk : clerks) clerk.join();

    long now = 0, written = 0, perishables = 0;
    std::vector<std::tuple<long, std::string>> fullest;
    stock.each([&](article &item) {
        now += item.count();
        for (long change : item.history()) written += change;
        if (dynamic_cast<perishable *>(&item)) ++perishables;
        fullest.emplace_back(item.count(), item.describe());
    });
    std::sort(fullest.begin(), fullest.end(), std::greater<>());
    long sum = 0, refusals = 0;
    for (long t = 0; t < threads; ++t) sum += booked[t], refusals += refused[t];
    require(now == 10 * items + sum, "what is there is not what was booked");
    require(written == sum, "what was written down is not what was booked");
    require(perishables == (items + 2) / 3, "an article forgot its type");
    require(stock.place_of("article number 3") == "shelf 3" && !stock.place_of("nothing"), "a place is wrong");
    try {
        stock.of("nothing");
        require(false, "nothing was found");
    } catch (const std::out_of_range &error) {
        require(error.what() == std::string("there is no nothing"), "another sentence was expected");
    }
    std::cout << "the books balance: " << items << " articles, "
              << (refusals > 0 ? "some bookings were refused" : "no booking was refused") << '\n';
    return 0;
} catch (const std::exception &error) {
    std::cerr << "inventory: " << error.what() << '\n';
    return 1;
}
