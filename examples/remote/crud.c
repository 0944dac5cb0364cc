/* Objects in the memory of another machine: made, written, read, counted in, and deleted. crud.rs and crud.cpp do the
 * same, and print the same.
 *
 *     cc crud.c $(pkg-config --cflags --libs trellis) -o crud
 *     trellis lab up --clients 1 --servers 1
 *     trellis lab run s1 -- trellis serve --memory 64MiB &
 *     trellis lab run c1 -- ./crud s1
 *     trellis lab down
 *
 * The argument is the server: its number in the cluster, or its name in a lab (`s1` is number 0x1001). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trellis/remote.h>

static void check(int status) {
    if (status >= 0) return;
    fprintf(stderr, "crud: %s\n", trellis_last_error());
    exit(1);
}

static trellis_remote_pointer plus(trellis_remote_pointer pointer, int64_t bytes) {
    check(trellis_remote_advance(&pointer, bytes));
    return pointer;
}

static const char *text_of(trellis_remote_pointer pointer) {
    static char text[TRELLIS_REMOTE_TEXT_BYTES];
    check(trellis_remote_format(pointer, text, sizeof text));
    return text;
}

static uint16_t server_of(const char *text) {
    char *end = NULL;
    const int is_named = text != NULL && text[0] == 's';
    const unsigned long number = text == NULL ? 0 : strtoul(text + is_named, &end, 10);
    if (number == 0 || *end != '\0' || number > (is_named ? 0xeffe : 0xfffe)) {
        fprintf(stderr, "usage: crud SERVER, a number such as 4097, or s1\n");
        exit(1);
    }
    return (uint16_t)(is_named ? 0x1000 + number : number);
}

int main(int count, char **arguments) {
    const uint16_t server = server_of(count > 1 ? arguments[1] : NULL);
    trellis_remote_client *client;
    check(trellis_remote_open(NULL, &client));

    trellis_remote_pointer object;
    check(trellis_remote_create(client, server, 1 << 20, &object));
    printf("a mebibyte of zeros is at %s\n", text_of(object));

    const char text[] = "memory is a place, and a place has an address";
    char read[sizeof text] = "";
    check(trellis_remote_write(client, object, text, strlen(text)));
    check(trellis_remote_read(client, object, read, strlen(text)));
    printf("it begins: %s\n", read);

    /* Several calls at the same time, of any kind, each with a status of its own. */
    const trellis_remote_pointer half = plus(object, 1 << 19);
    char byte;
    trellis_remote_call calls[] = {
        {.kind = TRELLIS_REMOTE_WRITE, .pointer = half, .from = "left", .bytes = 4},
        {.kind = TRELLIS_REMOTE_WRITE, .pointer = plus(half, 4), .from = "right", .bytes = 5},
        {.kind = TRELLIS_REMOTE_INQUIRE, .pointer = half},
        {.kind = TRELLIS_REMOTE_READ, .pointer = plus(half, 1 << 19), .into = &byte, .bytes = 1},
    };
    const int call_count = sizeof calls / sizeof *calls;
    (void)trellis_remote_batch(client, calls, (size_t)call_count);
    int done = 0;
    for (int number = 0; number < call_count; number++) done += calls[number].status == TRELLIS_OK;
    printf("%d of %d calls were done\n", done, call_count);
    char both[10] = "";
    check(trellis_remote_read(client, half, both, 9));
    printf("in the middle: %s\n", both);

    /* Whole words can be changed by what they are; each is done once, however often its datagrams arrive. */
    const trellis_remote_pointer word = plus(half, 64);
    uint64_t expected = 40, now;
    check(trellis_remote_fetch_add(client, word, 40, NULL));
    check(trellis_remote_compare_swap(client, word, &expected, 42));
    check(trellis_remote_fetch_add(client, word, 0, &now));
    printf("the word is %llu\n", (unsigned long long)now);

    /* Five datagrams, in no order; and a page in one step, which it is also where other servers keep copies. */
    static char bytes[20000], page[4096];
    const trellis_remote_pointer place = plus(object, 1000);
    memset(bytes, 7, sizeof bytes);
    check(trellis_remote_write(client, place, bytes, sizeof bytes));
    memset(page, 8, sizeof page);
    check(trellis_remote_write_whole(client, plus(object, sizeof page), page, sizeof page));
    memset(bytes, 0, sizeof bytes);
    check(trellis_remote_read(client, place, bytes, sizeof bytes));
    int sevens = 0, eights = 0;
    for (size_t at = 0; at < sizeof bytes; at++) {
        sevens += bytes[at] == 7;
        eights += bytes[at] == 8;
    }
    printf("%d sevens and %d eights are there\n", sevens, eights);

    trellis_remote_pointer first;
    uint64_t length;
    check(trellis_remote_inquire(client, place, &first, &length));
    printf("that is in %llu bytes at %s\n", (unsigned long long)length, text_of(first));
    trellis_remote_welcome welcome;
    check(trellis_remote_hello(client, server, &welcome));
    printf("this host has %llu of %llu bytes\n", (unsigned long long)welcome.used_bytes,
           (unsigned long long)welcome.quota_bytes);

    check(trellis_remote_delete(client, object));
    if (trellis_remote_read(client, object, read, strlen(text)) == TRELLIS_OK) {
        fprintf(stderr, "crud: a deleted object was read\n");
        return 1;
    }
    printf("afterwards: %s\n", trellis_last_error());
    trellis_remote_close(client);
    return 0;
}
