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
 * Errors and their messages are those of trellis.h. A server's refusals have their own codes,
 * `trellis_remote_status`. If a server does not answer, the result is DEADLINE; a call that changes something may
 * then have been done or not. What was answered was done, and once: additions, exchanges, creations and deletions are
 * never done twice.
 *
 * Threads. A client is for one thread at a time: a simultaneous call from another thread is refused with STATE.
 * Threads that work at the same time have one client each. A client that was opened before a fork is refused in the
 * child, with STATE.
 *
 * Sizes are in bytes. Bytes are not converted, except that additions and exchanges treat eight bytes as a little-endian
 * number, which is a uint64_t on every machine that Trellis runs on.
 */
#ifndef TRELLIS_REMOTE_H
#define TRELLIS_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include <trellis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A server's refusals; TRELLIS_ERROR_... of trellis.h are the other errors. New codes may be added; they will be
 * negative. */
typedef enum trellis_remote_status {
    /* The network of this host has no route to it, or the prefix is not this host's. */
    TRELLIS_REMOTE_NO_ROUTE = -100,
    /* Another host has the object. */
    TRELLIS_REMOTE_MOVED = -101,
    /* The object is gone: it was deleted, or its server was reset without it. */
    TRELLIS_REMOTE_STALE = -102,
    /* There is no object at the address, or it ends before. */
    TRELLIS_REMOTE_BOUNDS = -103,
    /* The server was restarted, and it is not known whether the previous call was done; the next call is fine. */
    TRELLIS_REMOTE_FENCED = -104,
    /* Another client has a lease, or the server has no room for so much at a time. */
    TRELLIS_REMOTE_BUSY = -105,
    /* The server has no free range of pages of this length. */
    TRELLIS_REMOTE_NO_MEMORY = -106,
    /* This host's quota is used up. */
    TRELLIS_REMOTE_QUOTA = -107,
    /* The server requires another kind of tag, or another key. */
    TRELLIS_REMOTE_BAD_TAG = -108,
    /* The server does not know the call. */
    TRELLIS_REMOTE_UNKNOWN_COMMAND = -109,
    /* The call is invalid, such as an addition to eight bytes that are not at a multiple of eight. */
    TRELLIS_REMOTE_MALFORMED = -110,
    /* This host may not do that. */
    TRELLIS_REMOTE_DENIED = -111,
    /* The server waits for the end of leases that it granted before its restart; try again later. */
    TRELLIS_REMOTE_RESTARTING = -112,
    /* Others keep copies of the page, so it can only be changed under a lease. */
    TRELLIS_REMOTE_LEASE = -114,
    /* The bytes are at several homes; reads then ask for them page by page. */
    TRELLIS_REMOTE_PARTS = -115,
    /* The home is gone or has lost its content, and no other server has all of it: restart that server, or let
     * `trellis controller reset` reset its memory to empty. */
    TRELLIS_REMOTE_UNSERVED = -116
} trellis_remote_status;

/* ---------------------------------------------------------------------------------------------- pointers -- */

/* A byte of an object: an IPv6 address in network order. It is a plain value: it may be copied, compared with memcmp,
 * sent to others and kept in files and in objects. All zeros name nothing. */
typedef struct trellis_remote_pointer {
    uint8_t bytes[16];
} trellis_remote_pointer;

/* The size of the buffer for a pointer's text, including its NUL. */
#define TRELLIS_REMOTE_TEXT_BYTES 46

/* Write a pointer as text, such as "fd12:3456:7:0:1::1000". Errors: ARGUMENT (`text` is NULL or has no room). */
int trellis_remote_format(trellis_remote_pointer pointer, char *text, size_t text_bytes);

/* Parse such a text. Errors: ARGUMENT (it is not a pointer; `*pointer` is unchanged). */
int trellis_remote_parse(const char *text, trellis_remote_pointer *pointer);

/* Advance a pointer by so many bytes, in either direction. Whether an object is there is checked when the pointer is
 * used. Errors: ARGUMENT (no memory can have that address; `*pointer` is unchanged). */
int trellis_remote_advance(trellis_remote_pointer *pointer, int64_t bytes);

/* The number of the server of a pointer's memory, from 1 to 65534. Errors: ARGUMENT (it is not a pointer). */
int trellis_remote_home(trellis_remote_pointer pointer);

/* The offset of its byte in that server's memory, which is not an address. 0 if it is not a pointer. */
uint64_t trellis_remote_offset(trellis_remote_pointer pointer);

/* ---------------------------------------------------------------------------------------------- clients -- */

/* A client of memory servers. */
typedef struct trellis_remote_client trellis_remote_client;

/* A member that is NULL or 0 has its default. */
typedef struct trellis_remote_options {
    /* The addresses of this host, such as "fd12:3456:7::/48"; default: the variable TRELLIS_PREFIX. */
    const char *prefix;
    /* The time-out of a call, in milliseconds; default 10,000. */
    uint32_t deadline_ms;
    /* The bytes of memory in one datagram, a power of two from 64 to 32,768; default 4,096, which needs a network
     * with packets of 9,000 bytes. With packets of 1,500 bytes, 1,024 is best. */
    uint32_t piece_bytes;
    /* The port on which servers listen; default 5000. */
    uint16_t port;
} trellis_remote_options;

/* Open a client. `options` may be NULL. No message is sent, so it is not checked that the prefix is this host's.
 * Errors: ARGUMENT, CONFIGURATION (no prefix, or an invalid one), JOIN (no socket). */
int trellis_remote_open(const trellis_remote_options *options, trellis_remote_client **client);

/* Close it; no thread may be in a call of it. NULL is allowed. Objects stay where they are. */
void trellis_remote_close(trellis_remote_client *client);

/* ---------------------------------------------------------------------------------------------- calls -- */

/* As a server's number: the switch chooses the server. */
#define TRELLIS_REMOTE_ANYWHERE 0

/* Create an object of so many zero bytes, at least 1, at the server of this number. Errors, as for all calls:
 * ARGUMENT, STATE, DEADLINE, and those of `trellis_remote_status`. */
int trellis_remote_create(trellis_remote_client *client, uint16_t server, uint64_t bytes,
                          trellis_remote_pointer *object);

/* Create an object with these bytes, in one step if they are at most 65,536. If writing the rest fails after the
 * creation, an object remains to which no pointer is known. */
int trellis_remote_create_with(trellis_remote_client *client, uint16_t server, const void *from, size_t bytes,
                               trellis_remote_pointer *object);

/* Delete an object, by its first byte. From then on pointers to it are refused (STALE), even if another object is
 * there. */
int trellis_remote_delete(trellis_remote_client *client, trellis_remote_pointer object);

/* The first byte and the length of the object into which a pointer points; either may be NULL. */
int trellis_remote_inquire(trellis_remote_client *client, trellis_remote_pointer pointer,
                           trellis_remote_pointer *object, uint64_t *bytes);

/* Read any range inside an object. A range longer than a datagram is read in pieces, not in one step. After a failure
 * the content of `into` is undefined. */
int trellis_remote_read(trellis_remote_client *client, trellis_remote_pointer pointer, void *into, size_t bytes);

/* Write any range inside an object. A range longer than a datagram is written in pieces, not in one step; after a
 * failure some of them may have been written. */
int trellis_remote_write(trellis_remote_client *client, trellis_remote_pointer pointer, const void *from, size_t bytes);

/* Write at most 65,536 bytes in one step, in any number of datagrams. If the range has backups, or some of its pages
 * have another home, one step is limited to one page of 4,096 bytes. Errors: also ARGUMENT if there are more bytes,
 * and TRELLIS_REMOTE_LEASE if they are in several pages and one step is one page; nothing was written then. */
int trellis_remote_write_whole(trellis_remote_client *client, trellis_remote_pointer pointer, const void *from,
                               size_t bytes);

/* Add to the eight bytes at a pointer whose offset is a multiple of eight; `*before`, which may be NULL, becomes the
 * old value. The addition wraps. */
int trellis_remote_fetch_add(trellis_remote_client *client, trellis_remote_pointer pointer, uint64_t addend,
                             uint64_t *before);

/* Replace `*expected` by `desired`. Returns 1 if it was replaced; otherwise 0, and `*expected` becomes the present
 * value. */
int trellis_remote_compare_swap(trellis_remote_client *client, trellis_remote_pointer pointer, uint64_t *expected,
                                uint64_t desired);

/* This host's quota at a server, and how much of it is used. */
typedef struct trellis_remote_welcome {
    uint64_t quota_bytes;
    uint64_t used_bytes;
} trellis_remote_welcome;

/* Open a session with a server, which other calls do by themselves. `welcome` may be NULL. */
int trellis_remote_hello(trellis_remote_client *client, uint16_t server, trellis_remote_welcome *welcome);

/* ---------------------------------------------------------------------------------------------- many at once -- */

/* The kind of a call of a batch. */
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

/* One call of a batch; members that its kind does not name are ignored. */
typedef struct trellis_remote_call {
    /* One of `trellis_remote_kind`. */
    int32_t kind;
    /* Output: the result, TRELLIS_OK or a negative code. */
    int32_t status;
    /* The address of the call. Output of CREATE, CREATE_WITH and INQUIRE: the object. */
    trellis_remote_pointer pointer;
    /* READ: the destination; no other call of the batch may use any of it. WRITE, WRITE_WHOLE, CREATE_WITH: the
     * source. */
    union {
        void *into;
        const void *from;
    };
    /* The number of bytes. Output of INQUIRE: the length of the object. */
    uint64_t bytes;
    /* FETCH_ADD: the addend. COMPARE_SWAP: the expected value. Output of both: the old value. */
    uint64_t value;
    /* COMPARE_SWAP: the new value. */
    uint64_t desired;
    /* CREATE, CREATE_WITH: the number of the server, or TRELLIS_REMOTE_ANYWHERE. */
    uint16_t server;
} trellis_remote_call;

/* Carry out calls at the same time, in no order: calls that depend on each other need two batches. Each call has its
 * status, and a failed call does not stop the others. Returns TRELLIS_OK if all were done, otherwise the status of
 * the first that was not, for which trellis_last_error() is the message. If the client cannot be used (ARGUMENT,
 * STATE), nothing is done and no status is set. After a server was silent until the time-out, the batch sends it
 * nothing more. */
int trellis_remote_batch(trellis_remote_client *client, trellis_remote_call *calls, size_t count);

#ifdef __cplusplus
}
#endif

#endif
