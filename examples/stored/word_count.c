/* Counts the words of a text that it holds in memory: an ordinary C program, which knows nothing of Trellis.
 *
 *     word_count FILE                         the text is read from a file
 *     word_count --generate BYTES             a text is made up, the same one each time
 *     word_count --generate BYTES --in FILE   the same, in a new file that is mapped into memory, without malloc
 *
 * Prints how many words there are, how many different ones, and the ten most frequent. The whole text lies in one
 * block from malloc (or in that file), the table of words in many small ones; so `trellis store run` lets it count a
 * text that is larger than memory. */

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct word {
    struct word *next;
    uint64_t count;
    uint64_t first; /* where it stands first, so that equal counts have an order */
    size_t length;
    char letters[];
};

struct table {
    struct word **chains;
    size_t chains_count;
    size_t words;
};

static void fail(const char *what) {
    fprintf(stderr, "word_count: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *must(void *block) {
    if (!block) fail("no memory");
    return block;
}

static uint64_t random_number(uint64_t *state) { /* SplitMix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Words of a vocabulary in which few are frequent and most are rare, as in a language. */
static void generate(char *text, size_t bytes) {
    uint64_t state = 1;
    size_t at = 0;
    while (at < bytes) {
        uint64_t number = random_number(&state);
        uint64_t bound = (number & 0xffff) * (number >> 16 & 0xffff) >> 16;
        uint64_t rank = (number >> 32 & 0xfffff) % (1 + (bound * bound >> 16));
        do {
            text[at++] = (char)('a' + rank % 26);
            rank /= 26;
        } while (rank && at < bytes);
        if (at < bytes) text[at++] = number >> 60 ? ' ' : '\n';
    }
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    size_t room = 1 << 20;
    char *text = must(malloc(room));
    *bytes = 0;
    for (size_t got; (got = fread(text + *bytes, 1, room - *bytes, file)) > 0;) {
        *bytes += got;
        if (*bytes == room) text = must(realloc(text, room *= 2));
    }
    if (ferror(file)) fail(path);
    fclose(file);
    return text;
}

/* Room for a text in a new file. */
static char *map_file(const char *path, size_t bytes) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes)) fail(path);
    char *text = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (text == MAP_FAILED) fail(path);
    close(file);
    return text;
}

static void grow(struct table *table) {
    size_t count = table->chains_count ? 2 * table->chains_count : 1024;
    struct word **chains = must(calloc(count, sizeof *chains));
    for (size_t i = 0; i < table->chains_count; ++i) {
        for (struct word *word = table->chains[i], *next; word; word = next) {
            next = word->next;
            uint64_t hash = 14695981039346656037u;
            for (size_t k = 0; k < word->length; ++k)
                hash = (hash ^ (unsigned char)word->letters[k]) * 1099511628211u;
            word->next = chains[hash % count];
            chains[hash % count] = word;
        }
    }
    free(table->chains);
    table->chains = chains;
    table->chains_count = count;
}

static void count(struct table *table, const char *letters, size_t length, uint64_t hash, uint64_t place) {
    if (table->words == table->chains_count) grow(table);
    struct word **chain = &table->chains[hash % table->chains_count];
    for (struct word *word = *chain; word; word = word->next) {
        if (word->length == length && !memcmp(word->letters, letters, length)) {
            ++word->count;
            return;
        }
    }
    struct word *word = must(malloc(sizeof *word + length));
    *word = (struct word){.next = *chain, .count = 1, .first = place, .length = length};
    memcpy(word->letters, letters, length);
    *chain = word;
    ++table->words;
}

static uint64_t count_words(struct table *table, const char *text, size_t bytes) {
    uint64_t words = 0;
    for (size_t at = 0; at < bytes;) {
        while (at < bytes && isspace((unsigned char)text[at])) ++at;
        size_t start = at;
        uint64_t hash = 14695981039346656037u; /* FNV-1a */
        for (; at < bytes && !isspace((unsigned char)text[at]); ++at)
            hash = (hash ^ (unsigned char)text[at]) * 1099511628211u;
        if (at == start) break;
        count(table, text + start, at - start, hash, start);
        ++words;
    }
    return words;
}

static int by_count(const void *left, const void *right) {
    const struct word *a = *(struct word *const *)left, *b = *(struct word *const *)right;
    if (a->count != b->count) return a->count < b->count ? 1 : -1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    size_t bytes = 0;
    char *text;
    int is_mapped = argc == 5 && !strcmp(argv[3], "--in");
    double start = seconds();
    if ((argc == 3 || is_mapped) && !strcmp(argv[1], "--generate")) {
        bytes = strtoull(argv[2], NULL, 10);
        text = is_mapped ? map_file(argv[4], bytes) : must(malloc(bytes ? bytes : 1));
        generate(text, bytes);
    } else if (argc == 2) {
        text = read_file(argv[1], &bytes);
    } else {
        fprintf(stderr, "usage: word_count FILE | word_count --generate BYTES [--in FILE]\n");
        return 2;
    }
    double filled = seconds();
    struct table table = {0};
    uint64_t words = count_words(&table, text, bytes);
    struct word **sorted = must(malloc((table.words ? table.words : 1) * sizeof *sorted));
    size_t found = 0;
    for (size_t i = 0; i < table.chains_count; ++i)
        for (struct word *word = table.chains[i]; word; word = word->next) sorted[found++] = word;
    qsort(sorted, found, sizeof *sorted, by_count);
    printf("%zu bytes, %llu words, %zu different\n", bytes, (unsigned long long)words, found);
    for (size_t i = 0; i < found && i < 10; ++i)
        printf("%10llu %.*s\n", (unsigned long long)sorted[i]->count, (int)sorted[i]->length, sorted[i]->letters);
    fprintf(stderr, "filled in %.3f s, counted in %.3f s\n", filled - start, seconds() - filled);
    for (size_t i = 0; i < found; ++i) free(sorted[i]);
    free(sorted);
    free(table.chains);
    if (is_mapped)
        munmap(text, bytes);
    else
        free(text);
    return 0;
}
