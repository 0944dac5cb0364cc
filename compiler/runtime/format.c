/* Formatted output, conversion by conversion; format.h says what it promises. */
#include "format.h"

#include <stdio.h>
#include <wchar.h>

static void append(struct text *text, const char *bytes, size_t length) {
    if (text->length + length + 1 > text->room) {
        text->room = (text->length + length + 1) * 2;
        text->bytes = realloc(text->bytes, text->room);
        if (!text->bytes)
            refuse_at_run_time("printf", "needs more native memory than there is");
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

/* One conversion specification: `%`, flags, width, precision, length, letter. */
struct conversion {
    char text[64];
    size_t length;
    int precision; /* -1: none */
    char size;     /* 0, 'H' (hh), 'h', 'l', 'q' (ll), 'j', 'z', 't', 'L' */
    char letter;
};

static void add(struct conversion *conversion, char character) {
    if (conversion->length + 1 >= sizeof conversion->text)
        refuse_at_run_time("printf", "got a conversion that is longer than 63 characters");
    conversion->text[conversion->length++] = character;
    conversion->text[conversion->length] = 0;
}

static void add_number(struct conversion *conversion, int number) {
    char digits[16];
    snprintf(digits, sizeof digits, "%d", number);
    for (char *at = digits; *at; at++)
        add(conversion, *at);
}

static const char *read_size(const char *at, char *size) {
    *size = 0;
    while (*at && strchr("hlqjztL", *at)) {
        if (*size == 'h' && *at == 'h')
            *size = 'H';
        else
            *size = *size == 'l' && *at == 'l' ? 'q' : *at;
        at++;
    }
    return at;
}

struct arguments {
    va_list list;
};

/* Reads behind the `%`; stars become numbers. */
static const char *read_conversion(const char *at, struct conversion *conversion, struct arguments *arguments) {
    conversion->length = 0;
    conversion->precision = -1;
    add(conversion, '%');
    while (*at && strchr("-+ #0'I", *at))
        add(conversion, *at++);
    if (*at == '*') {
        add_number(conversion, va_arg(arguments->list, int));
        at++;
    }
    while (*at >= '0' && *at <= '9')
        add(conversion, *at++);
    if (*at == '$')
        refuse_at_run_time("printf", "got a format with numbered arguments");
    if (*at == '.') {
        at++;
        if (*at == '*') {
            conversion->precision = va_arg(arguments->list, int);
            at++;
        } else {
            conversion->precision = 0;
            while (*at >= '0' && *at <= '9')
                conversion->precision = conversion->precision * 10 + (*at++ - '0');
        }
        if (conversion->precision >= 0) {
            add(conversion, '.');
            add_number(conversion, conversion->precision);
        }
    }
    const char *size_start = at;
    at = read_size(at, &conversion->size);
    for (; size_start < at; size_start++)
        add(conversion, *size_start);
    conversion->letter = *at;
    if (*at)
        add(conversion, *at++);
    return at;
}

/* Prints one value of a known type by the conversion's own text. */
#define PRINT(value)                                                                                                   \
    do {                                                                                                               \
        char small[128];                                                                                               \
        int length = snprintf(small, sizeof small, conversion->text, value);                                           \
        if (length >= (int)sizeof small) {                                                                             \
            char *large = malloc((size_t)length + 1);                                                                  \
            if (!large)                                                                                                \
                refuse_at_run_time("printf", "needs more native memory than there is");                                \
            snprintf(large, (size_t)length + 1, conversion->text, value);                                              \
            append(text, large, (size_t)length);                                                                       \
            free(large);                                                                                               \
        } else if (length > 0) {                                                                                       \
            append(text, small, (size_t)length);                                                                       \
        }                                                                                                              \
    } while (0)

#pragma GCC diagnostic ignored "-Wformat-nonliteral"

static void print_integer(struct text *text, struct conversion *conversion, struct arguments *arguments) {
    switch (conversion->size) {
    case 'l':
    case 'z':
    case 't':
        PRINT(va_arg(arguments->list, long));
        break;
    case 'q':
    case 'j':
    case 'L':
        PRINT(va_arg(arguments->list, long long));
        break;
    default: {
        int value = va_arg(arguments->list, int);
        PRINT(value);
    }
    }
}

static void print_string(struct text *text, struct conversion *conversion, struct arguments *arguments) {
    const char *program = va_arg(arguments->list, const char *);
    struct piece piece;
    if (conversion->size == 'l' || conversion->letter == 'S') {
        size_t count = 0;
        wchar_t one = 1;
        /* A precision counts bytes, and every wide character makes at least one. */
        while (program && (conversion->precision < 0 || count < (size_t)conversion->precision) && one) {
            get_bytes(program + count * sizeof one, &one, sizeof one);
            count++;
        }
        const void *native = take(&piece, program, count * sizeof one);
        PRINT((const wchar_t *)native);
    } else if (conversion->precision >= 0) {
        size_t length;
        const char *native = program ? take_at_most(&piece, program, (size_t)conversion->precision, &length)
                                     : take(&piece, NULL, 0);
        PRINT(native);
    } else {
        const char *native = take_string(&piece, program);
        PRINT(native);
    }
    drop(&piece);
}

static void give_count(struct text *text, struct conversion *conversion, struct arguments *arguments) {
    void *program = va_arg(arguments->list, void *);
    long long count = (long long)text->length;
    size_t bytes = conversion->size == 'H' ? 1 : conversion->size == 'h' ? 2 : conversion->size ? 8 : 4;
    put_bytes(program, &count, bytes);
}

static void print_one(struct text *text, struct conversion *conversion, struct arguments *arguments) {
    switch (conversion->letter) {
    case 'd':
    case 'i':
    case 'o':
    case 'u':
    case 'x':
    case 'X':
    case 'b':
    case 'c':
    case 'C':
        print_integer(text, conversion, arguments);
        break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
        if (conversion->size == 'L')
            PRINT(va_arg(arguments->list, long double));
        else
            PRINT(va_arg(arguments->list, double));
        break;
    case 's':
    case 'S':
        print_string(text, conversion, arguments);
        break;
    case 'p':
        PRINT(va_arg(arguments->list, void *));
        break;
    case 'n':
        give_count(text, conversion, arguments);
        break;
    case 'm':
        PRINT(0);
        break;
    case '%':
        append(text, "%", 1);
        break;
    default:
        refuse_at_run_time("printf", "got a conversion that it does not know");
    }
}

struct text formatted(const char *format, va_list list) {
    struct text text = {NULL, 0, 0};
    struct piece piece;
    struct arguments arguments;
    va_copy(arguments.list, list);
    append(&text, "", 0);
    for (const char *at = take_string(&piece, format); *at;) {
        const char *next = strchrnul(at, '%');
        append(&text, at, (size_t)(next - at));
        if (!*next)
            break;
        struct conversion conversion;
        at = read_conversion(next + 1, &conversion, &arguments);
        print_one(&text, &conversion, &arguments);
    }
    va_end(arguments.list);
    drop(&piece);
    return text;
}

void take_arguments(va_list native, va_list program) { get_bytes(program, native, sizeof(va_list)); }
