// The switch in the kernel: it runs for every packet that a host sends, and says at which port the packet goes out.
//
// Promises what the contract in crates/trellis-switch/src/switch.rs says. It changes no byte of a packet but the two
// hardware addresses, keeps no packet, and sends nothing of its own. Everything it knows is soft: an entry that is
// missing, late or wrong sends a packet to a host that says so.
//
// Compiled with TRELLIS_XDP it runs before the kernel makes packets of frames. There it cannot copy what goes to a
// group.

#include "kernel.h"

#include "layout.h"

#define FRAME_BYTES 54 // Ethernet and IPv6
#define ADDRESSES_AT 22
#define NEXT_HEADER_AT 20
#define UDP_BYTES 8
#define FRAGMENT_BYTES 8
#define PROTOCOL_IPV6 0xdd86 // in network order
#define NEXT_UDP 17
#define NEXT_FRAGMENT 44
#define EXISTS (-17) // -EEXIST

const char switch_license[] SECTION("license") = "Dual MIT/GPL";

struct prefix_key {
    __u32 bits;
    struct trellis_address address;
};

struct page_range_key {
    __u32 bits;
    struct trellis_page_range range;
};

struct {
    NUMBER(type, BPF_MAP_TYPE_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, __u32);
    TYPE(value, struct trellis_settings);
} settings SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_HASH);
    NUMBER(max_entries, TRELLIS_PORTS_MAX);
    TYPE(key, __u32);
    TYPE(value, __u32);
} interfaces SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_ARRAY);
    NUMBER(max_entries, TRELLIS_PORTS_MAX);
    TYPE(key, __u32);
    TYPE(value, struct trellis_port);
} ports SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_ARRAY);
    NUMBER(max_entries, TRELLIS_HOMES);
    TYPE(key, __u32);
    TYPE(value, struct trellis_route);
} homes SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_LPM_TRIE);
    NUMBER(max_entries, TRELLIS_PREFIXES_MAX);
    NUMBER(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, struct prefix_key);
    TYPE(value, struct trellis_route);
} prefixes SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_LPM_TRIE);
    NUMBER(max_entries, TRELLIS_PAGE_ROUTES_MAX);
    NUMBER(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, struct page_range_key);
    TYPE(value, __u32);
} page_routes SECTION(".maps");

// The loader says how many there may be.
struct {
    NUMBER(type, BPF_MAP_TYPE_HASH);
    NUMBER(max_entries, 131072);
    NUMBER(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, __u64);
    TYPE(value, struct trellis_redirect);
} redirects SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_ARRAY);
    NUMBER(max_entries, TRELLIS_GROUPS_MAX);
    TYPE(key, __u32);
    TYPE(value, struct trellis_group);
} groups SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_HASH);
    NUMBER(max_entries, TRELLIS_RULES_MAX);
    NUMBER(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, __u32);
    TYPE(value, __u32);
} rules SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
    NUMBER(max_entries, TRELLIS_HOT_MAX);
    TYPE(key, __u64);
    TYPE(value, __u64);
} hot SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    NUMBER(max_entries, TRELLIS_PORTS_MAX);
    TYPE(key, __u32);
    TYPE(value, struct trellis_counters);
} counters SECTION(".maps");

struct {
    NUMBER(type, BPF_MAP_TYPE_RINGBUF);
    NUMBER(max_entries, TRELLIS_EVENTS_BYTES);
} events SECTION(".maps");

// What is known of the packet at hand.
struct packet {
    struct trellis_address source;
    struct trellis_address destination;
    struct trellis_counters *counters;
    __u64 now_ns;
    __u64 now_ticks;
    __u32 in_port;
    __u32 bytes;
};

INLINE __u16 host16(__be16 value)
{
    return __builtin_bswap16(value);
}

// Generation and offset as one number.
INLINE __u64 low_half(const struct trellis_address *address)
{
    __u64 low;
    __builtin_memcpy(&low, &address->generation, sizeof low);
    return __builtin_bswap64(low);
}

// Home and number of the page that an address lies in; the key of redirects and of hot pages.
INLINE __u64 page_of(const struct trellis_address *address)
{
    __u64 offset = low_half(address) & ((1ULL << TRELLIS_OFFSET_BITS) - 1);
    return (__u64)host16(address->home) << TRELLIS_OFFSET_BITS | offset >> TRELLIS_PAGE_SHIFT;
}

// Whether an address is memory's: it has a command and a page. Else it names a request, and what comes there is an
// answer.
INLINE int is_pointer(const struct trellis_route *route, const struct trellis_address *address)
{
    return route->flags & TRELLIS_ROUTE_MEMORY && !(address->command & TRELLIS_INCARNATION);
}

INLINE __u64 redirect_word(__u32 port, __u64 until_ticks)
{
    return (__u64)port << 48 | until_ticks;
}

INLINE __u32 redirect_port(__u64 word)
{
    return word >> 48;
}

INLINE int has_ended(__u64 word, const struct packet *packet)
{
    return (word & TRELLIS_TICKS_FOREVER) <= packet->now_ticks;
}

INLINE int drop(const struct packet *packet, __u32 reason)
{
    packet->counters->count[reason]++;
    return LOST;
}

INLINE void tell(const struct packet *packet, __u32 kind, __u64 page, __u64 epoch, __u32 port)
{
    struct trellis_event event = {
        .time_ns = packet->now_ns, .page = page, .epoch = epoch, .kind = kind, .port = port,
    };
    if (bpf_ringbuf_output(&events, &event, sizeof event, 0))
        packet->counters->count[TRELLIS_COUNT_EVENTS_LOST]++;
}

// The route that stands for a home, and in `longer` the one that fits more of the address, if there is one.
INLINE struct trellis_route *routes_of(const struct trellis_address *address, struct trellis_route **longer)
{
    __u32 home = host16(address->home);
    struct trellis_route *route = bpf_map_lookup_elem(&homes, &home);
    *longer = 0;
    if (route && route->flags & TRELLIS_ROUTE_HAS_LONGER) {
        struct prefix_key key = {.bits = 128, .address = *address};
        *longer = bpf_map_lookup_elem(&prefixes, &key);
    }
    return route && route->flags & TRELLIS_ROUTE_VALID ? route : 0;
}

// The port of the shortest page range that has the page of an address, or 0. Only homes with page routes cost a look.
INLINE __u32 page_route_port(const struct trellis_route *route, const struct trellis_address *address)
{
    if (!(route->flags & TRELLIS_ROUTE_HAS_PAGES))
        return 0;
    struct page_range_key key = {.bits = TRELLIS_PAGE_RANGE_BITS, .range.home = address->home};
    __builtin_memcpy(key.range.offset, address->offset, sizeof key.range.offset);
    __u32 *port = bpf_map_lookup_elem(&page_routes, &key);
    return port ? *port : 0;
}

INLINE int is_in_group(__u32 group, __u32 port)
{
    struct trellis_group *members = group ? bpf_map_lookup_elem(&groups, &group) : 0;
    if (!members)
        return 0;
    for (int i = 0; i < TRELLIS_CLONES_MAX; i++)
        if (members->ports[i] == port)
            return 1;
    return 0;
}

// Whether the host at this port may speak for the source address: whoever this switch would deliver the address to may
// answer from it. `*is_home` says that it speaks for a pointer as its home.
INLINE int may_speak(const struct packet *packet, int *is_home)
{
    struct trellis_route *longer;
    struct trellis_route *route = routes_of(&packet->source, &longer);
    int is_memory = route && is_pointer(route, &packet->source);
    __u32 range_port = is_memory ? page_route_port(route, &packet->source) : 0;
    // Who had the page before may still speak, but only who has it says what home says.
    int may_teach = !range_port || range_port == packet->in_port;
    *is_home = 0;
    if (route && route->port == packet->in_port) {
        *is_home = may_teach && is_memory;
        return 1;
    }
    if (longer && longer->port == packet->in_port) {
        *is_home = may_teach && is_pointer(longer, &packet->source);
        return 1;
    }
    if (!is_memory)
        return 0;
    if (range_port == packet->in_port) {
        *is_home = 1;
        return 1;
    }
    __u64 page = page_of(&packet->source);
    struct trellis_redirect *redirect = bpf_map_lookup_elem(&redirects, &page);
    if (redirect && redirect_port(redirect->word) == packet->in_port && !has_ended(redirect->word, packet))
        return 1;
    return is_in_group(route->group, packet->in_port);
}

INLINE int is_allowed(__u32 client, __u32 home, __u32 class)
{
    __u32 keys[4] = {client << 16 | home, client << 16, home, 0};
    __u32 allowed = 0;
    for (int i = 0; i < 4; i++) {
        __u32 *classes = bpf_map_lookup_elem(&rules, &keys[i]);
        if (classes)
            allowed |= *classes;
    }
    return allowed >> class & 1;
}

INLINE void count_hot(__u64 page, __u64 port)
{
    __u64 key = page | port << TRELLIS_HOT_PORT_SHIFT;
    __u64 *count = bpf_map_lookup_elem(&hot, &key);
    if (count) {
        (*count)++;
    } else {
        __u64 one = 1;
        bpf_map_update_elem(&hot, &key, &one, BPF_ANY);
    }
}

// The owner gets what others want; what the owner itself sends goes home.
INLINE __u32 owner_or_home(__u64 word, const struct packet *packet, __u32 home_port)
{
    __u32 owner = redirect_port(word);
    return owner == packet->in_port ? home_port : owner;
}

// The first UPDATE of a page makes its sender the owner until home says otherwise; two at once cannot both win.
INLINE __u32 grant(const struct packet *packet, struct trellis_redirect *ended, __u64 page, __u64 term, __u32 home_port)
{
    __u64 fresh = redirect_word(packet->in_port, packet->now_ticks + term);
    if (ended) {
        __u64 word = ended->word;
        if (!has_ended(word, packet))
            return owner_or_home(word, packet, home_port);
        if (__sync_val_compare_and_swap(&ended->word, word, fresh) != word)
            return owner_or_home(ended->word, packet, home_port);
        tell(packet, TRELLIS_EVENT_EXPIRED, page, ended->epoch, redirect_port(word));
        ended->epoch = 0;
        ended->is_ending = 0;
    } else {
        struct trellis_redirect entry = {.word = fresh};
        long answer = bpf_map_update_elem(&redirects, &page, &entry, BPF_NOEXIST);
        if (answer == EXISTS) {
            struct trellis_redirect *winner = bpf_map_lookup_elem(&redirects, &page);
            return winner ? owner_or_home(winner->word, packet, home_port) : home_port;
        }
        if (answer) {
            packet->counters->count[TRELLIS_COUNT_TABLE_FULL]++;
            return home_port;
        }
    }
    packet->counters->count[TRELLIS_COUNT_GRANTED]++;
    tell(packet, TRELLIS_EVENT_GRANTED, page, 0, packet->in_port);
    return home_port;
}

// The header of a datagram; 0 when there is none.
INLINE int read_header(frame *frame, struct trellis_header *header)
{
    __u8 next = 0;
    __u32 at = FRAME_BYTES;
    if (load(frame, NEXT_HEADER_AT, &next, 1))
        return 0;
    if (next == NEXT_FRAGMENT) {
        __u8 fragment[4];
        if (load(frame, at, fragment, sizeof fragment))
            return 0;
        // Only the first fragment has the header.
        if (fragment[2] || fragment[3] & 0xf8)
            return 0;
        next = fragment[0];
        at += FRAGMENT_BYTES;
    }
    return next == NEXT_UDP && !load(frame, at + UDP_BYTES, header, sizeof *header)
        && header->version == TRELLIS_HEADER_VERSION;
}

// Where a request for a page goes.
INLINE __u32 port_of_page(frame *frame, const struct packet *packet, __u64 page, __u64 term, __u32 home_port)
{
    __u8 command = packet->destination.command;
    struct trellis_redirect *redirect = bpf_map_lookup_elem(&redirects, &page);
    if (redirect && !has_ended(redirect->word, packet)) {
        struct trellis_header header;
        int is_owner = redirect_port(redirect->word) == packet->in_port;
        if (is_owner && command == TRELLIS_COMMAND_COMMIT && read_header(frame, &header))
            redirect->is_ending = !!(header.flags & TRELLIS_FLAG_RELEASE);
        return owner_or_home(redirect->word, packet, home_port);
    }
    if (command == TRELLIS_COMMAND_UPDATE && term)
        return grant(packet, redirect, page, term, home_port);
    if (redirect) {
        tell(packet, TRELLIS_EVENT_EXPIRED, page, redirect->epoch, redirect_port(redirect->word));
        bpf_map_delete_elem(&redirects, &page);
    }
    return home_port;
}

// Home granted or renewed a lease. What is known of a later one stays.
INLINE void confirm(const struct packet *packet, struct trellis_redirect *redirect, __u64 page, __u64 word, __u64 epoch)
{
    __u8 command = packet->source.command;
    if (!redirect) {
        struct trellis_redirect entry = {.word = word, .epoch = epoch};
        if (bpf_map_update_elem(&redirects, &page, &entry, BPF_NOEXIST))
            return;
    } else if (redirect->epoch <= epoch || has_ended(redirect->word, packet)) {
        redirect->word = word;
        redirect->epoch = epoch;
        redirect->is_ending = 0;
    } else {
        return;
    }
    __u32 kind = command == TRELLIS_COMMAND_UPDATE ? TRELLIS_EVENT_CONFIRMED : TRELLIS_EVENT_RENEWED;
    tell(packet, kind, page, epoch, redirect_port(word));
}

// Home decides about leases; the switch listens to what it answers. The address that home speaks from says what it
// answers to.
INLINE void learn(frame *frame, const struct packet *packet, __u64 term, __u32 client_port)
{
    __u8 command = packet->source.command;
    int gives = command == TRELLIS_COMMAND_UPDATE || command == TRELLIS_COMMAND_RENEW;
    int takes = command == TRELLIS_COMMAND_COMMIT || command == TRELLIS_COMMAND_RELEASE;
    struct trellis_header header;
    if (!term || !(gives || takes) || !read_header(frame, &header))
        return;
    // The number tells an answer from what a home asks on its own.
    if (!(header.flags & TRELLIS_FLAG_ANSWER) || header.request != low_half(&packet->destination))
        return;
    __u64 page = page_of(&packet->source);
    struct trellis_redirect *redirect = bpf_map_lookup_elem(&redirects, &page);
    int is_yes = header.status == TRELLIS_STATUS_OK;
    if (gives && is_yes) {
        confirm(packet, redirect, page, redirect_word(client_port, packet->now_ticks + term), header.epoch);
        return;
    }
    if (!redirect || redirect_port(redirect->word) != client_port)
        return;
    if (command == TRELLIS_COMMAND_COMMIT && !(is_yes && redirect->is_ending)) {
        // The lease goes on, in a later epoch where home took the bytes.
        redirect->is_ending = 0;
        if (is_yes && redirect->epoch < header.epoch)
            redirect->epoch = header.epoch;
    } else if (gives || is_yes) {
        bpf_map_delete_elem(&redirects, &page);
        tell(packet, gives ? TRELLIS_EVENT_REFUSED : TRELLIS_EVENT_RETURNED, page, header.epoch, client_port);
    }
}

// Counts what leaves at a port.
INLINE void count_out(__u32 port, __u32 bytes)
{
    struct trellis_counters *out = bpf_map_lookup_elem(&counters, &port);
    if (out) {
        out->count[TRELLIS_COUNT_PACKETS_OUT]++;
        out->count[TRELLIS_COUNT_BYTES_OUT] += bytes;
    }
}

#ifdef TRELLIS_XDP

struct {
    NUMBER(type, BPF_MAP_TYPE_DEVMAP);
    NUMBER(max_entries, TRELLIS_PORTS_MAX);
    TYPE(key, __u32);
    TYPE(value, struct bpf_devmap_val);
} devices SECTION(".maps");

#define SEND(port, to) bpf_redirect_map(&devices, port, XDP_DROP)
// Whoever sets groups is told that there are none here.
#define CLONE(frame, group, out, side) ((void)(group))

#else

#define SEND(port, to) \
    ((to)->flags & TRELLIS_PORT_PEER ? bpf_redirect_peer((to)->interface, 0) : bpf_redirect((to)->interface, 0))

// A copy for every other port of the group that is reachable from here.
INLINE void clone(frame *frame, __u32 group, __u32 out, __u32 side)
{
    struct trellis_group *members = bpf_map_lookup_elem(&groups, &group);
    if (!members)
        return;
    for (int i = 0; i < TRELLIS_CLONES_MAX; i++) {
        __u32 port = members->ports[i];
        if (!port || port == out)
            continue;
        struct trellis_port *to = bpf_map_lookup_elem(&ports, &port);
        if (!to || !to->interface || to->side != side)
            continue;
        store(frame, 0, to->mac, sizeof to->mac);
        if (!bpf_clone_redirect(frame, to->interface, 0))
            count_out(port, frame->len);
    }
}

#define CLONE clone

#endif

// Reads both addresses; 0 when this packet has none.
INLINE int read_addresses(frame *frame, struct packet *packet, __be32 scope)
{
    if (protocol_of(frame) != PROTOCOL_IPV6)
        return 0;
    if (load(frame, ADDRESSES_AT, &packet->source, 2 * sizeof packet->source))
        return 0;
    return packet->source.scope == scope && packet->destination.scope == scope;
}

SECTION(AT_INGRESS)
int trellis_switch(frame *frame)
{
    __u32 zero = 0;
    __u32 interface = interface_of(frame);
    __u32 *number = bpf_map_lookup_elem(&interfaces, &interface);
    struct trellis_settings *set = bpf_map_lookup_elem(&settings, &zero);
    if (!number || !set)
        return LOST;
    struct packet packet = {.in_port = *number, .bytes = length_of(frame)};
    packet.counters = bpf_map_lookup_elem(&counters, &packet.in_port);
    struct trellis_port *from = bpf_map_lookup_elem(&ports, &packet.in_port);
    if (!packet.counters || !from)
        return LOST;
    packet.counters->count[TRELLIS_COUNT_BYTES_IN] += packet.bytes;
    if (!read_addresses(frame, &packet, set->scope))
        return drop(&packet, TRELLIS_COUNT_NOT_ADDRESSED);
    packet.now_ns = bpf_ktime_get_ns();
    packet.now_ticks = packet.now_ns >> TRELLIS_TICK_SHIFT;

    int is_home;
    if (!may_speak(&packet, &is_home))
        return drop(&packet, TRELLIS_COUNT_FORGED);
    struct trellis_route *longer;
    struct trellis_route *route = routes_of(&packet.destination, &longer);
    if (longer)
        route = longer;
    if (!route)
        return drop(&packet, TRELLIS_COUNT_NO_ROUTE);

    __u32 home_port = route->port;
    __u32 out = home_port;
    __u8 command = packet.destination.command;
    __u32 class = command >> 4;
    __u32 group = 0;
    if (is_pointer(route, &packet.destination)) {
        if (set->flags & TRELLIS_SETTINGS_RULES
            && !is_allowed(host16(packet.source.home), host16(packet.destination.home), class))
            return drop(&packet, TRELLIS_COUNT_DENIED);
        if (route->classes >> class & 1)
            group = route->group;
        int is_paged = class == TRELLIS_CLASS_READING || class == TRELLIS_CLASS_CHANGING
            || class == TRELLIS_CLASS_LEASES;
        if (is_paged || command == TRELLIS_COMMAND_CLONE || command == TRELLIS_COMMAND_INVALIDATED) {
            __u32 port = page_route_port(route, &packet.destination);
            if (port)
                out = home_port = port;
        }
        if (is_paged) {
            __u64 page = page_of(&packet.destination);
            count_hot(page, packet.in_port);
            if (!(packet.destination.arguments & TRELLIS_ARGUMENT_DIRECT))
                out = port_of_page(frame, &packet, page, set->term_ticks, home_port);
        }
    } else if (is_home) {
        learn(frame, &packet, set->term_ticks, out);
    }

    struct trellis_port *to = bpf_map_lookup_elem(&ports, &out);
    if (!to || !to->interface)
        return drop(&packet, TRELLIS_COUNT_NO_PORT);
    if (set->drop_ppm && bpf_get_prandom_u32() % 1000000 < set->drop_ppm)
        return drop(&packet, TRELLIS_COUNT_DROPPED);
    if (group)
        CLONE(frame, group, out, from->side);
    if (to->side != from->side)
        return drop(&packet, TRELLIS_COUNT_PARTITIONED);
    packet.counters->count[out == home_port ? TRELLIS_COUNT_DELIVERED : TRELLIS_COUNT_REDIRECTED]++;
    count_out(out, packet.bytes);
    store(frame, 0, to->mac, sizeof to->mac);
    return SEND(out, to);
}
