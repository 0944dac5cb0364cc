// ivy.hh - libivy's programming interface, served by Trellis: programs written for libivy compile unmodified.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     Ivy ivy("localhost.json", node_id);                 // libivy's own JSON configuration
//     auto [shm, err] = ivy.get_shm();
//     if (err.has_value()) ERROR(err.value());
//     auto words = reinterpret_cast<uint64_t*>(*shm);     // as the paper prints it; or reinterpret_cast<...>(shm)
//     ...
//     ivy.drop_shm();
//
//     c++ -std=c++20 program.cc $(pkg-config --cflags --libs libivy) -o program
//
// Everything lives in namespace libivy; `Ivy`, `pg_align`, `to_hex` and `from_hex` are visible without it too. libivy's
// short macros (P, ERROR, DBG...) are defined unless the program defines them first or defines TRELLIS_IVY_NO_MACROS;
// RELEASE silences the debugging ones. What differs from libivy is only what was broken there: the configured manager
// is honoured, memory is sequentially consistent, nodes start in any order, and drop_shm() takes the region or nothing.
// This header never touches the shared region, except in dump_shm_page().
#ifndef TRELLIS_IVY_HH
#define TRELLIS_IVY_HH

// More than is needed here: libivy's headers bring these along, and its programs rely on that.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "trellis.h"

namespace libivy {

using namespace std::chrono_literals;
using std::mutex;
using std::optional;
using std::pair;
using std::string;
using std::unique_ptr;
using std::variant;
using std::vector;

using idx_t = std::uint64_t;
using bytes_t = std::uint64_t;
using err_t = std::string;
using void_ptr = void*;
using byte_ptr = std::uint8_t*;

/// A value, and the error in place of which it stands when there is one.
template <typename T>
using res_t = std::pair<T, std::optional<err_t>>;
/// Nothing, or an error.
using mres_t = std::optional<err_t>;

enum IvyAccessType { RD = 0, WR = 1, RW = 2, NONE = 3 };

constexpr std::size_t PG_SZ = 4096;

/// The start of the region as get_shm() hands it out. A pointer to an array, because that one type allows both
/// spellings in use: `reinterpret_cast<T*>(shm)`, and the paper's `reinterpret_cast<T*>(*shm)`, where the array `*shm`
/// decays to its first byte without being read. It converts to void_ptr by itself, as in memset(shm, 0, n).
using region_ptr = std::byte (*)[];

/// What get_shm() returns: a res_t whose value is a region_ptr, and which also is a res_t<void_ptr>.
struct region_res : public std::pair<region_ptr, std::optional<err_t>> {
    using std::pair<region_ptr, std::optional<err_t>>::pair;
    operator res_t<void_ptr>() const { return {first, second}; }
};

template <typename T>
[[nodiscard]] inline bool is_err(const std::pair<T, std::optional<err_t>>& result) {
    return result.second.has_value();
}
[[nodiscard]] inline bool is_err(const mres_t& result) { return result.has_value(); }

/// The value of a result; throws std::runtime_error with the error where there is one.
template <typename T>
inline T unwrap(const std::pair<T, std::optional<err_t>>& result) {
    if (result.second.has_value()) throw std::runtime_error(*result.second);
    return result.first;
}
inline void_ptr unwrap(const region_res& result) {
    if (result.second.has_value()) throw std::runtime_error(*result.second);
    return result.first;
}

/// An address, or a number, rounded down to the start of its 4096-byte page.
template <typename T>
constexpr T pg_align(T address) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(reinterpret_cast<std::uintptr_t>(address) / PG_SZ * PG_SZ);
    } else {
        return static_cast<T>(address / PG_SZ * PG_SZ);
    }
}

/// Bytes as upper-case hexadecimal text, two characters a byte.
inline std::string to_hex(const char* bytes, std::size_t count) {
    static constexpr char digits[] = "0123456789ABCDEF";
    std::string text;
    text.reserve(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
        const auto byte = static_cast<unsigned char>(bytes[i]);
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

/// The bytes of hexadecimal text, in an array the caller frees with delete[]. Throws std::invalid_argument where the
/// text is not a whole number of bytes.
inline char* from_hex(const std::string& text) {
    auto digit = [](char c) -> int {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        throw std::invalid_argument("from_hex: the text holds a character that is no hexadecimal digit");
    };
    if (text.size() % 2 != 0) throw std::invalid_argument("from_hex: half a byte at the end of the text");
    auto bytes = std::make_unique<char[]>(text.size() / 2 + 1);
    for (std::size_t i = 0; i < text.size(); i += 2) {
        bytes[i / 2] = static_cast<char>(digit(text[i]) << 4 | digit(text[i + 1]));
    }
    return bytes.release();
}

/// A node of a cluster described by libivy's JSON file. One at a time in a process; a second is refused.
class Ivy {
public:
    static constexpr bytes_t PAGE_SZ = 4096;

    /// Read the configuration and take the place of node `id`. Throws std::runtime_error when the file is missing or
    /// wrong, when `id` is not one of its nodes, and when the process has an Ivy already.
    Ivy(std::string cfg_f, idx_t id) {
        if (exists().exchange(true)) {
            throw std::runtime_error(
                "an Ivy object already exists in this process: a process is one node, use that one");
        }
        if (trellis_config_load(cfg_f.c_str(), &config_) != TRELLIS_OK ||
            trellis_config_set(config_, "node", std::to_string(id).c_str()) != TRELLIS_OK) {
            const std::string sentence = trellis_last_error();
            trellis_config_free(config_);
            exists() = false;
            throw std::runtime_error(sentence);
        }
    }

    /// Leaves together with the other nodes, as drop_shm() does; gives up at once while an exception passes.
    ~Ivy() {
        if (std::uncaught_exceptions() > exceptions_at_start_) {
            trellis_abandon(cluster_);
        } else if (const mres_t error = drop_shm(); error.has_value()) {
            std::fprintf(stderr, "trellis: %s\n", error->c_str());
        }
        trellis_config_free(config_);
        exists() = false;
    }

    Ivy(const Ivy&) = delete;
    Ivy& operator=(const Ivy&) = delete;

    /// Join the cluster and map the region, or say why not; asking again gives the same region. A node other than the
    /// manager waits here until the manager has come.
    region_res get_shm() {
        const std::lock_guard guard(changing_);
        if (dropped_) return {nullptr, err_t("the shared region was dropped: a node joins its cluster once")};
        if (cluster_ == nullptr && trellis_join(config_, &cluster_) != TRELLIS_OK) {
            return {nullptr, err_t(trellis_last_error())};
        }
        return {static_cast<region_ptr>(trellis_base(cluster_)), std::nullopt};
    }

    /// Leave the cluster and unmap the region; waits until the other nodes leave too, because they may still need
    /// bytes that are kept here.
    mres_t drop_shm() {
        const std::lock_guard guard(changing_);
        if (cluster_ == nullptr) return {};
        dropped_ = true;
        if (trellis_leave(std::exchange(cluster_, nullptr)) != TRELLIS_OK) return err_t(trellis_last_error());
        return {};
    }

    /// The same, for the region that get_shm() returned.
    mres_t drop_shm(void_ptr region) {
        if (region != trellis_base(cluster_)) return err_t("drop_shm: this is not the region that get_shm() returned");
        return drop_shm();
    }

    res_t<bool> is_manager() { return {trellis_config_node(config_) == trellis_config_manager(config_), {}}; }

    /// Whether addresses may be exchanged between nodes: always, the region has one address everywhere.
    res_t<bool> ca_va() { return {true, {}}; }

    /// Print one 4096-byte page of the region to standard error, 32 bytes a line. Reads it, so it may be fetched.
    void dump_shm_page(std::size_t page_num) {
        if (page_num >= trellis_bytes(cluster_) / PAGE_SZ) {
            std::cerr << "dump_shm_page: there is no page " << page_num << " in the shared region\n";
            return;
        }
        const char* page = static_cast<const char*>(trellis_base(cluster_)) + page_num * PAGE_SZ;
        std::ostringstream text;
        for (std::size_t offset = 0; offset < PAGE_SZ; offset += 32) {
            text << std::hex << std::setw(4) << std::setfill('0') << offset << "  " << to_hex(page + offset, 32)
                 << '\n';
        }
        std::cerr << text.str();
    }

private:
    static std::atomic<bool>& exists() {
        static std::atomic<bool> one{false};
        return one;
    }

    trellis_config* config_ = nullptr;
    trellis_cluster* cluster_ = nullptr;
    bool dropped_ = false;
    std::mutex changing_;
    int exceptions_at_start_ = std::uncaught_exceptions();
};

namespace detail {

template <typename T>
inline void_ptr printable(const volatile T* pointer) {
    return const_cast<void_ptr>(static_cast<const volatile void*>(pointer));
}
inline void_ptr printable(std::uintptr_t address) { return reinterpret_cast<void_ptr>(address); }

inline std::ostream& label(const char* function, const char* colour) {
    return std::cerr << "[\x1B[" << colour << "m" << std::setw(20) << std::string(function) + "()" << "\x1B[0m] ";
}

}  // namespace detail
}  // namespace libivy

using libivy::from_hex;
using libivy::is_err;
using libivy::Ivy;
using libivy::mres_t;
using libivy::pg_align;
using libivy::res_t;
using libivy::to_hex;
using libivy::unwrap;

#ifndef TRELLIS_IVY_NO_MACROS

// A loop that never runs rather than a branch: safe below an `if` without braces, and its operands are not evaluated,
// so a silenced message cannot fetch a page.
#ifdef RELEASE
#define TRELLIS_IVY_LOG(stream) \
    for (; false;) stream
#else
#define TRELLIS_IVY_LOG(stream) stream
#endif

#ifndef DBG
#define DBG TRELLIS_IVY_LOG(std::cerr)
#endif
#ifndef DBGH
#define DBGH TRELLIS_IVY_LOG(::libivy::detail::label(__func__, "1"))
#endif
#ifndef DBGF
#define DBGF TRELLIS_IVY_LOG(::libivy::detail::label(__func__, "1") << __func__ << "() called." << std::endl)
#endif
#ifndef DBGW
#define DBGW TRELLIS_IVY_LOG(::libivy::detail::label(__func__, "1") << "\x1B[95mWARNING: \x1B[0m")
#endif
#ifndef DBGE
#define DBGE TRELLIS_IVY_LOG(::libivy::detail::label(__func__, "31") << "\x1B[95mERROR: \x1B[0m")
#endif
#ifndef FUNC_DUMP
#define FUNC_DUMP TRELLIS_IVY_LOG(::libivy::detail::label(__func__, "1") << "called" << std::endl)
#endif

/// A pointer as std::ostream should print it: its address, never the text a char* points at.
#ifndef P
#define P(pointer) (::libivy::detail::printable(pointer))
#endif

#ifndef PSTR
#define PSTR() (std::string(std::strerror(errno)))
#endif
#ifndef IVY_ERROR
#define IVY_ERROR(message) \
    do { \
        throw std::runtime_error(message); \
    } while (false)
#endif
#ifndef IVY_PERROR
#define IVY_PERROR(message) IVY_ERROR(PSTR() + ": " + std::string(message))
#endif
#ifndef IVY_ASSERT
#define IVY_ASSERT(condition, message) \
    do { \
        if (!(condition)) { \
            std::cerr << __FILE__ << ":" << __LINE__ << ": assertion failed: " << message << std::endl; \
            std::abort(); \
        } \
    } while (false)
#endif
#ifndef ERROR
#define ERROR(message) IVY_ERROR(message)
#endif

#endif  // TRELLIS_IVY_NO_MACROS

#endif  // TRELLIS_IVY_HH
