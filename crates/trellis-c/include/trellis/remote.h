/* trellis/remote.h - objects in the memory of other machines, named by IPv6 addresses.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A memory server (`trellis serve`) keeps objects for others. An object is named by a pointer, 16 bytes that are an
 * IPv6 address; every call about it is a datagram to that address. A whole program:
 *
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *     #include <trellis/remote.h>
 *
 *     static void check(int status) {
 *         if (status >= 0) return;
 *         fprintf(stderr, "%s\n", trellis_last_error());
 *         exit(1);
 *     }
 *
 *     int main(void) {
 *         trellis_remote_client *client;
 *         check(trellis_remote_open(NULL, &client));               // TRELLIS_PREFIX says who this host is
 *         trellis_remote_pointer object;
 *         check(trellis_remote_create(client, TRELLIS_REMOTE_ANYWHERE, 1 << 20, &object));
 *         check(trellis_remote_write(client, object, "hello", 5));
 *         char text[TRELLIS_REMOTE_TEXT_BYTES], read[5];
 *         check(trellis_remote_read(client, object, read, sizeof read));
 *         check(trellis_remote_format(object, text, sizeof text));
 *         printf("%.5s is at %s\n", read, text);
 *         check(trellis_remote_delete(client, object));
 *         trellis_remote_close(client);
 *         return 0;
 *     }
 *
 * Errors and their sentences are those of trellis.h. A server's refusals have codes of their own,
 * `trellis_remote_status`. A server that gives no answer is DEADLINE; a call that changes something may then have been
 * done, or not. What was answered was done, and once: additions, exchanges, creations and deletions are never done
 * twice.
 *
 * Threads. A client is for one thread at a time: a call meanwhile from another thread is refused with STATE. Threads
 * that work at the same time have one client each. A client that was opened before a fork is refused in the child, with
 * STATE.
 *
 * Sizes are bytes. Bytes go as they are: nothing is converted, but that additions and exchanges take eight bytes as a
 * little-endian number, which is a uint64_t as every machine that Trellis runs on has it.
 */
#ifndef TRELLIS_REMOTE_H
#define TRELLIS_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include <trellis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a server refuses; TRELLIS_ERROR_... of trellis.h say the rest. New codes may be added; they will be negative. */
typedef enum trellis_remote_status {
    /* The network of this host has no way there, or the prefix is not this host's. */
    TRELLIS_REMOTE_NO_ROUTE = -100,
    /* Another host has it. */
    TRELLIS_REMOTE_MOVED = -101,
    /* The object is gone: it was deleted, or its server began anew without it. */
    TRELLIS_REMOTE_STALE = -102,
    /* No object is there, or it ends before. */
    TRELLIS_REMOTE_BOUNDS = -103,
    /* The server was restarted, and nobody knows whether the call before it was done; the next call is fine. */
    TRELLIS_REMOTE_FENCED = -104,
    /* Somebody has a lease, or the server has no room for so much at a time. */
    TRELLIS_REMOTE_BUSY = -105,
    /* The server has no free run of pages that is so long. */
    TRELLIS_REMOTE_NO_MEMORY = -106,
    /* This host has as much as it may. */
    TRELLIS_REMOTE_QUOTA = -107,
    /* The server wants another kind of tag, or another key. */
    TRELLIS_REMOTE_BAD_TAG = -108,
    /* The server does not know the call. */
    TRELLIS_REMOTE_UNKNOWN_COMMAND = -109,
    /* The call means nothing, as an addition to eight bytes that do not lie at a multiple of eight. */
    TRELLIS_REMOTE_MALFORMED = -110,
    /* This host may not do that. */
    TRELLIS_REMOTE_DENIED = -111,
    /* The server waits for what was granted before it was restarted; try again later. */
    TRELLIS_REMOTE_RESTARTING = -112,
    /* Others keep copies of the page, so that it is changed only by who takes a lease of it. */
    TRELLIS_REMOTE_LEASE = -114,
    /* The bytes are at several places; reads ask for them page by page then. */
    TRELLIS_REMOTE_PARTS = -115,
    /* The home is gone or has lost what it held, and no other server has all of it: start that server again, or let
     * `trellis controller reset` begin its memory anew, empty. */
    TRELLIS_REMOTE_UNSERVED = -116
} trellis_remote_status;

/* ---------------------------------------------------------------------------------------------- pointers -- */

/* A byte of an object: an IPv6 address in network order. A value like any other: it may be copied, compared with
 * memcmp, sent to others and kept in files and in objects. All zeros name nothing. */
typedef struct trellis_remote_pointer {
    uint8_t bytes[16];
} trellis_remote_pointer;

/* So much room a pointer's text has, its NUL counted. */
#define TRELLIS_REMOTE_TEXT_BYTES 46

/* Write a pointer as text, such as "fd12:3456:7:0:1::1000". Errors: ARGUMENT (`text` is NULL or has no room). */
int trellis_remote_format(trellis_remote_pointer pointer, char *text, size_t text_bytes);

/* Read such a text. Errors: ARGUMENT (it is no pointer; `*pointer` stays as it was). */
int trellis_remote_parse(const char *text, trellis_remote_pointer *pointer);

/* Move a pointer by so many bytes, to either side. Whether an object is there, the server says when it is used.
 * Errors: ARGUMENT (there can be no memory so far; `*pointer` stays as it was). */
int trellis_remote_advance(trellis_remote_pointer *pointer, int64_t bytes);

/* The number of the server that a pointer's memory belongs to, from 1 to 65534. Errors: ARGUMENT (it is no pointer). */
int trellis_remote_home(trellis_remote_pointer pointer);

/* Where its byte lies in that server's memory, which is never an address of anything. 0 if it is no pointer. */
uint64_t trellis_remote_offset(trellis_remote_pointer pointer);

/* ---------------------------------------------------------------------------------------------- clients -- */

/* Who asks memory servers. */
typedef struct trellis_remote_client trellis_remote_client;

/* A member that is NULL or 0 has its default. */
typedef struct trellis_remote_options {
    /* The addresses of this host, such as "fd12:3456:7::/48"; default: the variable TRELLIS_PREFIX. */
    const char *prefix;
    /* How long a call may take, in milliseconds; default 10,000. */
    uint32_t deadline_ms;
    /* So many bytes of memory go into one datagram, a power of two from 64 to 32,768; default 4,096, which needs a
     * network of packets of 9,000 bytes. With packets of 1,500 bytes 1,024 are best. */
    uint32_t piece_bytes;
    /* Where servers listen; default 5000. */
    uint16_t port;
} trellis_remote_options;

/* Open a client. `options` may be NULL. It asks nobody, so it does not know whether the prefix is this host's.
 * Errors: ARGUMENT, CONFIGURATION (no prefix, or it is none), JOIN (no socket). */
int trellis_remote_open(const trellis_remote_options *options, trellis_remote_client **client);

/* Close it; nobody may be in a call of it. NULL is allowed. Objects stay where they are. */
void trellis_remote_close(trellis_remote_client *client);

/* ---------------------------------------------------------------------------------------------- calls -- */

/* As a server: whichever the switch chooses. */
#define TRELLIS_REMOTE_ANYWHERE 0

/* Make an object of so many zero bytes, at least 1, at the server of this number. Errors: ARGUMENT, STATE, DEADLINE,
 * and those of `trellis_remote_status`; so for all calls. */
int trellis_remote_create(trellis_remote_client *client, uint16_t server, uint64_t bytes,
                          trellis_remote_pointer *object);

/* Make an object of these bytes, in one step if they are at most 65,536. If more cannot be written after it was made,
 * there is an object that nobody knows. */
int trellis_remote_create_with(trellis_remote_client *client, uint16_t server, const void *from, size_t bytes,
                               trellis_remote_pointer *object);

/* End an object, by its first byte. From then on pointers to it are refused (STALE), also where another object lies. */
int trellis_remote_delete(trellis_remote_client *client, trellis_remote_pointer object);

/* The first byte of the object that a pointer is into, and how long it is; either may be NULL. */
int trellis_remote_inquire(trellis_remote_client *client, trellis_remote_pointer pointer,
                           trellis_remote_pointer *object, uint64_t *bytes);

/* Read any range inside an object. What is longer than a datagram comes in pieces, which are not one step. After a
 * failure nobody knows what `into` holds. */
int trellis_remote_read(trellis_remote_client *client, trellis_remote_pointer pointer, void *into, size_t bytes);

/* Write any range inside an object. What is longer than a datagram goes in pieces, which are not one step; after a
 * failure some of them may be there. */
int trellis_remote_write(trellis_remote_client *client, trellis_remote_pointer pointer, const void *from, size_t bytes);

/* Write at most 65,536 bytes in one step, in however many datagrams. Where the range has backups, or some of its pages
 * another home, one step is what lies in one page of 4,096 bytes. Errors: also ARGUMENT where they are more, and
 * TRELLIS_REMOTE_LEASE where they are in several pages and one step is one page; nothing was written then. */
int trellis_remote_write_whole(trellis_remote_client *client, trellis_remote_pointer pointer, const void *from,
                               size_t bytes);

/* Add to the eight bytes at a pointer whose offset is a multiple of eight; `*before`, which may be NULL, becomes what
 * was there. What overflows is lost. */
int trellis_remote_fetch_add(trellis_remote_client *client, trellis_remote_pointer pointer, uint64_t addend,
                             uint64_t *before);

/* Put `desired` where `*expected` is. Answers 1 when that was so; otherwise 0, and `*expected` becomes what is there.
 * */
int trellis_remote_compare_swap(trellis_remote_client *client, trellis_remote_pointer pointer, uint64_t *expected,
                                uint64_t desired);

/* What a server lets this host have, and what it has. */
typedef struct trellis_remote_welcome {
    uint64_t quota_bytes;
    uint64_t used_bytes;
} trellis_remote_welcome;

/* Greet a server, which other calls do by themselves. `welcome` may be NULL. */
int trellis_remote_hello(trellis_remote_client *client, uint16_t server, trellis_remote_welcome *welcome);

/* ---------------------------------------------------------------------------------------------- many at once -- */

/* What a call of a batch is. */
typedef enum trellis_remote_kind {
    TRELLIS_REMOTE_READ = 0,
    TRELLIS_REMOTE_WRITE = 1,
    TRELLIS_REMOTE_WRITE_WHOLE = 2,
    TRELLIS_REMOTE_FETCH_ADD = 3,
    TRELLIS_REMOTE_COMPARE_SWAP = 4,
    TRELLIS_REMOTE_CREATE = 5,
    TRELLIS_REMOTE_CREATE_WITH = 6,
    TRELLIS_REMOTE_DELETE = 7,
    TRELLIS_REMOTE_INQUIRE = 8
} trellis_remote_kind;

/* One call of a batch; members that its kind does not name are not looked at. */
typedef struct trellis_remote_call {
    /* One of `trellis_remote_kind`. */
    int32_t kind;
    /* Afterwards: how it ended, TRELLIS_OK or a negative code. */
    int32_t status;
    /* What it is about. Afterwards, of CREATE, CREATE_WITH and INQUIRE: the object. */
    trellis_remote_pointer pointer;
    /* READ: where it goes; no other call of the batch may have any of that. WRITE, WRITE_WHOLE, CREATE_WITH: where it
     * is. */
    union {
        void *into;
        const void *from;
    };
    /* How many. Afterwards, of INQUIRE: how long the object is. */
    uint64_t bytes;
    /* FETCH_ADD: what is added. COMPARE_SWAP: what must be there. Afterwards, of both: what was there before. */
    uint64_t value;
    /* COMPARE_SWAP: what shall be there. */
    uint64_t desired;
    /* CREATE, CREATE_WITH: the number of the server, or TRELLIS_REMOTE_ANYWHERE. */
    uint16_t server;
} trellis_remote_call;

/* Carry out calls at the same time, in no order: who needs one before another makes two batches. Each has its status;
 * one that fails ends no other. Answers TRELLIS_OK when all were done, and else the status of the first that was not,
 * whose sentence trellis_last_error() is. Where the client is not to be had (ARGUMENT, STATE) nothing is done, and no
 * status is set. After a server was silent until the deadline the batch asks it no more. */
int trellis_remote_batch(trellis_remote_client *client, trellis_remote_call *calls, size_t count);

#ifdef __cplusplus
}
#endif

#endif
