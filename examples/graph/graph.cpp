// graph: breadth-first search and PageRank on a power-law graph that is made up, or on one from a file.
//
//     c++ -std=c++20 -O2 -pthread graph.cpp -o graph
//     ./graph --scale 20                                     # 2^20 vertices, 16 edges for each
//     ./graph --input edges.txt --directed --threads 4 --check
//     trellis store run --store memory-server:fd12:3456:7::/48 --cache 64MiB ./graph --scale 22
//
// An ordinary program: threads, std::vector, no call of Trellis. So `trellis store run` lets it work on a graph that is
// larger than memory, with its heap in a store or in memory servers.
//
// A graph that is made up is R-MAT's (Chakrabarti, Zhan and Faloutsos, 2004), with the parameters of Graph500: few
// vertices have most of the edges. Each edge is computed from its own number, so the graph is the same for any number
// of threads, and so are all results. A file has an edge on each line, two numbers; lines that begin with # or % are
// left out.
#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <numeric>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using vertex = std::uint32_t;
using clock_type = std::chrono::steady_clock;

constexpr std::string_view usage =
    "usage: graph [bfs | pagerank | both] [options]\n"
    "  --scale N         2^N vertices, 4 to 30 [16]\n"
    "  --edge-factor N   edges for each vertex, 1 to 1024 [16]\n"
    "  --seed N          another graph of the same kind [1]\n"
    "  --input FILE      a graph from a file: two vertices on each line\n"
    "  --directed        edges lead one way; without, both ways\n"
    "  --root V          where the search begins [the vertex with the most edges]\n"
    "  --iterations N    of PageRank [20]\n"
    "  --threads N       1 to 256 [as many as processors]\n"
    "  --check           compute everything again, sequentially, and compare";

struct options {
    bool bfs = true, pagerank = true, directed = false, check = false, has_root = false;
    unsigned scale = 16, threads = std::max(1u, std::thread::hardware_concurrency());
    std::uint64_t edge_factor = 16, seed = 1, iterations = 20, root = 0;
    std::string input;
};

std::uint64_t number_from(const std::string& text, std::uint64_t least, std::uint64_t most) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        throw std::invalid_argument(text + " is not a number from " + std::to_string(least) + " to " +
                                    std::to_string(most));
    return number;
}

options options_from(int argc, char** argv) {
    options chosen;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto number = [&](std::uint64_t least, std::uint64_t most) {
            if (i + 1 == argc) throw std::invalid_argument(word + " needs a number");
            return number_from(argv[++i], least, most);
        };
        if (word == "bfs") chosen.pagerank = false;
        else if (word == "pagerank") chosen.bfs = false;
        else if (word == "both") chosen.bfs = chosen.pagerank = true;
        else if (word == "--scale") chosen.scale = static_cast<unsigned>(number(4, 30));
        else if (word == "--edge-factor") chosen.edge_factor = number(1, 1024);
        else if (word == "--seed") chosen.seed = number(0, UINT64_MAX);
        else if (word == "--iterations") chosen.iterations = number(1, 1'000'000);
        else if (word == "--threads") chosen.threads = static_cast<unsigned>(number(1, 256));
        else if (word == "--root") chosen.root = number(0, UINT32_MAX), chosen.has_root = true;
        else if (word == "--directed") chosen.directed = true;
        else if (word == "--check") chosen.check = true;
        else if (word == "--input" && i + 1 < argc) chosen.input = argv[++i];
        else throw std::invalid_argument(std::string(usage));
    }
    return chosen;
}

// ----------------------------------------------------------------------------------------------------- threads --

constexpr std::size_t block_size = 4096;

// Calls `work(from, to)` for blocks of 0 to `count`, each once; the threads take the next block when they have done
// one. The blocks do not depend on the number of threads.
template <typename Work>
void for_blocks(unsigned threads, std::size_t count, const Work& work) {
    std::atomic<std::size_t> next = 0;
    const auto run = [&] {
        for (std::size_t from; (from = next.fetch_add(block_size)) < count;)
            work(from, std::min(from + block_size, count));
    };
    std::vector<std::jthread> team;
    for (unsigned i = 1; i < threads && i * block_size < count; ++i) team.emplace_back(run);
    run();
}

// The sum of `term(i)` for 0 to `count`: the same bits for any number of threads, because every block has its own sum.
template <typename Term>
double sum(unsigned threads, std::size_t count, const Term& term) {
    std::vector<double> sums((count + block_size - 1) / block_size);
    for_blocks(threads, count, [&](std::size_t from, std::size_t to) {
        double block = 0;
        for (std::size_t i = from; i < to; ++i) block += term(i);
        sums[from / block_size] = block;
    });
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// ------------------------------------------------------------------------------------------------------- edges --

struct edge {
    vertex from, to;
};

struct edge_list {
    std::size_t vertices = 0;
    std::vector<edge> edges;
};

std::uint64_t mixed(std::uint64_t z) {  // SplitMix64
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// Both ends of an edge, bit by bit: each bit chooses one of four quarters of the matrix of edges.
edge rmat_edge(std::uint64_t number, const options& chosen) {
    std::uint64_t state = mixed(chosen.seed) ^ mixed(number);
    std::uint64_t from = 0, to = 0;
    for (unsigned bit = 0; bit < chosen.scale; ++bit) {
        state = mixed(state);
        const unsigned hundredth = static_cast<unsigned>(state % 100);  // 57, 19, 19, 5
        from = from << 1 | (hundredth >= 76);
        to = to << 1 | ((hundredth >= 57 && hundredth < 76) || hundredth >= 95);
    }
    // Without this, vertices with small numbers would have the most edges, and lie on the same pages.
    const std::uint64_t mask = (std::uint64_t{1} << chosen.scale) - 1;
    const auto scattered = [&](std::uint64_t v) { return static_cast<vertex>(v * 0x9e3779b97f4a7c15u & mask); };
    return {scattered(from), scattered(to)};
}

edge_list made_up(const options& chosen) {
    edge_list list;
    list.vertices = std::size_t{1} << chosen.scale;
    list.edges.resize(list.vertices * chosen.edge_factor);
    for_blocks(chosen.threads, list.edges.size(), [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to; ++i) list.edges[i] = rmat_edge(i, chosen);
    });
    return list;
}

edge_list from_file(const std::string& path) {
    std::ifstream input(path);
    if (!input) throw std::runtime_error(path + ": cannot be read");
    edge_list list;
    std::string line;
    for (std::size_t number = 1; std::getline(input, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#' || line[0] == '%') continue;
        std::istringstream words(line);
        std::uint64_t from = 0, to = 0;
        if (!(words >> from >> to) || from >= UINT32_MAX || to >= UINT32_MAX)
            throw std::runtime_error(path + ": line " + std::to_string(number) +
                                     " is no edge: two numbers below 2^32 - 1");
        list.edges.push_back({static_cast<vertex>(from), static_cast<vertex>(to)});
        list.vertices = std::max<std::size_t>(list.vertices, std::max(from, to) + 1);
    }
    if (!input.eof()) throw std::runtime_error(path + ": cannot be read to its end");
    if (list.edges.empty()) throw std::runtime_error(path + ": has no edges");
    return list;
}

// ------------------------------------------------------------------------------------------------------- graph --

// Compressed rows: the neighbours of vertex v, in ascending order, begin at first[v].
struct graph {
    std::vector<std::uint64_t> first;
    std::vector<vertex> neighbours;

    std::size_t vertices() const { return first.size() - 1; }
    std::span<const vertex> of(std::size_t v) const {
        return std::span(neighbours).subspan(first[v], first[v + 1] - first[v]);
    }
};

// Calls `each(v, w)` for every neighbour w that edge gives to a vertex v.
template <typename Each>
void neighbours_of(const edge& e, bool reversed, bool directed, const Each& each) {
    if (!directed || !reversed) each(e.from, e.to);
    if (!directed || reversed) each(e.to, e.from);
}

// Edges that lead out of vertices; `reversed`: into them.
graph rows(const edge_list& list, const options& chosen, bool reversed) {
    graph made;
    std::vector<std::atomic<std::uint64_t>> places(list.vertices + 1);
    const auto for_edges = [&](const auto& each) {
        for_blocks(chosen.threads, list.edges.size(), [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from; i < to; ++i) neighbours_of(list.edges[i], reversed, chosen.directed, each);
        });
    };
    for_edges([&](vertex v, vertex) { places[v].fetch_add(1, std::memory_order_relaxed); });
    made.first.resize(list.vertices + 1);
    std::uint64_t at = 0;
    for (std::size_t v = 0; v <= list.vertices; ++v) {
        made.first[v] = at;
        at += places[v].exchange(at, std::memory_order_relaxed);
    }
    made.neighbours.resize(at);
    for_edges([&](vertex v, vertex w) { made.neighbours[places[v].fetch_add(1, std::memory_order_relaxed)] = w; });
    // Threads came in any order; sorted, everything that follows is the same each time.
    for_blocks(chosen.threads, list.vertices, [&](std::size_t from, std::size_t to) {
        for (std::size_t v = from; v < to; ++v)
            std::sort(made.neighbours.begin() + made.first[v], made.neighbours.begin() + made.first[v + 1]);
    });
    return made;
}

// -------------------------------------------------------------------------------------------------- algorithms --

constexpr std::int32_t unreached = -1;

// How many edges each vertex is away from the root, level by level.
std::vector<std::int32_t> search(const graph& out, vertex root, unsigned threads) {
    std::vector<std::atomic<std::int32_t>> levels(out.vertices());
    for (auto& level : levels) level.store(unreached, std::memory_order_relaxed);
    std::vector<vertex> frontier{root}, next(out.vertices());
    levels[root] = 0;
    for (std::int32_t level = 1; !frontier.empty(); ++level) {
        std::atomic<std::size_t> found = 0;
        for_blocks(threads, frontier.size(), [&](std::size_t from, std::size_t to) {
            for (std::size_t i = from; i < to; ++i)
                for (const vertex w : out.of(frontier[i])) {
                    std::int32_t expected = unreached;
                    if (levels[w].load(std::memory_order_relaxed) == unreached &&
                        levels[w].compare_exchange_strong(expected, level, std::memory_order_relaxed))
                        next[found.fetch_add(1, std::memory_order_relaxed)] = w;
                }
        });
        frontier.assign(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(found.load()));
    }
    return {levels.begin(), levels.end()};
}

constexpr double damping = 0.85;

struct ranking {
    std::vector<double> ranks;
    double change = 0;  // of the last iteration, summed over all vertices
};

// Every vertex collects from those that lead to it.
ranking pagerank(const graph& out, const graph& in, const options& chosen) {
    const std::size_t n = out.vertices();
    ranking result{std::vector<double>(n, 1.0 / static_cast<double>(n))};
    std::vector<double> shares(n), before;
    const auto degree = [&](std::size_t v) { return out.first[v + 1] - out.first[v]; };
    for (std::uint64_t iteration = 0; iteration < chosen.iterations; ++iteration) {
        before = result.ranks;
        const double lost = sum(chosen.threads, n, [&](std::size_t v) {
            shares[v] = degree(v) == 0 ? 0 : before[v] / static_cast<double>(degree(v));
            return degree(v) == 0 ? before[v] : 0;
        });
        const double base = (1 - damping + damping * lost) / static_cast<double>(n);
        result.change = sum(chosen.threads, n, [&](std::size_t v) {
            double collected = 0;
            for (const vertex u : in.of(v)) collected += shares[u];
            result.ranks[v] = base + damping * collected;
            return std::abs(result.ranks[v] - before[v]);
        });
    }
    return result;
}

template <typename Value>
std::uint64_t checksum(const std::vector<Value>& values) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint64_t bits = 0;
        if constexpr (sizeof(Value) == 8) bits = std::bit_cast<std::uint64_t>(values[i]);
        else bits = static_cast<std::uint32_t>(values[i]);
        sum = mixed(sum ^ bits ^ mixed(i));
    }
    return sum;
}

// ------------------------------------------------------------------------------------------------------ checks --

// The same again with a queue, one edge after the other, from the list of edges.
bool is_search(const edge_list& list, const graph& out, vertex root, const options& chosen,
               const std::vector<std::int32_t>& levels) {
    std::vector<std::int32_t> expected(list.vertices, unreached);
    std::vector<vertex> queue{root};
    expected[root] = 0;
    for (std::size_t i = 0; i < queue.size(); ++i)
        for (const vertex w : out.of(queue[i]))
            if (expected[w] == unreached) {
                expected[w] = expected[queue[i]] + 1;
                queue.push_back(w);
            }
    bool right = expected == levels;
    // No edge leads further than to the next level. This asks the edges, not the rows that were made of them.
    for (const edge& e : list.edges)
        neighbours_of(e, false, chosen.directed, [&](vertex v, vertex w) {
            right &= levels[v] == unreached || (levels[w] != unreached && levels[w] <= levels[v] + 1);
        });
    return right;
}

// The same again, edge by edge: every edge brings its share to where it leads.
bool is_ranking(const edge_list& list, const options& chosen, const std::vector<double>& ranks) {
    const double n = static_cast<double>(list.vertices);
    std::vector<double> expected(list.vertices, 1 / n), before, degrees(list.vertices);
    for (const edge& e : list.edges)
        neighbours_of(e, false, chosen.directed, [&](vertex v, vertex) { degrees[v] += 1; });
    for (std::uint64_t iteration = 0; iteration < chosen.iterations; ++iteration) {
        before = expected;
        double lost = 0;
        for (std::size_t v = 0; v < list.vertices; ++v) lost += degrees[v] == 0 ? before[v] : 0;
        std::fill(expected.begin(), expected.end(), (1 - damping + damping * lost) / n);
        for (const edge& e : list.edges)
            neighbours_of(e, false, chosen.directed,
                          [&](vertex v, vertex w) { expected[w] += damping * before[v] / degrees[v]; });
    }
    for (std::size_t v = 0; v < list.vertices; ++v)
        if (!(std::abs(expected[v] - ranks[v]) <= 1e-9 * expected[v])) return false;
    return std::abs(std::accumulate(ranks.begin(), ranks.end(), 0.0) - 1) < 1e-6;
}

// ----------------------------------------------------------------------------------------------------- program --

template <typename Work>
auto timed(double& milliseconds, const Work& work) {
    const auto start = clock_type::now();
    auto result = work();
    milliseconds = std::chrono::duration<double, std::milli>(clock_type::now() - start).count();
    return result;
}

std::string hexadecimal(std::uint64_t number) {
    std::ostringstream text;
    text << std::hex << std::setw(16) << std::setfill('0') << number;
    return text.str();
}

vertex root_of(const options& chosen, const graph& out) {
    if (chosen.has_root) {
        if (chosen.root >= out.vertices())
            throw std::runtime_error("there is no vertex " + std::to_string(chosen.root) + "; the last one is " +
                                     std::to_string(out.vertices() - 1));
        return static_cast<vertex>(chosen.root);
    }
    std::size_t most = 0;
    for (std::size_t v = 1; v < out.vertices(); ++v)
        if (out.of(v).size() > out.of(most).size()) most = v;
    return static_cast<vertex>(most);
}

int run(const options& chosen) {
    double milliseconds = 0;
    edge_list list =
        timed(milliseconds, [&] { return chosen.input.empty() ? made_up(chosen) : from_file(chosen.input); });
    std::cout << "graph: " << list.vertices << " vertices, " << list.edges.size() << " edges, " << chosen.threads
              << " threads, made in " << milliseconds << " ms" << std::endl;
    const graph out = timed(milliseconds, [&] { return rows(list, chosen, false); });
    const graph into = chosen.directed && chosen.pagerank ? rows(list, chosen, true) : graph();
    if (!chosen.check) list.edges = {};
    std::cout << "rows: " << out.neighbours.size() << " neighbours, " << milliseconds << " ms" << std::endl;

    bool right = true;
    if (chosen.bfs) {
        const vertex root = root_of(chosen, out);
        const auto levels = timed(milliseconds, [&] { return search(out, root, chosen.threads); });
        const auto reached = levels.size() - static_cast<std::size_t>(std::ranges::count(levels, unreached));
        std::cout << "bfs: from " << root << ", " << reached << " vertices reached, " << std::ranges::max(levels) + 1
                  << " levels, checksum " << hexadecimal(checksum(levels)) << ", " << milliseconds << " ms"
                  << std::endl;
        if (chosen.check && !is_search(list, out, root, chosen, levels)) {
            std::cerr << "graph: the levels of the search are WRONG\n";
            right = false;
        }
    }
    if (chosen.pagerank) {
        const graph& in = chosen.directed ? into : out;
        const auto result = timed(milliseconds, [&] { return pagerank(out, in, chosen); });
        const auto most = std::ranges::max_element(result.ranks);
        std::cout << "pagerank: " << chosen.iterations << " iterations, change " << result.change << ", largest "
                  << *most << " of vertex " << most - result.ranks.begin() << ", checksum "
                  << hexadecimal(checksum(result.ranks))
                  << ", " << milliseconds << " ms" << std::endl;
        if (chosen.check && !is_ranking(list, chosen, result.ranks)) {
            std::cerr << "graph: the ranks are WRONG\n";
            right = false;
        }
    }
    if (chosen.check && right) std::cout << "checked: right" << std::endl;
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc == 2 && std::string_view(argv[1]) == "--help") {
        std::cout << usage << '\n';
        return 0;
    }
    return run(options_from(argc, argv));
} catch (const std::exception& error) {
    std::cerr << "graph: " << error.what() << '\n';
    return 1;
}
