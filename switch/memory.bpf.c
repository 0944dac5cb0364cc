// A memory server in the kernel: it runs for every packet that comes in at the server's interface, and answers a READ
// or a blind WRITE of memory that it shares with the server's process.
//
// Promises: what it answers is, byte for byte, what the process would answer. Everything else it leaves to the process,
// unchanged: another command, a refusal, an odd form, memory that it does not have, a guarded page, a page that
// somebody changes at this moment. A READ sees all of a change or nothing; a WRITE is done or not, and never to a page
// that its pointer is not of. It never waits.
//
// How a page is shared: whoever changes it, its entry or its digest makes its version odd first, by one exchange that
// fails if it is odd already, and even again afterwards. Whoever reads looks at the version before and after.

#include "kernel.h"

#include "layout.h"
#include "memory_layout.h"

#define ETHERNET_BYTES 14
#define UDP_AT 54
#define HEADER_AT 62
#define DATA_AT 94
#define UDP_BYTES 8
#define PROTOCOL_IPV6 0xdd86 // in network order
#define NEXT_UDP 17
#define TO_THIS_HOST 0 // PACKET_HOST of linux/if_packet.h
#define HOPS 64
#define VERSION_6 0x60 // in network order
#define COMMAND_READ 0x01
#define COMMAND_WRITE 0x10
#define ARGUMENT_LENGTH 0x0f
#define CHECKSUM_TAG 1
// Go on with whoever is next: another program, and then the host.
#define PASS (-1)
#define DIGESTED_BYTES_MAX (TRELLIS_PAGE_BYTES + 16)
#define BROKEN (~0ULL)
#define ATTEMPTS 2

const char memory_license[] SECTION("license") = "Dual MIT/GPL";

// Filled by the loader, which knows how.
const volatile __u32 crc_tables[TRELLIS_CRC_TABLES][256] SECTION(".rodata") = {};
const volatile __u32 crc_page_tables[TRELLIS_CRC_PAGE_TABLES][256] SECTION(".rodata") = {};

static long (*const change_tail)(struct __sk_buff *skb, __u32 length, __u64 flags) = (void *)BPF_FUNC_skb_change_tail;
static long (*const pull_data)(struct __sk_buff *skb, __u32 length) = (void *)BPF_FUNC_skb_pull_data;
static long (*const check_mtu)(void *skb, __u32 interface, __u32 *mtu, __s32 more, __u64 flags) =
    (void *)BPF_FUNC_check_mtu;

struct {
    NUMBER(type, BPF_MAP_TYPE_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, __u32);
    TYPE(value, struct trellis_memory_settings);
} served SECTION(".maps");

// The loader says how many there may be. One that is missing is the process's. (The kind of its entries has no name and
// names none: of what has one, the compiler tells the loader nothing else.)
struct {
    NUMBER(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    NUMBER(max_entries, TRELLIS_EXTENTS_MAX);
    TYPE(key, __u32);
    TYPE(value, __u32);
    struct {
        NUMBER(type, BPF_MAP_TYPE_ARRAY);
        NUMBER(max_entries, 1);
        NUMBER(map_flags, BPF_F_MMAPABLE);
        NUMBER(key_size, 4);
        NUMBER(value_size, TRELLIS_EXTENT_VALUE_BYTES);
    } *values[];
} extents SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, __u32);
    TYPE(value, struct trellis_outcomes);
} outcomes SECTION(".maps");

// The headers of a packet. What is in front lets the addresses lie at multiples of eight bytes.
struct frame {
    __u8 in_front[2];
    __u8 to[6];
    __u8 from[6];
    __be16 type;
    __u8 version[4];
    __be16 payload_bytes;
    __u8 next;
    __u8 hops;
    struct trellis_address source;
    struct trellis_address destination;
    __be16 source_port;
    __be16 destination_port;
    __be16 udp_bytes;
    __u16 checksum;
    struct trellis_header header;
};

_Static_assert(__builtin_offsetof(struct frame, source) == 24, "addresses are words 3 to 6");
_Static_assert(__builtin_offsetof(struct frame, header) == 64, "the header is words 8 to 11");
_Static_assert(sizeof(struct frame) == DATA_AT + 2, "frame");

// How the packet's sums stand, and so how the answer's shall.
enum checksum { CHECKSUM_WRONG, CHECKSUM_WHOLE, CHECKSUM_LEFT_TO_DEVICE };

// What is asked.
struct asked {
    __u32 bytes;
    __u32 extent;
    __u32 at; // of the first byte, in the extent
    __u16 generation;
    __u8 is_write;
    __u8 checksum;
};

INLINE __u16 swap16(__u16 value)
{
    return __builtin_bswap16(value);
}

INLINE int pass(struct trellis_outcomes *counts, __u32 why)
{
    counts->count[why]++;
    return PASS;
}

// ---- Sums -----------------------------------------------------------------------------------------------------------

// The sum of the internet, of 64 bits.
INLINE __u64 add(__u64 sum, __u64 word)
{
    sum += word;
    return sum + (sum < word);
}

INLINE __u32 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

#define STEP(crc, number, word)                              \
    {                                                        \
        __u64 byte = (word) & 0xff;                          \
        asm volatile("" : "+r"(byte));                       \
        crc ^= crc_tables[number][byte];                     \
        asm volatile("" : "+r"(crc));                        \
        (word) >>= 8;                                        \
    }

// Sixteen bytes more. Table by table, so that what is known of one is used up before the next one is needed.
INLINE __u32 crc_of_16(__u32 before, __u64 first, __u64 second)
{
    __u32 crc = 0;
    first ^= before;
    STEP(crc, 15, first) STEP(crc, 14, first) STEP(crc, 13, first) STEP(crc, 12, first)
    STEP(crc, 11, first) STEP(crc, 10, first) STEP(crc, 9, first) STEP(crc, 8, first)
    STEP(crc, 7, second) STEP(crc, 6, second) STEP(crc, 5, second) STEP(crc, 4, second)
    STEP(crc, 3, second) STEP(crc, 2, second) STEP(crc, 1, second) STEP(crc, 0, second)
    return crc;
}

// What 4,096 zero bytes make of a state.
INLINE __u32 crc_of_page_of_zeros(__u32 crc)
{
    return crc_page_tables[0][crc & 0xff] ^ crc_page_tables[1][crc >> 8 & 0xff]
        ^ crc_page_tables[2][crc >> 16 & 0xff] ^ crc_page_tables[3][crc >> 24];
}

// Sum (16 bits) << 32 | CRC32C, from a state on, of fewer than sixteen bytes at a place behind the header. This and the
// next are functions by themselves, so that the kernel looks at their loops once.
__attribute__((noinline)) __u64 digest_of_rest(struct __sk_buff *skb, __u32 at, __u32 bytes, __u32 crc)
{
    const __u8 *data = (void *)(long)skb->data;
    const __u8 *end = (void *)(long)skb->data_end;
    __u64 sum = 0;
    if (at > TRELLIS_PAGE_BYTES)
        return BROKEN;
    data += DATA_AT + at;
#pragma clang loop unroll(disable)
    for (__u32 i = 0; i < 15; i++) {
        if (i >= bytes)
            break;
        if (data + 1 > end)
            return BROKEN;
        sum += (__u64)*data << (i & 1 ? 8 : 0);
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *data) & 0xff];
        data++;
    }
    return (__u64)fold(sum) << 32 | crc;
}

// The same of so many bytes right behind the header.
__attribute__((noinline)) __u64 digest(struct __sk_buff *skb, __u32 bytes, __u32 crc)
{
    const __u8 *data = (void *)(long)skb->data;
    const __u8 *end = (void *)(long)skb->data_end;
    __u64 sum = 0;
    __u32 sixteens = bytes >> 4;
    data += DATA_AT;
#pragma clang loop unroll(disable)
    for (__u32 i = 0; i < TRELLIS_PAGE_BYTES / 16; i++) {
        if (i >= sixteens)
            break;
        if (data + 16 > end)
            return BROKEN;
        __u64 first = ((const __u64 *)data)[0];
        __u64 second = ((const __u64 *)data)[1];
        sum = add(add(sum, first), second);
        crc = crc_of_16(crc, first, second);
        data += 16;
    }
    if (bytes & 15) {
        __u64 rest = digest_of_rest(skb, bytes & ~15U, bytes & 15, crc);
        if (rest == BROKEN)
            return BROKEN;
        sum = add(sum, rest >> 32);
        crc = rest;
    }
    return (__u64)fold(sum) << 32 | crc;
}

INLINE __u64 word(const struct frame *frame, __u32 number)
{
    return ((const __u64 *)frame)[number];
}

// The state of CRC32C behind both addresses and the header, whose tag is zero.
INLINE __u32 crc_of_frame(const struct frame *frame)
{
    __u32 crc = ~0;
#pragma clang loop unroll(disable)
    for (__u32 i = 0; i < 4; i++) {
        __u32 at = i < 2 ? 3 + 2 * i : 4 + 2 * i;
        crc = crc_of_16(crc, word(frame, at), word(frame, at + 1));
    }
    return crc;
}

// The sum of what UDP adds to its datagram: addresses, length, protocol.
INLINE __u64 pseudo_sum(const struct frame *frame)
{
    __u64 sum = add(add(add(word(frame, 3), word(frame, 4)), word(frame, 5)), word(frame, 6));
    return add(sum, (__u64)frame->udp_bytes + ((__u64)NEXT_UDP << 8));
}

INLINE __u64 header_sum(const struct frame *frame)
{
    return add(add(add(word(frame, 8), word(frame, 9)), word(frame, 10)), word(frame, 11));
}

// What a packet has as its checksum: all of it; or that of addresses, length and protocol, and the device that sends it
// does the rest, which it need not where the packet never leaves the machine. Where it could be both, nobody can tell
// what the answer needs.
INLINE enum checksum checksum_kind(const struct frame *frame, __u64 follows)
{
    __u64 pseudo = pseudo_sum(frame);
    int is_left = frame->checksum == fold(pseudo);
    int is_whole = fold(add(add(pseudo, word(frame, 7)), follows)) == 0xffff;
    if (!frame->checksum)
        return CHECKSUM_WHOLE;
    if (is_left == is_whole)
        return CHECKSUM_WRONG;
    return is_left ? CHECKSUM_LEFT_TO_DEVICE : CHECKSUM_WHOLE;
}

// ---- Requests -------------------------------------------------------------------------------------------------------

// Whether the packet is a READ or a WRITE of this home by a client.
INLINE int is_for_us(const struct frame *frame, const struct trellis_memory_settings *set)
{
    __u8 command = frame->destination.command;
    __u16 client = frame->source.home;
    return frame->next == NEXT_UDP && frame->destination.scope == set->scope && frame->destination.home == set->home
        && (command == COMMAND_READ || command == COMMAND_WRITE) && frame->destination_port == set->port
        && frame->source.scope == set->scope && client != 0 && client != 0xffff
        && frame->source.command & TRELLIS_INCARNATION && frame->source_port;
}

INLINE __u64 request_id(const struct frame *frame)
{
    return __builtin_bswap64(word(frame, 4));
}

// A header that has nothing but a checksum as its tag.
INLINE int is_plain_header(const struct frame *frame, __u32 length)
{
    const struct trellis_header *header = &frame->header;
    return header->version == TRELLIS_HEADER_VERSION && header->status == TRELLIS_STATUS_OK
        && header->flags == CHECKSUM_TAG && header->length == length && header->request == request_id(frame);
}

// Reads what stands in the headers and, of a READ, behind them; how many bytes the datagram has. 0: an odd form.
INLINE __u32 read_request(struct __sk_buff *skb, struct frame *frame, struct asked *asked)
{
    __u8 command = frame->destination.command;
    __u8 arguments = frame->destination.arguments & ~TRELLIS_ARGUMENT_DIRECT;
    __u32 payload = swap16(frame->udp_bytes) - UDP_BYTES;
    if (frame->payload_bytes != frame->udp_bytes || payload > DIGESTED_BYTES_MAX + TRELLIS_HEADER_BYTES
        || skb->len != HEADER_AT + payload || frame->version[0] >> 4 != VERSION_6 >> 4)
        return 0;
    asked->is_write = command == COMMAND_WRITE;
    asked->bytes = 1U << (arguments & ARGUMENT_LENGTH);
    if (asked->is_write ? arguments : arguments & ~ARGUMENT_LENGTH)
        return 0;
    if (payload) {
        __u32 length = payload - TRELLIS_HEADER_BYTES;
        if (payload < TRELLIS_HEADER_BYTES || bpf_skb_load_bytes(skb, HEADER_AT, &frame->header, sizeof frame->header))
            return 0;
        if (!is_plain_header(frame, length) || pull_data(skb, skb->len))
            return 0;
        if (asked->is_write)
            asked->bytes = length;
        else if (length == sizeof asked->bytes)
            bpf_skb_load_bytes(skb, DATA_AT, &asked->bytes, sizeof asked->bytes);
        else if (length)
            return 0;
    } else if (asked->is_write) {
        return 0;
    }
    if (!asked->bytes || asked->bytes > TRELLIS_PAGE_BYTES)
        return 0;
    __u64 low = __builtin_bswap64(word(frame, 6));
    __u64 offset = low & ((1ULL << TRELLIS_OFFSET_BITS) - 1);
    if (offset >> TRELLIS_EXTENT_SHIFT >= TRELLIS_EXTENTS_MAX)
        return 0;
    asked->generation = low >> TRELLIS_OFFSET_BITS;
    asked->extent = offset >> TRELLIS_EXTENT_SHIFT;
    asked->at = offset & (TRELLIS_EXTENT_BYTES - 1);
    return UDP_BYTES + payload;
}

// Checksum and tag. Of a whole page that is written, `*page` becomes the digest.
INLINE int is_sound(struct __sk_buff *skb, struct frame *frame, struct asked *asked, __u32 udp_bytes, __u64 *page)
{
    __u64 follows = 0;
    *page = 0;
    if (udp_bytes > UDP_BYTES) {
        __u32 length = udp_bytes - UDP_BYTES - TRELLIS_HEADER_BYTES;
        __u64 tag = frame->header.tag;
        follows = header_sum(frame);
        frame->header.tag = 0;
        __u32 crc = crc_of_frame(frame);
        if (length) {
            int is_page = length == TRELLIS_PAGE_BYTES;
            __u64 body = digest(skb, length, is_page ? 0 : crc);
            if (body == BROKEN)
                return 0;
            *page = body;
            follows = add(follows, body >> 32);
            crc = is_page ? crc_of_page_of_zeros(crc) ^ (__u32)body : body;
        }
        if (tag != (__u32)~crc)
            return 0;
    }
    asked->checksum = checksum_kind(frame, follows);
    return asked->checksum != CHECKSUM_WRONG;
}

// ---- Pages ----------------------------------------------------------------------------------------------------------

INLINE struct trellis_known *known_of(struct trellis_extent *extent, __u32 page)
{
    return &extent->known[page & (TRELLIS_EXTENT_PAGES - 1)];
}

// The version of a page, before or after all else that is done here.
INLINE __u64 version_of(struct trellis_known *known)
{
    return __sync_fetch_and_add(&known->version, 0);
}

// What is known of a page, at one moment.
INLINE __u64 entry_of(struct trellis_known *known)
{
    return *(volatile __u64 *)&known->entry;
}

INLINE int refusal(__u64 entry, __u16 generation, __u32 at, __u32 bytes)
{
    if ((__u16)entry != generation || at + bytes > (__u16)(entry >> TRELLIS_ENTRY_VALID_SHIFT))
        return TRELLIS_NOT_ADMITTED;
    return entry & TRELLIS_ENTRY_GUARDED ? TRELLIS_GUARDED : 0;
}

// Why these bytes may not be read here now, or 0.
INLINE int why_not(struct trellis_extent *extent, const struct asked *asked)
{
    __u32 page = asked->at >> TRELLIS_PAGE_SHIFT;
    __u32 at = asked->at & (TRELLIS_PAGE_BYTES - 1);
    __u32 here = at + asked->bytes > TRELLIS_PAGE_BYTES ? TRELLIS_PAGE_BYTES - at : asked->bytes;
    int why = refusal(entry_of(known_of(extent, page)), asked->generation, at, here);
    if (why || here == asked->bytes)
        return why;
    if (page + 1 >= TRELLIS_EXTENT_PAGES)
        return TRELLIS_NOT_HERE;
    __u64 next = entry_of(known_of(extent, page + 1));
    if (next & TRELLIS_ENTRY_FIRST)
        return TRELLIS_NOT_ADMITTED;
    return refusal(next, asked->generation, 0, asked->bytes - here);
}

// Puts the bytes behind the header, all of one moment; why that cannot be, or 0. `*cached` is what is known of the
// digest of a whole page; `*version` is the version that these bytes are of.
INLINE int copy_out(struct __sk_buff *skb, struct trellis_extent *extent, const struct asked *asked, __u64 *cached,
                    __u64 *version)
{
    __u32 page = asked->at >> TRELLIS_PAGE_SHIFT;
    struct trellis_known *first = known_of(extent, page);
    struct trellis_known *last = known_of(extent, (asked->at + asked->bytes - 1) >> TRELLIS_PAGE_SHIFT);
    __u32 at = asked->at & (TRELLIS_EXTENT_BYTES - 1);
    __u32 bytes = asked->bytes;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        __u64 before = version_of(first);
        __u64 before_last = version_of(last);
        if ((before | before_last) & 1)
            continue;
        int why = why_not(extent, asked);
        if (why)
            return why;
        if (!bytes || bytes > TRELLIS_PAGE_BYTES || bpf_skb_store_bytes(skb, DATA_AT, extent->pages + at, bytes, 0))
            return TRELLIS_NO_ROOM;
        *cached = *(volatile __u64 *)&first->digest;
        *version = before;
        if (version_of(first) == before && version_of(last) == before_last)
            return 0;
    }
    return TRELLIS_CHANGING;
}

INLINE __u64 digest_version(__u64 version)
{
    return (version | TRELLIS_DIGEST_THERE) << TRELLIS_DIGEST_VERSION_SHIFT;
}

INLINE __u64 as_digest(__u64 version, __u64 page)
{
    return digest_version(version) | (page & ((1ULL << TRELLIS_DIGEST_VERSION_SHIFT) - 1));
}

// ---- Answers --------------------------------------------------------------------------------------------------------

// Makes the headers those of an answer with so many bytes, but for tag and checksum.
INLINE void turn_round(struct frame *frame, __u32 bytes)
{
    struct trellis_address destination = frame->destination;
    __be16 port = frame->destination_port;
    __u8 to[6];
    __builtin_memcpy(to, frame->to, sizeof to);
    __builtin_memcpy(frame->to, frame->from, sizeof to);
    __builtin_memcpy(frame->from, to, sizeof to);
    frame->destination = frame->source;
    frame->source = destination;
    frame->destination_port = frame->source_port;
    frame->source_port = port;
    frame->version[0] = VERSION_6;
    frame->version[1] = frame->version[2] = frame->version[3] = 0;
    frame->hops = HOPS;
    frame->udp_bytes = swap16(UDP_BYTES + TRELLIS_HEADER_BYTES + bytes);
    frame->payload_bytes = frame->udp_bytes;
    frame->header.version = TRELLIS_HEADER_VERSION;
    frame->header.status = TRELLIS_STATUS_OK;
    frame->header.flags = CHECKSUM_TAG | TRELLIS_FLAG_ANSWER;
    frame->header.length = bytes;
    frame->header.request = __builtin_bswap64(word(frame, 6));
    frame->header.tag = 0;
}

// Tag and checksum, where the bytes that follow have this sum and CRC32C; then sends it to where the request came from.
INLINE int send(struct __sk_buff *skb, struct frame *frame, __u8 checksum, __u32 crc, __u32 body_sum)
{
    frame->header.tag = (__u32)~crc;
    frame->checksum = 0;
    __u64 sum = pseudo_sum(frame);
    if (checksum == CHECKSUM_LEFT_TO_DEVICE) {
        frame->checksum = fold(sum);
    } else {
        sum = add(add(sum, word(frame, 7)), add(header_sum(frame), body_sum));
        __u16 whole = ~fold(sum);
        frame->checksum = whole ? whole : 0xffff;
    }
    if (bpf_skb_store_bytes(skb, 0, frame->to, DATA_AT, 0))
        return TC_ACT_SHOT;
    return bpf_redirect(skb->ifindex, 0);
}

INLINE int answer_read(struct __sk_buff *skb, struct frame *frame, struct trellis_extent *extent,
                       const struct asked *asked, struct trellis_outcomes *counts)
{
    __u32 before = skb->len;
    __u32 after = DATA_AT + asked->bytes;
    __u32 mtu = 0;
    int why = why_not(extent, asked);
    if (why)
        return pass(counts, why);
    if (check_mtu(skb, 0, &mtu, (__s32)(after - before), 0))
        return pass(counts, TRELLIS_TOO_LONG);
    if (change_tail(skb, after, 0))
        return pass(counts, TRELLIS_NO_ROOM);
    __u64 cached = 0;
    __u64 version = 0;
    why = copy_out(skb, extent, asked, &cached, &version);
    if (why) {
        // As it came: a READ has at most its length behind the header.
        change_tail(skb, before, 0);
        if (before > DATA_AT)
            bpf_skb_store_bytes(skb, DATA_AT, &asked->bytes, sizeof asked->bytes, 0);
        return pass(counts, why);
    }
    // Growing a packet forgets the sum that a device has computed.
    if (after <= before && (change_tail(skb, after + 1, 0) || change_tail(skb, after, 0)))
        return TC_ACT_SHOT;
    int is_page = asked->bytes == TRELLIS_PAGE_BYTES && !(asked->at & (TRELLIS_PAGE_BYTES - 1));
    turn_round(frame, asked->bytes);
    __u32 crc = crc_of_frame(frame);
    if (!is_page || cached >> TRELLIS_DIGEST_VERSION_SHIFT != digest_version(version) >> TRELLIS_DIGEST_VERSION_SHIFT) {
        cached = digest(skb, asked->bytes, is_page ? 0 : crc);
        if (cached == BROKEN)
            return TC_ACT_SHOT;
        if (is_page)
            *(volatile __u64 *)&known_of(extent, asked->at >> TRELLIS_PAGE_SHIFT)->digest = as_digest(version, cached);
    }
    crc = is_page ? crc_of_page_of_zeros(crc) ^ (__u32)cached : cached;
    counts->count[TRELLIS_ANSWERED_READ]++;
    return send(skb, frame, asked->checksum, crc, cached >> TRELLIS_DIGEST_SUM_SHIFT & 0xffff);
}

INLINE int answer_write(struct __sk_buff *skb, struct frame *frame, struct trellis_extent *extent,
                        const struct asked *asked, __u64 page_digest, struct trellis_outcomes *counts)
{
    struct trellis_known *known = known_of(extent, asked->at >> TRELLIS_PAGE_SHIFT);
    __u32 at = asked->at & (TRELLIS_EXTENT_BYTES - 1);
    __u32 at_page = at & (TRELLIS_PAGE_BYTES - 1);
    __u32 bytes = asked->bytes;
    if (at_page + bytes > TRELLIS_PAGE_BYTES)
        return pass(counts, TRELLIS_UNUSUAL);
    __u64 version = version_of(known);
    if (version & 1 || __sync_val_compare_and_swap(&known->version, version, version + 1) != version)
        return pass(counts, TRELLIS_CHANGING);
    int why = refusal(entry_of(known), asked->generation, at_page, bytes);
    if (!why && (!bytes || bytes > TRELLIS_PAGE_BYTES || bpf_skb_load_bytes(skb, DATA_AT, extent->pages + at, bytes)))
        why = TRELLIS_NO_ROOM;
    if (!why)
        known->digest = bytes == TRELLIS_PAGE_BYTES ? as_digest(version + 2, page_digest) : 0;
    __sync_fetch_and_add(&known->version, 1);
    // Done again by the process, a blind write does no harm. Made as short as can be first: growing a packet forgets
    // the sum that a device has computed.
    if (why || change_tail(skb, HEADER_AT, 0) || change_tail(skb, DATA_AT, 0))
        return pass(counts, why ? why : TRELLIS_NO_ROOM);
    turn_round(frame, 0);
    counts->count[TRELLIS_ANSWERED_WRITE]++;
    return send(skb, frame, asked->checksum, crc_of_frame(frame), 0);
}

SECTION("classifier")
int trellis_memory(struct __sk_buff *skb)
{
    __u32 zero = 0;
    struct trellis_outcomes *counts = bpf_map_lookup_elem(&outcomes, &zero);
    struct trellis_memory_settings *set = bpf_map_lookup_elem(&served, &zero);
    if (!counts || !set)
        return PASS;
    struct frame frame = {};
    struct asked asked = {};
    if (skb->protocol != PROTOCOL_IPV6 || skb->pkt_type != TO_THIS_HOST || skb->vlan_present || skb->gso_size
        || bpf_skb_load_bytes(skb, 0, frame.to, HEADER_AT) || !is_for_us(&frame, set))
        return pass(counts, TRELLIS_NOT_ASKED);
    __u32 udp_bytes = read_request(skb, &frame, &asked);
    if (!udp_bytes)
        return pass(counts, TRELLIS_UNUSUAL);
    void *inner = bpf_map_lookup_elem(&extents, &asked.extent);
    struct trellis_extent *extent = inner ? bpf_map_lookup_elem(inner, &zero) : 0;
    if (!extent)
        return pass(counts, TRELLIS_NOT_HERE);
    __u64 page_digest;
    if (!is_sound(skb, &frame, &asked, udp_bytes, &page_digest))
        return pass(counts, TRELLIS_UNSOUND);
    if (asked.is_write)
        return answer_write(skb, &frame, extent, &asked, page_digest, counts);
    return answer_read(skb, &frame, extent, &asked, counts);
}
