// Arrays, grids and objects with names, on a cluster of any size. Exit 0 when all is right.
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

#include <trellis.hpp>

static void check(bool condition, const char* what) {
    if (condition) return;
    std::cerr << "wrong: " << what << "; last error: " << trellis_last_error() << std::endl;
    std::_Exit(1);
}

template <typename Call>
static std::string refused(Call call) {
    try {
        call();
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_ARGUMENT, "the status of a refused array");
        check(error.code() == std::error_code(TRELLIS_ERROR_ARGUMENT, trellis::error_category()), "its error code");
        check(error.code().message() == "wrong argument", "the text of an error code");
        return error.what();
    }
    check(false, "it is not refused");
    return {};
}

static void arrays(trellis::cluster& cluster) {
    const std::size_t count = 3000 * cluster.nodes() + 5;
    trellis::array<long> numbers = cluster.array<long>("numbers", count);
    check(numbers.size() == count && !numbers.empty(), "the size of an array");
    check(reinterpret_cast<std::uintptr_t>(numbers.data()) % cluster.page_bytes() == 0, "it starts at a page");
    for (const std::size_t index : numbers.my_indexes()) numbers[index] = static_cast<long>(index);
    cluster.barrier("filled");
    const long sum = std::accumulate(numbers.begin(), numbers.end(), 0L);
    check(sum == static_cast<long>(count * (count - 1) / 2), "every node sees all of it");
    std::size_t covered = 0;
    for (std::size_t node = 0; node < cluster.nodes(); ++node) {
        const auto partition = numbers.partition(node);
        check(partition.empty() || &partition[0] == &numbers[covered], "partitions are adjacent");
        check(numbers.indexes_of(node).size() == partition.size(), "indexes and elements");
        covered += partition.size();
    }
    check(covered == count, "partitions cover the array");
    check(numbers.mine().data() == numbers.partition(cluster.node()).data(), "the own partition");
    cluster.barrier();
    trellis::parallel_for(numbers, [&](std::size_t index) { numbers[index] *= 2; });
    check(numbers[count - 1] == 2 * static_cast<long>(count - 1), "every node has done its part");
    const std::span<long> again = cluster.array<long>("numbers", count);
    check(again.data() == numbers.data(), "the same name is the same memory");
    const std::string why = refused([&] { (void)cluster.array<float>("numbers", count); });
    check(why.find("array `numbers` has ") == 0 && why.ends_with(" f32"), "a different type");
    (void)refused([&] { (void)cluster.array<long>("", 1); });
    cluster.barrier();
}

// Loops over different arrays meet at different barriers, so threads of a node can run them at the same time.
static void loops_side_by_side(trellis::cluster& cluster) {
    const auto one = cluster.array<int>("one", 2000), other = cluster.array<int>("other", 2000);
    {
        const std::jthread thread([&] { trellis::parallel_for(one, [&](std::size_t index) { one[index] = 1; }); });
        trellis::parallel_for(other, [&](std::size_t index) { other[index] = 2; });
    }
    check(std::accumulate(one.begin(), one.end(), 0) == 2000, "the first loop");
    check(std::accumulate(other.begin(), other.end(), 0) == 4000, "the second loop");
    cluster.barrier();
}

static void no_room(trellis::cluster& cluster) {
    try {
        (void)cluster.array<long>("large", static_cast<std::size_t>(-1) / 16);
        check(false, "there is room for everything");
    } catch (const trellis::error& error) {
        check(error.status() == TRELLIS_ERROR_STATE, "the status of no room");
    }
}

static void grids(trellis::cluster& cluster) {
    const std::size_t rows = 40, columns = 300;
    trellis::grid<double> u = cluster.grid<double>("u", rows, columns);
    static_assert(std::ranges::random_access_range<trellis::indexes>);
    check(u.rows() == rows && u.columns() == columns && u.size() == rows * columns, "the size of a grid");
    trellis::parallel_for(u, [&](std::size_t row) {
        for (std::size_t column = 0; column < columns; ++column) u(row, column) = static_cast<double>(row);
    });
    for (std::size_t row = 0; row < rows; ++row) {
        check(u.row(row)[columns - 1] == static_cast<double>(row), "every row is filled");
    }
    std::size_t covered = 0;
    for (std::size_t node = 0; node < cluster.nodes(); ++node) covered += u.rows_of(node).size();
    check(covered == rows, "the nodes have all rows");
    (void)refused([&] { (void)cluster.grid<double>("v", 3, 0); });
    (void)refused([&] { (void)cluster.grid<double>("v", static_cast<std::size_t>(-1), 2); });
    cluster.barrier();
}

static void objects(trellis::cluster& cluster) {
    auto total = cluster.array<int>("total", 1);
    trellis::mutex lock = cluster.mutex("total");
    for (int i = 0; i < 50; ++i) {
        const std::scoped_lock guard(lock);
        total[0] += 1;
    }
    trellis::latch done(cluster, "done", cluster.nodes());
    check(cluster.nodes() == 1 || cluster.node() != 0 || !done.try_wait(), "a latch waits for all");
    cluster.barrier("looked");
    done.arrive_and_wait();
    check(done.try_wait() && total[0] == 50 * static_cast<int>(cluster.nodes()), "a lock with a name loses nothing");
    trellis::latch none(cluster, "none", 0);
    none.wait();
    cluster.atomic("count").fetch_add(1);
    trellis::barrier(cluster, "counted", static_cast<std::uint32_t>(cluster.nodes())).arrive_and_wait();
    check(cluster.atomic("count").load() == cluster.nodes(), "a word with a name");
    trellis::counting_semaphore permits(cluster, "permits");
    permits.release();
    permits.acquire();
    check(lock.id() == cluster.id("total") && lock.id() != cluster.id("count"), "numbers of names");
}

int main() {
    trellis::cluster cluster;
    arrays(cluster);
    loops_side_by_side(cluster);
    no_room(cluster);
    grids(cluster);
    objects(cluster);
    cluster.barrier();
    std::cout << "names complete" << std::endl;
}
