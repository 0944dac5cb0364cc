// What the switch in the kernel and the program that controls it must agree about: the address, the header of a
// datagram, and the entries of the maps. Numbers in the maps are of the host's byte order.
//
// crates/trellis-switch/src/layout.rs repeats every number here, and its tests compare them; the assertions at the end
// tie the numbers to the structures that switch.bpf.c uses.

#ifndef TRELLIS_SWITCH_LAYOUT_H
#define TRELLIS_SWITCH_LAYOUT_H

// An address: fd | cluster 24 | home 16 | command 8 | arguments 8 | generation 16 | offset 48, in network order.
#define TRELLIS_ADDRESS_BYTES 16
#define TRELLIS_ADDRESS_HOME_AT 4
#define TRELLIS_ADDRESS_COMMAND_AT 6
#define TRELLIS_ADDRESS_ARGUMENTS_AT 7
#define TRELLIS_ADDRESS_GENERATION_AT 8
#define TRELLIS_ADDRESS_OFFSET_AT 10
#define TRELLIS_OFFSET_BITS 48
#define TRELLIS_PAGE_SHIFT 12

// In the place of the command: this is not a pointer but the address of a client's request, to which an answer goes.
#define TRELLIS_INCARNATION 0x80

// Arguments: deliver to home, whatever the redirects say.
#define TRELLIS_ARGUMENT_DIRECT 0x10

// Classes of commands (the high nibble), and the commands that a switch knows.
#define TRELLIS_CLASS_READING 0
#define TRELLIS_CLASS_CHANGING 1
#define TRELLIS_CLASS_LEASES 3
#define TRELLIS_COMMAND_COMMIT 0x13
#define TRELLIS_COMMAND_UPDATE 0x30
#define TRELLIS_COMMAND_RENEW 0x31
#define TRELLIS_COMMAND_RELEASE 0x32
#define TRELLIS_COMMAND_CLONE 0x44
#define TRELLIS_COMMAND_INVALIDATED 0x45

// The header of a datagram, little-endian.
#define TRELLIS_HEADER_BYTES 32
#define TRELLIS_HEADER_VERSION 1
#define TRELLIS_HEADER_STATUS_AT 1
#define TRELLIS_HEADER_FLAGS_AT 2
#define TRELLIS_HEADER_REQUEST_AT 8
#define TRELLIS_HEADER_EPOCH_AT 16
#define TRELLIS_FLAG_ANSWER 0x20
#define TRELLIS_FLAG_RELEASE 0x40
#define TRELLIS_STATUS_OK 0

// Time in redirects: units of 65,536 ns of the monotonic clock, in 48 bits. The last one never comes.
#define TRELLIS_TICK_SHIFT 16
#define TRELLIS_TICKS_FOREVER 0xffffffffffff

// The network side of the switch.
#define TRELLIS_PORTS_MAX 1024
#define TRELLIS_PORT_BYTES 16
#define TRELLIS_PORT_SIDE_AT 4
#define TRELLIS_PORT_MAC_AT 8
#define TRELLIS_PORT_FLAGS_AT 14
// The other end of the port's interface is in another namespace: deliver there directly.
#define TRELLIS_PORT_PEER 1

// Where a prefix leads. Home numbers have an array; what is longer than a home's prefix stands in a trie.
#define TRELLIS_HOMES 65536
#define TRELLIS_PREFIXES_MAX 65536
#define TRELLIS_ROUTE_BYTES 8
#define TRELLIS_ROUTE_FLAGS_AT 2
#define TRELLIS_ROUTE_GROUP_AT 4
#define TRELLIS_ROUTE_CLASSES_AT 6
#define TRELLIS_ROUTE_VALID 1
#define TRELLIS_ROUTE_MEMORY 2
#define TRELLIS_ROUTE_HAS_LONGER 4
#define TRELLIS_ROUTE_HAS_PAGES 8

// Page ranges that have a port of their own, in a trie: home and offset, of which the bits that all pages of the range
// share count; value: port. A page is a range of all these bits.
#define TRELLIS_PAGE_ROUTES_MAX 65536
#define TRELLIS_PAGE_RANGE_BYTES 8
#define TRELLIS_PAGE_RANGE_OFFSET_AT 2
#define TRELLIS_PAGE_RANGE_BITS 52

// Redirects: word = port << 48 | first tick at which it has ended. An epoch of 0 is a lease that home has not confirmed
// yet. It is ending when its owner has sent a COMMIT that gives it back, which home has not answered yet.
#define TRELLIS_REDIRECT_BYTES 24
#define TRELLIS_REDIRECT_EPOCH_AT 8
#define TRELLIS_REDIRECT_ENDING_AT 16

// Ports that get a copy of what is sent to a home.
#define TRELLIS_GROUPS_MAX 256
#define TRELLIS_CLONES_MAX 8
#define TRELLIS_GROUP_BYTES 16

// Rules: key = client << 16 | home, 0 for any; value: a bit for each class.
#define TRELLIS_RULES_MAX 65536

// Requests, by the key of the page with the port that they came in at above the page's number.
#define TRELLIS_HOT_MAX 16384
#define TRELLIS_HOT_PORT_SHIFT 36

#define TRELLIS_SETTINGS_BYTES 24
#define TRELLIS_SETTINGS_FLAGS_AT 4
#define TRELLIS_SETTINGS_TERM_AT 8
#define TRELLIS_SETTINGS_DROP_AT 16
// Requests to memory pass only where a rule says so.
#define TRELLIS_SETTINGS_RULES 1

// Counters of a port. Of what comes in at it, each packet is in exactly one of the first ten.
#define TRELLIS_COUNT_DELIVERED 0
#define TRELLIS_COUNT_REDIRECTED 1
#define TRELLIS_COUNT_NOT_ADDRESSED 2
#define TRELLIS_COUNT_FORGED 3
#define TRELLIS_COUNT_NO_ROUTE 4
#define TRELLIS_COUNT_DENIED 5
#define TRELLIS_COUNT_NO_PORT 6
#define TRELLIS_COUNT_PARTITIONED 7
#define TRELLIS_COUNT_DROPPED 8
#define TRELLIS_COUNT_OVERFLOWED 9
#define TRELLIS_COUNT_GRANTED 10
#define TRELLIS_COUNT_TABLE_FULL 11
#define TRELLIS_COUNT_EVENTS_LOST 12
#define TRELLIS_COUNT_BYTES_IN 13
#define TRELLIS_COUNT_PACKETS_OUT 14
#define TRELLIS_COUNT_BYTES_OUT 15
#define TRELLIS_COUNTERS 16

#define TRELLIS_EVENTS_BYTES 262144
#define TRELLIS_EVENT_BYTES 32
#define TRELLIS_EVENT_PAGE_AT 8
#define TRELLIS_EVENT_EPOCH_AT 16
#define TRELLIS_EVENT_KIND_AT 24
#define TRELLIS_EVENT_PORT_AT 28
#define TRELLIS_EVENT_GRANTED 1
#define TRELLIS_EVENT_CONFIRMED 2
#define TRELLIS_EVENT_REFUSED 3
#define TRELLIS_EVENT_RENEWED 4
#define TRELLIS_EVENT_RETURNED 5
#define TRELLIS_EVENT_EXPIRED 6

struct trellis_address {
    __be32 scope;
    __be16 home;
    __u8 command;
    __u8 arguments;
    __be16 generation;
    __u8 offset[6];
};

struct trellis_header {
    __u8 version;
    __u8 status;
    __u16 flags;
    __u32 length;
    __u64 request;
    __u64 epoch;
    __u64 tag;
};

struct trellis_port {
    __u32 interface;
    __u32 side;
    __u8 mac[6];
    __u16 flags;
};

struct trellis_route {
    __u16 port;
    __u16 flags;
    __u16 group;
    __u16 classes;
};

struct trellis_page_range {
    __be16 home;
    __u8 offset[6];
};

struct trellis_redirect {
    __u64 word;
    __u64 epoch;
    __u64 is_ending;
};

struct trellis_group {
    __u16 ports[TRELLIS_CLONES_MAX];
};

struct trellis_settings {
    __be32 scope;
    __u32 flags;
    __u64 term_ticks;
    __u32 drop_ppm;
    __u32 unused;
};

struct trellis_counters {
    __u64 count[TRELLIS_COUNTERS];
};

struct trellis_event {
    __u64 time_ns;
    __u64 page;
    __u64 epoch;
    __u32 kind;
    __u16 port;
    __u16 unused;
};

#define TRELLIS_AT(structure, member, at) \
    _Static_assert(__builtin_offsetof(struct structure, member) == (at), "place of " #member)

_Static_assert(sizeof(struct trellis_address) == TRELLIS_ADDRESS_BYTES, "address");
TRELLIS_AT(trellis_address, home, TRELLIS_ADDRESS_HOME_AT);
TRELLIS_AT(trellis_address, command, TRELLIS_ADDRESS_COMMAND_AT);
TRELLIS_AT(trellis_address, arguments, TRELLIS_ADDRESS_ARGUMENTS_AT);
TRELLIS_AT(trellis_address, generation, TRELLIS_ADDRESS_GENERATION_AT);
TRELLIS_AT(trellis_address, offset, TRELLIS_ADDRESS_OFFSET_AT);
_Static_assert(sizeof(struct trellis_header) == TRELLIS_HEADER_BYTES, "header");
TRELLIS_AT(trellis_header, status, TRELLIS_HEADER_STATUS_AT);
TRELLIS_AT(trellis_header, flags, TRELLIS_HEADER_FLAGS_AT);
TRELLIS_AT(trellis_header, request, TRELLIS_HEADER_REQUEST_AT);
TRELLIS_AT(trellis_header, epoch, TRELLIS_HEADER_EPOCH_AT);
_Static_assert(sizeof(struct trellis_port) == TRELLIS_PORT_BYTES, "port");
TRELLIS_AT(trellis_port, side, TRELLIS_PORT_SIDE_AT);
TRELLIS_AT(trellis_port, mac, TRELLIS_PORT_MAC_AT);
TRELLIS_AT(trellis_port, flags, TRELLIS_PORT_FLAGS_AT);
_Static_assert(sizeof(struct trellis_route) == TRELLIS_ROUTE_BYTES, "route");
TRELLIS_AT(trellis_route, flags, TRELLIS_ROUTE_FLAGS_AT);
TRELLIS_AT(trellis_route, group, TRELLIS_ROUTE_GROUP_AT);
TRELLIS_AT(trellis_route, classes, TRELLIS_ROUTE_CLASSES_AT);
_Static_assert(sizeof(struct trellis_page_range) == TRELLIS_PAGE_RANGE_BYTES, "page range");
TRELLIS_AT(trellis_page_range, offset, TRELLIS_PAGE_RANGE_OFFSET_AT);
_Static_assert(TRELLIS_PAGE_RANGE_BITS == 16 + TRELLIS_OFFSET_BITS - TRELLIS_PAGE_SHIFT, "bits of a page");
_Static_assert(TRELLIS_PORTS_MAX <= 1 << (TRELLIS_OFFSET_BITS - TRELLIS_HOT_PORT_SHIFT), "room for a port");
_Static_assert(sizeof(struct trellis_redirect) == TRELLIS_REDIRECT_BYTES, "redirect");
TRELLIS_AT(trellis_redirect, epoch, TRELLIS_REDIRECT_EPOCH_AT);
TRELLIS_AT(trellis_redirect, is_ending, TRELLIS_REDIRECT_ENDING_AT);
_Static_assert(sizeof(struct trellis_group) == TRELLIS_GROUP_BYTES, "group");
_Static_assert(sizeof(struct trellis_settings) == TRELLIS_SETTINGS_BYTES, "settings");
TRELLIS_AT(trellis_settings, flags, TRELLIS_SETTINGS_FLAGS_AT);
TRELLIS_AT(trellis_settings, term_ticks, TRELLIS_SETTINGS_TERM_AT);
TRELLIS_AT(trellis_settings, drop_ppm, TRELLIS_SETTINGS_DROP_AT);
_Static_assert(sizeof(struct trellis_event) == TRELLIS_EVENT_BYTES, "event");
TRELLIS_AT(trellis_event, page, TRELLIS_EVENT_PAGE_AT);
TRELLIS_AT(trellis_event, epoch, TRELLIS_EVENT_EPOCH_AT);
TRELLIS_AT(trellis_event, kind, TRELLIS_EVENT_KIND_AT);
TRELLIS_AT(trellis_event, port, TRELLIS_EVENT_PORT_AT);

#endif
