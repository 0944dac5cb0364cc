/* Formatted input: scanf with native targets, brought to the program's memory afterwards. */
#include "format.h"

#include <wchar.h>

struct target {
    void *program;
    size_t bytes; /* 0: a string that scanf allocated */
    bool wide, characters, allocates;
    size_t count; /* of %c */
    union {
        unsigned char bytes[16];
        long double aligned;
        char *string;
    } value;
};

static size_t bytes_of(char size, char letter) {
    if (strchr("eEfFgGaA", letter))
        return size == 'L' ? sizeof(long double) : size == 'l' ? sizeof(double) : sizeof(float);
    if (letter == 'p')
        return sizeof(void *);
    return size == 'H' ? 1 : size == 'h' ? 2 : size ? 8 : 4;
}

/* Behind `%[`, up to and with the `]`. */
static const char *end_of_set(const char *at) {
    if (*at == '^')
        at++;
    if (*at == ']')
        at++;
    while (*at && *at != ']')
        at++;
    return *at ? at + 1 : at;
}

/* Copies `format` with an `m` in every conversion of characters, so that scanf allocates what it cannot know. */
static size_t plan(const char *format, char *planned, struct target *targets, va_list arguments) {
    size_t count = 0;
    while (*format) {
        char character = *planned++ = *format++;
        if (character != '%')
            continue;
        if (*format == '%') {
            *planned++ = *format++;
            continue;
        }
        bool suppressed = false;
        size_t width = 0;
        if (*format == '*') {
            suppressed = true;
            *planned++ = *format++;
        }
        while (*format >= '0' && *format <= '9') {
            width = width * 10 + (size_t)(*format - '0');
            *planned++ = *format++;
        }
        if (*format == '$')
            refuse_at_run_time("scanf", "got a format with numbered arguments");
        struct target target = {.count = width ? width : 1};
        if (*format == 'm') {
            target.allocates = true;
            format++;
        }
        char size = 0;
        const char *start = format;
        while (*format && strchr("hlqjztL", *format)) {
            size = size == 'h' && *format == 'h' ? 'H' : size == 'l' && *format == 'l' ? 'q' : *format;
            format++;
        }
        char letter = *format;
        bool text = letter == 's' || letter == 'c' || letter == '[' || letter == 'S' || letter == 'C';
        if (text && !suppressed)
            *planned++ = 'm';
        while (start < format)
            *planned++ = *start++;
        if (letter)
            *planned++ = *format++;
        if (letter == '[')
            for (const char *end = end_of_set(format); format < end;)
                *planned++ = *format++;
        if (suppressed)
            continue;
        if (count == conversions_max)
            refuse_at_run_time("scanf", "got a format with more than 24 conversions");
        target.program = va_arg(arguments, void *);
        target.wide = text && (size == 'l' || letter == 'S' || letter == 'C');
        target.characters = letter == 'c' || letter == 'C';
        target.bytes = text ? 0 : bytes_of(size, letter);
        targets[count++] = target;
    }
    *planned = 0;
    return count;
}

static void bring(struct target *target) {
    if (target->bytes) {
        put_bytes(target->program, &target->value, target->bytes);
        return;
    }
    char *string = target->value.string;
    size_t unit = target->wide ? sizeof(wchar_t) : 1;
    size_t units = target->characters ? target->count
                   : target->wide     ? wcslen((wchar_t *)string) + 1
                                      : strlen(string) + 1;
    if (target->allocates) {
        void *copy = heap_copy(string, units * unit);
        put_bytes(target->program, &copy, sizeof copy);
    } else {
        put_bytes(target->program, string, units * unit);
    }
    free(string);
}

static bool is_count(const char *planned, size_t which);

/* What a target holds that scanf did not come to: as a count it would be -1. */
enum { unreached = 0xff };

int scanned(int (*read)(void *, const char *, void **), void *source, const char *format, va_list arguments) {
    struct target targets[conversions_max];
    void *into[conversions_max] = {NULL};
    struct piece piece;
    const char *native = take_string(&piece, format);
    char *planned = malloc(strlen(native) * 2 + 1);
    if (!planned)
        refuse_at_run_time("scanf", "needs more native memory than there is");
    size_t count = plan(native, planned, targets, arguments);
    for (size_t at = 0; at < count; at++) {
        memset(&targets[at].value, unreached, sizeof targets[at].value);
        into[at] = &targets[at].value;
    }
    int done = read(source, planned, into);
    /* `%n` is no conversion that counts; whether scanf came to it shows in its value. */
    int seen = 0;
    for (size_t at = 0; at < count; at++) {
        bool counts = !is_count(planned, at);
        if (counts ? seen < done : targets[at].value.bytes[0] != unreached || targets[at].value.bytes[1] != unreached)
            bring(&targets[at]);
        seen += counts;
    }
    free(planned);
    drop(&piece);
    return done;
}

/* Whether conversion number `which` (suppressed ones not counted) is `%n`. */
static bool is_count(const char *planned, size_t which) {
    size_t number = 0;
    while ((planned = strchr(planned, '%'))) {
        planned++;
        if (*planned == '%') {
            planned++;
            continue;
        }
        bool suppressed = *planned == '*';
        while (*planned && strchr("*0123456789mhlqjztL", *planned))
            planned++;
        char letter = *planned;
        if (letter == '[')
            planned = end_of_set(planned + 1);
        if (!suppressed && number++ == which)
            return letter == 'n';
    }
    return false;
}
