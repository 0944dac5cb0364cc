// The helpers of unordered containers that libstdc++.so keeps compiled, as translated code.
//
// Promises: prime numbers of buckets, growing at least twofold, as bits/hashtable_policy.h wants. The values of hashes
// differ from those of libstdc++.so; both never meet, because whole programs are translated.
// Must never: be compiled without the pass; texts and policies lie in the store.
#include <cstdint>
#include <unordered_map>

namespace std _GLIBCXX_VISIBILITY(default) {
_GLIBCXX_BEGIN_NAMESPACE_VERSION

size_t _Hash_bytes(const void *bytes, size_t length, size_t seed) {
    // FNV-1a, then a final mix so that low bits depend on all bytes.
    const unsigned char *at = static_cast<const unsigned char *>(bytes);
    uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < length; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    hash ^= hash >> 32;
    return hash * 0x9e3779b97f4a7c15u;
}

size_t _Fnv_hash_bytes(const void *bytes, size_t length, size_t seed) { return _Hash_bytes(bytes, length, seed); }

namespace __detail {

static bool is_prime(size_t number) {
    for (size_t divisor = 3; divisor * divisor <= number; divisor += 2)
        if (number % divisor == 0) return false;
    return number % 2 == 1 || number == 2;
}

size_t _Prime_rehash_policy::_M_next_bkt(size_t wanted) const {
    size_t prime = wanted < 3 ? (wanted < 2 ? 2 : wanted) : wanted | 1;
    while (!is_prime(prime)) prime += 2;
    _M_next_resize = static_cast<size_t>(static_cast<double>(_M_max_load_factor) * static_cast<double>(prime));
    return prime;
}

pair<bool, size_t> _Prime_rehash_policy::_M_need_rehash(size_t buckets, size_t elements, size_t added) const {
    if (elements + added <= _M_next_resize) return {false, 0};
    double least = static_cast<double>(elements + (_M_next_resize ? added : (added > 11 ? added : 11))) /
                   static_cast<double>(_M_max_load_factor);
    if (least >= static_cast<double>(buckets)) {
        size_t enough = static_cast<size_t>(least) + 1, twice = buckets * 2;
        return {true, _M_next_bkt(enough > twice ? enough : twice)};
    }
    _M_next_resize = static_cast<size_t>(static_cast<double>(_M_max_load_factor) * static_cast<double>(buckets));
    return {false, 0};
}

} // namespace __detail
_GLIBCXX_END_NAMESPACE_VERSION
} // namespace std
