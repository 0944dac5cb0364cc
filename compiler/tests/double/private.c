/* Mode full outside the region: a store of single bytes over native memory that is never written.
 *
 * A byte is absent (native memory has it), present (only here), or native for good.
 */
#include "double.h"

#include <stdlib.h>
#include <string.h>

enum state { absent, present, native };

struct page {
    struct page *next;
    uintptr_t number;
    unsigned char bytes[page_bytes], states[page_bytes];
};

enum { chains = 1 << 16 };
static struct page *table[chains];

static struct page *find_page(uintptr_t address) {
    uintptr_t number = address / page_bytes;
    struct page *page = table[number % chains];
    while (page && page->number != number)
        page = page->next;
    return page;
}

static struct page *page_of(uintptr_t address) {
    struct page *page = find_page(address);
    if (page)
        return page;
    page = calloc(1, sizeof *page);
    if (!page)
        double_fail("no memory for a page", (void *)address);
    page->number = address / page_bytes;
    struct page **chain = &table[page->number % chains];
    page->next = *chain;
    return *chain = page;
}

void read_private(const void *address, void *into, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) {
        uintptr_t from = (uintptr_t)address + at;
        struct page *page = page_of(from);
        unsigned place = from % page_bytes;
        ((unsigned char *)into)[at] = page->states[place] == present ? page->bytes[place] : *(unsigned char *)from;
    }
}

void write_private(void *address, const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) {
        uintptr_t to = (uintptr_t)address + at;
        struct page *page = page_of(to);
        unsigned place = to % page_bytes;
        unsigned char byte = ((const unsigned char *)from)[at];
        if (page->states[place] == native) {
            *(unsigned char *)to = byte;
        } else {
            page->states[place] = present;
            page->bytes[place] = byte;
        }
    }
}

/* Leaves present bytes in `state`, after bringing them to native memory when asked. Where there is no page, every byte
 * is absent. Programs settle their whole stacks, so a page is looked up once. */
static void settle(const void *address, size_t bytes, bool bring, enum state state) {
    pthread_mutex_lock(&double_lock);
    uintptr_t to = (uintptr_t)address, end = to + bytes;
    while (to < end) {
        unsigned place = to % page_bytes;
        size_t count = end - to < page_bytes - place ? end - to : page_bytes - place;
        struct page *page = state == absent ? find_page(to) : page_of(to);
        for (size_t at = 0; page && at < count; at++, place++) {
            if (page->states[place] == present && bring)
                ((unsigned char *)to)[at] = page->bytes[place];
            if (page->states[place] != native)
                page->states[place] = state;
        }
        to += count;
    }
    pthread_mutex_unlock(&double_lock);
}

static void only_full(const void *address) {
    if (double_mode != TRELLIS_MODE_FULL || in_region(address))
        double_fail("a call that only mode full makes, outside the region", address);
}

void __trellis_import(const void *address, size_t bytes) {
    only_full(address);
    settle(address, bytes, false, absent);
}

void __trellis_export(void *address, size_t bytes) {
    only_full(address);
    settle(address, bytes, true, absent);
}

void __trellis_keep_native(const void *address, size_t bytes) {
    only_full(address);
    settle(address, bytes, true, native);
}
