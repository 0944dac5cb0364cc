// trellis/remote.hpp - objects in the memory of other machines, named by IPv6 addresses: trellis/remote.h for C++20.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
//     #include <iostream>
//     #include <trellis/remote.hpp>
//
//     int main() {
//         trellis::remote::client client;                              // TRELLIS_PREFIX says who this host is
//         const trellis::remote::pointer object = client.create(1 << 20);
//         client.write(object, 42);
//         std::cout << client.read<int>(object) << " is at " << object << '\n';
//         client.erase(object);
//     }
//
// Failures are thrown as trellis::error; its status() is a code of trellis.h or of trellis/remote.h. The statements
// there about calls, threads and failures apply here too. Values are sent as their bytes in memory, so a program that
// reads them must know their type and have the same byte order.
#ifndef TRELLIS_REMOTE_HPP
#define TRELLIS_REMOTE_HPP

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __has_include(<format>)
#include <format>
#endif

#include "../trellis.hpp"
#include "remote.h"

namespace trellis::remote {

/// As a server's number: the switch chooses the server.
inline constexpr std::uint16_t anywhere = TRELLIS_REMOTE_ANYWHERE;

/// A byte of an object. A value of 16 bytes, which may be kept anywhere, also in objects; one that was not set names
/// nothing and converts to false. Its order is that of its bytes: pointers into one object are adjacent.
class pointer {
public:
    constexpr pointer() noexcept = default;
    explicit pointer(const trellis_remote_pointer& raw) noexcept { std::memcpy(bytes_.data(), raw.bytes, sizeof raw); }
    /// From a text such as "fd12:3456:7:0:1::1000".
    explicit pointer(const std::string& text) {
        trellis_remote_pointer raw{};
        trellis::detail::check(trellis_remote_parse(text.c_str(), &raw));
        *this = pointer(raw);
    }

    [[nodiscard]] trellis_remote_pointer raw() const noexcept {
        trellis_remote_pointer raw{};
        std::memcpy(raw.bytes, bytes_.data(), sizeof raw);
        return raw;
    }
    [[nodiscard]] std::string text() const {
        std::array<char, TRELLIS_REMOTE_TEXT_BYTES> text{};
        trellis::detail::check(trellis_remote_format(raw(), text.data(), text.size()));
        return text.data();
    }
    /// The number of the server that has the object.
    [[nodiscard]] std::uint16_t home() const {
        return static_cast<std::uint16_t>(trellis::detail::check(trellis_remote_home(raw())));
    }
    /// The offset in that server's memory.
    [[nodiscard]] std::uint64_t offset() const noexcept { return trellis_remote_offset(raw()); }

    pointer& operator+=(std::int64_t bytes) {
        trellis_remote_pointer moved = raw();
        trellis::detail::check(trellis_remote_advance(&moved, bytes));
        return *this = pointer(moved);
    }
    pointer& operator-=(std::int64_t bytes) {
        return *this += static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(bytes));
    }
    [[nodiscard]] friend pointer operator+(pointer from, std::int64_t bytes) { return from += bytes; }
    [[nodiscard]] friend pointer operator-(pointer from, std::int64_t bytes) { return from -= bytes; }
    /// The distance in bytes between two pointers into one object; throws if they cannot be of one.
    [[nodiscard]] friend std::int64_t operator-(const pointer& later, const pointer& earlier) {
        if (!std::ranges::equal(std::span(later.bytes_).first<object_bytes>(),
                                std::span(earlier.bytes_).first<object_bytes>())) {
            throw error(TRELLIS_ERROR_ARGUMENT, later.text() + " and " + earlier.text() +
                                                    " are not of one object, so there is no distance between them");
        }
        return static_cast<std::int64_t>(later.offset()) - static_cast<std::int64_t>(earlier.offset());
    }

    [[nodiscard]] explicit operator bool() const noexcept { return *this != pointer(); }
    [[nodiscard]] friend constexpr auto operator<=>(const pointer&, const pointer&) noexcept = default;
    friend std::ostream& operator<<(std::ostream& stream, const pointer& which) { return stream << which.text(); }

private:
    /// The common bytes of two pointers into one object: cluster, home and generation.
    static constexpr std::size_t object_bytes = 10;

    std::array<std::uint8_t, sizeof(trellis_remote_pointer)> bytes_{};
};

static_assert(sizeof(pointer) == 16 && std::is_trivially_copyable_v<pointer>, "it may lie in an object");

/// A type that may be copied as bytes and is not a pointer to memory of this process.
template <typename T>
concept plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_const_v<T>;

/// Contiguous values: an array, a vector, a span.
template <typename R>
concept values =
    std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && plain<std::ranges::range_value_t<R>>;

/// The options of a client; what is not set has its default.
struct options {
    /// The addresses of this host; default: TRELLIS_PREFIX.
    std::string prefix{};
    /// The time-out of a call; default: 10 s.
    std::chrono::milliseconds deadline{0};
    /// The bytes in one datagram; default: 4,096.
    std::uint32_t piece_bytes = 0;
    /// The port on which servers listen; default: 5000.
    std::uint16_t port = 0;
};

/// The result of inquire().
struct object {
    /// Its first byte.
    pointer first;
    std::uint64_t bytes = 0;
};

namespace detail {

struct close_client {
    void operator()(trellis_remote_client* client) const noexcept { trellis_remote_close(client); }
};

template <values R>
std::size_t bytes_of(const R& range) noexcept {
    return std::ranges::size(range) * sizeof(std::ranges::range_value_t<R>);
}

}  // namespace detail

/// A client of memory servers; for one thread at a time. Movable, not copyable.
class client {
public:
    explicit client(const options& wanted = {}) {
        trellis_remote_options raw{};
        raw.prefix = wanted.prefix.empty() ? nullptr : wanted.prefix.c_str();
        const std::chrono::milliseconds none(0), longest(UINT32_MAX);
        raw.deadline_ms = static_cast<std::uint32_t>(std::clamp(wanted.deadline, none, longest).count());
        raw.piece_bytes = wanted.piece_bytes;
        raw.port = wanted.port;
        trellis_remote_client* opened = nullptr;
        trellis::detail::check(trellis_remote_open(&raw, &opened));
        client_.reset(opened);
    }

    /// Create an object of so many zero bytes.
    [[nodiscard]] pointer create(std::uint64_t bytes, std::uint16_t server = anywhere) {
        trellis_remote_pointer made{};
        trellis::detail::check(trellis_remote_create(handle(), server, bytes, &made));
        return pointer(made);
    }
    /// Create an object with these values.
    template <values R>
    [[nodiscard]] pointer create_with(const R& from, std::uint16_t server = anywhere) {
        trellis_remote_pointer made{};
        trellis::detail::check(trellis_remote_create_with(handle(), server, std::ranges::data(from),
                                                          detail::bytes_of(from), &made));
        return pointer(made);
    }
    /// Create an object with one value.
    template <plain T>
        requires(!values<T>)
    [[nodiscard]] pointer create_with(const T& value, std::uint16_t server = anywhere) {
        return create_with(std::span(&value, 1), server);
    }
    /// Delete an object, by its first byte.
    void erase(const pointer& first) { trellis::detail::check(trellis_remote_delete(handle(), first.raw())); }
    /// The object into which a pointer points.
    [[nodiscard]] object inquire(const pointer& inside) {
        trellis_remote_pointer first{};
        object found;
        trellis::detail::check(trellis_remote_inquire(handle(), inside.raw(), &first, &found.bytes));
        found.first = pointer(first);
        return found;
    }

    /// Read one value.
    template <plain T>
    [[nodiscard]] T read(const pointer& from) {
        static_assert(std::is_default_constructible_v<T>, "a value to read into is made first");
        T value;
        read(from, std::span(&value, 1));
        return value;
    }
    /// Read as many values as `into` has room for.
    template <values R>
    void read(const pointer& from, R&& into) {
        trellis::detail::check(
            trellis_remote_read(handle(), from.raw(), std::ranges::data(into), detail::bytes_of(into)));
    }
    template <values R>
    void write(const pointer& to, const R& from) {
        trellis::detail::check(
            trellis_remote_write(handle(), to.raw(), std::ranges::data(from), detail::bytes_of(from)));
    }
    template <plain T>
        requires(!values<T>)
    void write(const pointer& to, const T& value) {
        write(to, std::span(&value, 1));
    }
    /// Write at most 65,536 bytes in one step. If the range has backups, or some of its pages have another home, at
    /// most what is in one page of 4,096 bytes; otherwise TRELLIS_REMOTE_LEASE is thrown, and nothing was written.
    template <values R>
    void write_whole(const pointer& to, const R& from) {
        trellis::detail::check(
            trellis_remote_write_whole(handle(), to.raw(), std::ranges::data(from), detail::bytes_of(from)));
    }
    template <plain T>
        requires(!values<T>)
    void write_whole(const pointer& to, const T& value) {
        write_whole(to, std::span(&value, 1));
    }

    /// The eight bytes before the addition, which wraps at 2^64.
    std::uint64_t fetch_add(const pointer& word, std::uint64_t addend) {
        std::uint64_t before = 0;
        trellis::detail::check(trellis_remote_fetch_add(handle(), word.raw(), addend, &before));
        return before;
    }
    /// True if `expected` was replaced; otherwise `expected` becomes the present value.
    bool compare_exchange(const pointer& word, std::uint64_t& expected, std::uint64_t desired) {
        return trellis::detail::check(trellis_remote_compare_swap(handle(), word.raw(), &expected, desired)) == 1;
    }

    /// This host's quota at a server.
    trellis_remote_welcome hello(std::uint16_t server) {
        trellis_remote_welcome welcome{};
        trellis::detail::check(trellis_remote_hello(handle(), server, &welcome));
        return welcome;
    }

    [[nodiscard]] trellis_remote_client* handle() const noexcept { return client_.get(); }

private:
    std::unique_ptr<trellis_remote_client, detail::close_client> client_;
};

/// Calls that are carried out at the same time, in no order. Each member adds one and returns its number; run()
/// carries them out. Buffers must stay valid until then.
class batch {
public:
    template <values R>
    std::size_t read(const pointer& from, R&& into) {
        static_assert(std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>, "it is read into later");
        trellis_remote_call call = about(TRELLIS_REMOTE_READ, from);
        call.into = std::ranges::data(into);
        call.bytes = detail::bytes_of(into);
        return add(call);
    }
    template <values R>
    std::size_t write(const pointer& to, R&& from) {
        static_assert(std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>, "it is written later");
        return add(with(about(TRELLIS_REMOTE_WRITE, to), from));
    }
    template <values R>
    std::size_t write_whole(const pointer& to, R&& from) {
        static_assert(std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>, "it is written later");
        return add(with(about(TRELLIS_REMOTE_WRITE_WHOLE, to), from));
    }
    std::size_t create(std::uint64_t bytes, std::uint16_t server = anywhere) {
        trellis_remote_call call = about(TRELLIS_REMOTE_CREATE, pointer());
        call.bytes = bytes;
        call.server = server;
        return add(call);
    }
    template <values R>
    std::size_t create_with(R&& from, std::uint16_t server = anywhere) {
        static_assert(std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>, "it is written later");
        trellis_remote_call call = with(about(TRELLIS_REMOTE_CREATE_WITH, pointer()), from);
        call.server = server;
        return add(call);
    }
    std::size_t erase(const pointer& first) { return add(about(TRELLIS_REMOTE_DELETE, first)); }
    std::size_t inquire(const pointer& inside) { return add(about(TRELLIS_REMOTE_INQUIRE, inside)); }
    std::size_t fetch_add(const pointer& word, std::uint64_t addend) {
        trellis_remote_call call = about(TRELLIS_REMOTE_FETCH_ADD, word);
        call.value = addend;
        return add(call);
    }
    std::size_t compare_exchange(const pointer& word, std::uint64_t expected, std::uint64_t desired) {
        trellis_remote_call call = about(TRELLIS_REMOTE_COMPARE_SWAP, word);
        call.value = expected;
        call.desired = desired;
        return add(call);
    }

    /// Carry out all calls; throws the first failure. status() is the result of each.
    void run(client& who) { trellis::detail::check(try_run(who)); }
    /// The same, but returns the status of the first failed call, or TRELLIS_OK.
    [[nodiscard]] int try_run(client& who) noexcept {
        return trellis_remote_batch(who.handle(), calls_.data(), calls_.size());
    }

    [[nodiscard]] std::size_t size() const noexcept { return calls_.size(); }
    /// The result of a call.
    [[nodiscard]] int status(std::size_t number) const { return calls_.at(number).status; }
    /// The object that was created or found.
    [[nodiscard]] remote::object object(std::size_t number) const {
        return {pointer(calls_.at(number).pointer), calls_.at(number).bytes};
    }
    /// The old value of the eight bytes.
    [[nodiscard]] std::uint64_t before(std::size_t number) const { return calls_.at(number).value; }
    /// Remove all calls.
    void clear() noexcept { calls_.clear(); }

private:
    static trellis_remote_call about(trellis_remote_kind kind, const pointer& what) noexcept {
        trellis_remote_call call{};
        call.kind = kind;
        call.pointer = what.raw();
        return call;
    }
    template <values R>
    static trellis_remote_call with(trellis_remote_call call, const R& from) noexcept {
        call.from = std::ranges::data(from);
        call.bytes = detail::bytes_of(from);
        return call;
    }
    std::size_t add(const trellis_remote_call& call) {
        calls_.push_back(call);
        return calls_.size() - 1;
    }

    std::vector<trellis_remote_call> calls_;
};

}  // namespace trellis::remote

template <>
struct std::hash<trellis::remote::pointer> {
    std::size_t operator()(const trellis::remote::pointer& which) const noexcept {
        std::uint64_t halves[2];
        std::memcpy(halves, &which, sizeof halves);
        return std::hash<std::uint64_t>()(halves[0] * 31 + halves[1]);
    }
};

#ifdef __cpp_lib_format
/// As text, with the format options of a text: "{:>40}".
template <>
struct std::formatter<trellis::remote::pointer> : std::formatter<std::string> {
    template <typename Context>
    auto format(const trellis::remote::pointer& which, Context& context) const {
        return std::formatter<std::string>::format(which.text(), context);
    }
};
#endif

#endif  // TRELLIS_REMOTE_HPP
