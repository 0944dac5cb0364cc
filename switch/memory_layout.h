// What a memory server in the kernel and its process must agree about: extents of memory, what is known of each page,
// and counters. Numbers are of the host's byte order, except where they are in a packet.
//
// crates/trellis-switch/src/memory/layout.rs repeats every number here, and its tests compare them; the assertions at
// the end tie the numbers to the structures that memory.bpf.c uses.

#ifndef TRELLIS_MEMORY_LAYOUT_H
#define TRELLIS_MEMORY_LAYOUT_H

#include <linux/types.h>

// Memory comes in extents, each a map of its own: pages, room behind the last one that is never used, so that a check
// of the first byte bounds an access, and what is known of the pages.
#define TRELLIS_EXTENT_SHIFT 24
#define TRELLIS_EXTENT_BYTES 16777216
#define TRELLIS_EXTENT_PAGES 4096
#define TRELLIS_EXTENT_TABLE_AT 16781312
#define TRELLIS_EXTENT_VALUE_BYTES 16912384
#define TRELLIS_EXTENTS_MAX 16384

// A page. Its entry is that of crates/trellis-fabric-protocol/src/memory_server/pages.rs, as one number.
#define TRELLIS_PAGE_BYTES 4096
#define TRELLIS_KNOWN_BYTES 32
#define TRELLIS_KNOWN_VERSION_AT 8
#define TRELLIS_KNOWN_DIGEST_AT 16
#define TRELLIS_ENTRY_VALID_SHIFT 16
#define TRELLIS_ENTRY_FIRST 0x100000000
#define TRELLIS_ENTRY_GUARDED 0x200000000

// A digest: version << 48 | 16 bits of the sum << 32 | CRC32C without inversions, of the whole page. Of the version
// these are the lower 16 bits and one that is always set, so that no digest is ever taken for one.
#define TRELLIS_DIGEST_VERSION_SHIFT 48
#define TRELLIS_DIGEST_SUM_SHIFT 32
#define TRELLIS_DIGEST_THERE 1

// Tables for CRC32C: of the byte that is so many bytes before the end, and of what 4,096 zero bytes make of a state.
#define TRELLIS_CRC_TABLES 16
#define TRELLIS_CRC_PAGE_TABLES 4

#define TRELLIS_MEMORY_SETTINGS_BYTES 8
#define TRELLIS_MEMORY_SETTINGS_HOME_AT 4
#define TRELLIS_MEMORY_SETTINGS_PORT_AT 6

// What became of a packet. The first two were answered; all others went on to the process.
#define TRELLIS_ANSWERED_READ 0
#define TRELLIS_ANSWERED_WRITE 1
#define TRELLIS_NOT_ASKED 2
#define TRELLIS_UNUSUAL 3
#define TRELLIS_UNSOUND 4
#define TRELLIS_NOT_HERE 5
#define TRELLIS_NOT_ADMITTED 6
#define TRELLIS_GUARDED 7
#define TRELLIS_CHANGING 8
#define TRELLIS_TOO_LONG 9
#define TRELLIS_NO_ROOM 10
#define TRELLIS_OUTCOMES 11

struct trellis_known {
    __u64 entry;
    // Odd while somebody changes the page or its entry, and later whenever somebody did.
    __u64 version;
    __u64 digest;
    __u64 unused;
};

struct trellis_extent {
    __u8 pages[TRELLIS_EXTENT_BYTES + TRELLIS_PAGE_BYTES];
    struct trellis_known known[TRELLIS_EXTENT_PAGES];
};

struct trellis_memory_settings {
    __be32 scope;
    __be16 home;
    __be16 port;
};

struct trellis_outcomes {
    __u64 count[TRELLIS_OUTCOMES];
};

#define TRELLIS_PLACE(structure, member, at) \
    _Static_assert(__builtin_offsetof(struct structure, member) == (at), "place of " #member)

_Static_assert(1 << TRELLIS_EXTENT_SHIFT == TRELLIS_EXTENT_BYTES, "extent");
_Static_assert(TRELLIS_EXTENT_PAGES * TRELLIS_PAGE_BYTES == TRELLIS_EXTENT_BYTES, "extent");
_Static_assert(sizeof(struct trellis_extent) == TRELLIS_EXTENT_VALUE_BYTES, "extent");
TRELLIS_PLACE(trellis_extent, known, TRELLIS_EXTENT_TABLE_AT);
_Static_assert(sizeof(struct trellis_known) == TRELLIS_KNOWN_BYTES, "known");
TRELLIS_PLACE(trellis_known, version, TRELLIS_KNOWN_VERSION_AT);
TRELLIS_PLACE(trellis_known, digest, TRELLIS_KNOWN_DIGEST_AT);
_Static_assert(sizeof(struct trellis_memory_settings) == TRELLIS_MEMORY_SETTINGS_BYTES, "settings");
TRELLIS_PLACE(trellis_memory_settings, home, TRELLIS_MEMORY_SETTINGS_HOME_AT);
TRELLIS_PLACE(trellis_memory_settings, port, TRELLIS_MEMORY_SETTINGS_PORT_AT);

#endif
