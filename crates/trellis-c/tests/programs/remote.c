/* remote.c - trellis/remote.h against a server that is host 7; TRELLIS_PREFIX says who this one is. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trellis/remote.h>

#define SERVER 7
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, trellis_last_error());                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* That a call fails so, and says this. */
#define REFUSED(call, code, says)                                                                                      \
    do {                                                                                                               \
        const int status = (call);                                                                                     \
        if (status != (code) || strstr(trellis_last_error(), says) == NULL) {                                          \
            fprintf(stderr, "line %d: %s is %d (%s)\n", __LINE__, #call, status, trellis_last_error());                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static trellis_remote_pointer plus(trellis_remote_pointer pointer, int64_t bytes) {
    CHECK(trellis_remote_advance(&pointer, bytes) == TRELLIS_OK);
    return pointer;
}

static int is_same(trellis_remote_pointer one, trellis_remote_pointer other) {
    return memcmp(&one, &other, sizeof one) == 0;
}

static void pointers(trellis_remote_pointer object) {
    char text[TRELLIS_REMOTE_TEXT_BYTES];
    CHECK(trellis_remote_format(plus(object, 77), text, sizeof text) == TRELLIS_OK);
    CHECK(strncmp(text, "fd01:203:7:0:", 13) == 0);
    trellis_remote_pointer read;
    CHECK(trellis_remote_parse(text, &read) == TRELLIS_OK && is_same(plus(read, -77), object));
    CHECK(trellis_remote_home(read) == SERVER);
    CHECK(trellis_remote_offset(read) == trellis_remote_offset(object) + 77);
    REFUSED(trellis_remote_parse("nowhere", &read), TRELLIS_ERROR_ARGUMENT, "no IPv6 address");
    REFUSED(trellis_remote_parse(NULL, &read), TRELLIS_ERROR_ARGUMENT, "text is NULL");
    REFUSED(trellis_remote_format(object, text, 5), TRELLIS_ERROR_ARGUMENT, "TRELLIS_REMOTE_TEXT_BYTES");
    REFUSED(trellis_remote_advance(&read, INT64_MIN), TRELLIS_ERROR_ARGUMENT, "no memory can be");
    memset(&read, 0, sizeof read);
    REFUSED(trellis_remote_home(read), TRELLIS_ERROR_ARGUMENT, "it is not a pointer");
    CHECK(trellis_remote_offset(read) == 0);
}

static void calls(trellis_remote_client *client) {
    static uint8_t bytes[100000], read[100000];
    for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = (uint8_t)(at * 7 >> 3);
    trellis_remote_pointer object, other, first;
    CHECK(trellis_remote_create(client, SERVER, sizeof bytes, &object) == TRELLIS_OK);
    pointers(object);
    CHECK(trellis_remote_write(client, object, bytes, sizeof bytes) == TRELLIS_OK);
    CHECK(trellis_remote_read(client, object, read, sizeof read) == TRELLIS_OK);
    CHECK(memcmp(bytes, read, sizeof read) == 0);
    CHECK(trellis_remote_create_with(client, SERVER, bytes, 30000, &other) == TRELLIS_OK);
    CHECK(trellis_remote_write_whole(client, plus(other, 10), bytes, 20000) == TRELLIS_OK);
    CHECK(trellis_remote_read(client, plus(other, 9), read, 20002) == TRELLIS_OK);
    CHECK(read[0] == bytes[9] && memcmp(read + 1, bytes, 20000) == 0 && read[20001] == bytes[20010]);
    uint64_t length, before = 1, expected = 5;
    CHECK(trellis_remote_inquire(client, plus(other, 29999), &first, &length) == TRELLIS_OK);
    CHECK(is_same(first, other) && length == 30000);
    CHECK(trellis_remote_inquire(client, other, NULL, NULL) == TRELLIS_OK);
    trellis_remote_pointer word = plus(other, 24000);
    memset(read, 0, 8);
    CHECK(trellis_remote_write(client, word, read, 8) == TRELLIS_OK);
    CHECK(trellis_remote_fetch_add(client, word, 40, &before) == TRELLIS_OK && before == 0);
    CHECK(trellis_remote_fetch_add(client, word, 1, NULL) == TRELLIS_OK);
    CHECK(trellis_remote_compare_swap(client, word, &expected, 7) == 0 && expected == 41);
    CHECK(trellis_remote_compare_swap(client, word, &expected, 7) == 1 && expected == 41);
    trellis_remote_welcome welcome;
    CHECK(trellis_remote_hello(client, SERVER, &welcome) == TRELLIS_OK && welcome.used_bytes == (25 + 8) * 4096);
    CHECK(trellis_remote_hello(client, SERVER, NULL) == TRELLIS_OK);

    REFUSED(trellis_remote_read(client, plus(other, 30000), read, 1), TRELLIS_REMOTE_BOUNDS, "READ of fd01:203:7:");
    REFUSED(trellis_remote_fetch_add(client, plus(word, 4), 1, NULL), TRELLIS_REMOTE_MALFORMED, "FETCH_ADD");
    REFUSED(trellis_remote_write_whole(client, object, bytes, 70000), TRELLIS_ERROR_ARGUMENT, "in one step");
    REFUSED(trellis_remote_create(client, SERVER, 1 << 30, &first), TRELLIS_REMOTE_NO_MEMORY, "no free run");
    REFUSED(trellis_remote_create(client, 8, 1, &first), TRELLIS_ERROR_DEADLINE, "the host fd01:203:8::/48 did not");
    REFUSED(trellis_remote_create(client, SERVER, 1, NULL), TRELLIS_ERROR_ARGUMENT, "object is NULL");
    REFUSED(trellis_remote_read(client, object, NULL, 1), TRELLIS_ERROR_ARGUMENT, "into is NULL");
    REFUSED(trellis_remote_write(client, object, bytes, SIZE_MAX), TRELLIS_ERROR_ARGUMENT, "look at the length");
    REFUSED(trellis_remote_write(NULL, object, bytes, 1), TRELLIS_ERROR_ARGUMENT, "client is NULL");
    CHECK(trellis_remote_read(client, object, NULL, 0) == TRELLIS_OK);
    CHECK(trellis_remote_parse("fdee:203:7:0:1::", &first) == TRELLIS_OK);
    REFUSED(trellis_remote_read(client, first, read, 1), TRELLIS_REMOTE_NO_ROUTE, "give this host a route");
    CHECK(strcmp(trellis_status_text(TRELLIS_REMOTE_NO_ROUTE), "no route") == 0);

    CHECK(trellis_remote_delete(client, other) == TRELLIS_OK);
    REFUSED(trellis_remote_read(client, other, read, 1), TRELLIS_REMOTE_STALE, "the object is gone");
    CHECK(trellis_remote_delete(client, object) == TRELLIS_OK);
}

static void batches(trellis_remote_client *client) {
    enum { COUNT = 200 };
    static trellis_remote_call calls[COUNT];
    static uint8_t bytes[10000], read[10000];
    memset(bytes, 3, sizeof bytes);
    trellis_remote_call making[3] = {
        {.kind = TRELLIS_REMOTE_CREATE, .bytes = 8 * COUNT, .server = SERVER},
        {.kind = TRELLIS_REMOTE_CREATE_WITH, .from = bytes, .bytes = sizeof bytes, .server = SERVER},
        {.kind = TRELLIS_REMOTE_CREATE, .bytes = 1, .server = 8},
    };
    REFUSED(trellis_remote_batch(client, making, 3), TRELLIS_ERROR_DEADLINE, "the host fd01:203:8::/48 did not");
    CHECK(making[0].status == TRELLIS_OK && making[1].status == TRELLIS_OK);
    CHECK(making[2].status == TRELLIS_ERROR_DEADLINE);
    const trellis_remote_pointer words = making[0].pointer, object = making[1].pointer;
    for (int at = 0; at < COUNT; at++) {
        calls[at].kind = TRELLIS_REMOTE_FETCH_ADD;
        calls[at].pointer = plus(words, at / 2 * 8);
        calls[at].value = 5;
    }
    CHECK(trellis_remote_batch(client, calls, COUNT) == TRELLIS_OK);
    for (int at = 0; at < COUNT; at += 2) {
        CHECK(calls[at].status == TRELLIS_OK && calls[at].value + calls[at + 1].value == 5);
    }
    trellis_remote_call mixed[] = {
        {.kind = TRELLIS_REMOTE_READ, .pointer = object, .into = read, .bytes = sizeof read},
        {.kind = 99},
        {.kind = TRELLIS_REMOTE_READ, .pointer = plus(object, 1), .into = bytes, .bytes = sizeof bytes},
        {.kind = TRELLIS_REMOTE_INQUIRE, .pointer = plus(object, 9999)},
        {.kind = TRELLIS_REMOTE_COMPARE_SWAP, .pointer = words, .value = 10, .desired = 11},
        {.kind = TRELLIS_REMOTE_COMPARE_SWAP, .pointer = plus(words, 8), .value = 9, .desired = 11},
        {.kind = TRELLIS_REMOTE_WRITE, .pointer = plus(words, 16), .from = "a", .bytes = 1},
        {.kind = TRELLIS_REMOTE_WRITE_WHOLE, .pointer = plus(words, 24), .from = "b", .bytes = 1},
        {.kind = TRELLIS_REMOTE_WRITE, .pointer = words, .from = NULL, .bytes = 1},
        {.kind = TRELLIS_REMOTE_DELETE},
    };
    REFUSED(trellis_remote_batch(client, mixed, 10), TRELLIS_ERROR_ARGUMENT, "99 is not a kind of call");
    const int expected[10] = {0, TRELLIS_ERROR_ARGUMENT, TRELLIS_REMOTE_BOUNDS, 0, 0, 0, 0, 0, TRELLIS_ERROR_ARGUMENT,
                              TRELLIS_ERROR_ARGUMENT};
    for (int at = 0; at < 10; at++) {
        if (mixed[at].status != expected[at]) fprintf(stderr, "call %d: %d\n", at, mixed[at].status);
        CHECK(mixed[at].status == expected[at]);
    }
    memset(bytes, 3, sizeof bytes);
    CHECK(memcmp(bytes, read, sizeof read) == 0);
    CHECK(is_same(mixed[3].pointer, object) && mixed[3].bytes == sizeof bytes);
    CHECK(mixed[4].value == 10 && mixed[5].value == 10);
    CHECK(trellis_remote_read(client, words, read, 32) == TRELLIS_OK);
    CHECK(read[0] == 11 && read[8] == 10 && read[16] == 'a' && read[24] == 'b');
    CHECK(trellis_remote_batch(client, NULL, 0) == TRELLIS_OK);
    REFUSED(trellis_remote_batch(client, NULL, 1), TRELLIS_ERROR_ARGUMENT, "calls is NULL");
    trellis_remote_call ending[2] = {{.kind = TRELLIS_REMOTE_DELETE, .pointer = words},
                                     {.kind = TRELLIS_REMOTE_DELETE, .pointer = object}};
    CHECK(trellis_remote_batch(client, ending, 2) == TRELLIS_OK);
    trellis_remote_welcome welcome;
    CHECK(trellis_remote_hello(client, SERVER, &welcome) == TRELLIS_OK && welcome.used_bytes == 0);
}

static atomic_int was_refused;

/* Calls until this thread or the other one was told that two are in one client. */
static void *call_again_and_again(void *client) {
    for (int round = 0; round < 1000000 && !was_refused; round++) {
        const int status = trellis_remote_hello(client, SERVER, NULL);
        if (status == TRELLIS_ERROR_STATE) {
            CHECK(strstr(trellis_last_error(), "another thread is in a call") != NULL);
            was_refused = 1;
        } else {
            CHECK(status == TRELLIS_OK);
        }
    }
    return NULL;
}

static void rules(trellis_remote_client *client) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_again_and_again, client) == 0);
    call_again_and_again(client);
    CHECK(pthread_join(thread, NULL) == 0 && was_refused);
    const pid_t child = fork();
    if (child == 0) {
        REFUSED(trellis_remote_hello(client, SERVER, NULL), TRELLIS_ERROR_STATE, "before this process was forked");
        trellis_remote_client *own;
        CHECK(trellis_remote_open(NULL, &own) == TRELLIS_OK);
        CHECK(trellis_remote_hello(own, SERVER, NULL) == TRELLIS_OK);
        trellis_remote_close(own);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(trellis_remote_hello(client, SERVER, NULL) == TRELLIS_OK);
}

static void opening(void) {
    trellis_remote_client *client;
    REFUSED(trellis_remote_open(NULL, NULL), TRELLIS_ERROR_ARGUMENT, "client is NULL");
    trellis_remote_options wrong = {.piece_bytes = 100};
    REFUSED(trellis_remote_open(&wrong, &client), TRELLIS_ERROR_ARGUMENT, "give a power of two");
    CHECK(client == NULL);
    wrong = (trellis_remote_options){.prefix = "fd01:203::/32"};
    REFUSED(trellis_remote_open(&wrong, &client), TRELLIS_ERROR_CONFIGURATION, "prefix=fd01:203::/32 is not a prefix");
    const char *prefix = getenv("TRELLIS_PREFIX");
    char kept[64];
    snprintf(kept, sizeof kept, "%s", prefix);
    unsetenv("TRELLIS_PREFIX");
    REFUSED(trellis_remote_open(NULL, &client), TRELLIS_ERROR_CONFIGURATION, "set TRELLIS_PREFIX");
    setenv("TRELLIS_PREFIX", kept, 1);
    trellis_remote_close(NULL);
}

int main(void) {
    opening();
    for (uint32_t piece_bytes = 1024; piece_bytes <= 4096; piece_bytes *= 4) {
        trellis_remote_client *client;
        const trellis_remote_options options = {.deadline_ms = 500, .piece_bytes = piece_bytes};
        CHECK(trellis_remote_open(&options, &client) == TRELLIS_OK);
        calls(client);
        batches(client);
        trellis_remote_close(client);
    }
    trellis_remote_client *client;
    CHECK(trellis_remote_open(NULL, &client) == TRELLIS_OK);
    rules(client);
    trellis_remote_close(client);
    puts("remote complete");
    return 0;
}
