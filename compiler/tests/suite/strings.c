/* The C library on the program's memory: strings, numbers, sorting, time, realloc, input and output. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

static int descending(const void *left, const void *right) {
    int a = *(const int *)left, b = *(const int *)right;
    return a < b ? 1 : a > b ? -1 : 0;
}
static int by_text(const void *left, const void *right) { return strcmp(*(char *const *)left, *(char *const *)right); }

static void copying(void) {
    char *to = malloc(400), *from = strdup("The quick brown fox jumps over the lazy dog");
    strcpy(to, from);
    strcat(to, ", twice");
    strncat(to, "abcdef", 3);
    printf("%s %zu %zu\n", to, strlen(to), strnlen(to, 10));
    printf("%s|%s|%s\n", strchr(to, 'q'), strrchr(to, 'o'), strstr(to, "fox"));
    printf("%d %d %d %d\n", strcmp(to, from) > 0, strncmp(to, from, 20), strcasecmp("ABC", "abd") < 0,
           memcmp(to, from, 10));
    memset(to + 4, '*', 5);
    memmove(to + 6, to + 2, 30);
    to[40] = 0;
    printf("%s %zu %zu %s\n", to, strspn(to, "Teh"), strcspn(to, "f"), strpbrk(to, "xyz"));
    strncpy(to, "short", 12);
    printf("%d%d%d %s\n", to[5], to[10], to[11], stpcpy(to + 5, "er") - 7);
    char *rest, *list = strdup("a,b;;c,,d"), *more = list;
    for (char *token = strtok_r(list, ",;", &rest); token; token = strtok_r(NULL, ",;", &rest))
        printf("[%s]", token);
    free(list);
    list = more = strdup("x:y::z");
    for (char *token; (token = strsep(&more, ":"));)
        printf("<%s>", token);
    printf("\n%p %s\n", memchr(from, 0, 3), (char *)memmem(from, strlen(from), "lazy", 4));
    free(list);
    free(from);
    free(to);
}

static void numbers(void) {
    char *text = strdup("  -123 0x1f 3.75e2 rest");
    char *end;
    long a = strtol(text, &end, 10);
    unsigned long b = strtoul(end, &end, 16);
    double c = strtod(end, &end);
    printf("%ld %lu %f [%s] %d %f\n", a, b, c, end, atoi(text), atof("2.5"));
    int *parsed = malloc(3 * sizeof *parsed);
    char *word = malloc(20);
    double *real = malloc(sizeof *real);
    int read = sscanf("12 apples 3.5 x7f [key]", "%d %19s %lf x%x [%*[^]]%n", &parsed[0], word, real,
                      (unsigned *)&parsed[1], &parsed[2]);
    printf("%d %d %s %f %d %d\n", read, parsed[0], word, *real, parsed[1], parsed[2]);
    free(real);
    free(word);
    free(parsed);
    free(text);
}

static void sorting(void) {
    int *array = malloc(500 * sizeof *array);
    for (int i = 0; i < 500; i++)
        array[i] = i * 7919 % 503;
    qsort(array, 500, sizeof *array, descending);
    int ordered = 1, key = array[123];
    for (int i = 1; i < 500; i++)
        ordered &= array[i - 1] >= array[i];
    int *found = bsearch(&key, array, 500, sizeof *array, descending);
    printf("%d %d %d\n", ordered, array[0], found && *found == key);
    array = realloc(array, 5000 * sizeof *array);
    array[4999] = array[499];
    array = realloc(array, 3 * sizeof *array);
    printf("%d %d\n", array[0], array[2]);
    free(array);
    char *words[4];
    for (int i = 0; i < 4; i++) {
        words[i] = malloc(10);
        sprintf(words[i], "w%d", i * 37 % 11);
    }
    qsort(words, 4, sizeof *words, by_text);
    for (int i = 0; i < 4; i++) {
        for (char *at = words[i]; *at; at++)
            *at = (char)toupper((unsigned char)*at);
        printf("%s ", words[i]);
        free(words[i]);
    }
    char *made;
    printf("%d ", asprintf(&made, "%d-%s", 5, "made"));
    printf("%s %d\n", made, isdigit((unsigned char)made[0]) != 0);
    free(made);
}

static void files(void) {
    char *path = strdup("/tmp/trellis-suite-XXXXXX");
    int descriptor = mkstemp(path);
    char *block = malloc(1000);
    memset(block, 'x', 1000);
    memcpy(block, "first line\nsecond line\n", 23);
    block[999] = 0;
    FILE *stream = fdopen(descriptor, "w+");
    printf("%zu ", fwrite(block, 1, 23, stream));
    fprintf(stream, "third %d %s\n", 3, block + 990);
    rewind(stream);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stream) > 0)
        printf("%zu:%.12s|", strlen(line), line);
    free(line);
    rewind(stream);
    printf("%s", fgets(block, 100, stream));
    printf("%zu\n", fread(block, 5, 2, stream));
    fclose(stream);
    printf("%d %d\n", access(path, R_OK), unlink(path));
    free(block);
    free(path);
}

static void times(void) {
    struct timespec *now = malloc(sizeof *now);
    printf("%d %d\n", clock_gettime(CLOCK_MONOTONIC, now), now->tv_nsec >= 0 && now->tv_nsec < 1000000000);
    time_t when = 86400 * 365;
    struct tm *broken = malloc(sizeof *broken);
    gmtime_r(&when, broken);
    char *text = malloc(40);
    printf("%zu %s %d\n", strftime(text, 40, "%Y-%m-%d", broken), text, gmtime(&when)->tm_year);
    wchar_t *wide = malloc(20 * sizeof *wide);
    printf("%zu %zu\n", mbstowcs(wide, "abc", 20), wcslen(wide));
    free(wide);
    free(text);
    free(broken);
    free(now);
}

int main(void) {
    copying();
    numbers();
    sorting();
    files();
    times();
}
