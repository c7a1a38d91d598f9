#include "base/format.h"

#include <stdarg.h>
#include <string.h>

static void add_char(struct hak_text *text, char c) {
    if (text->length + 1 >= text->capacity) {
        text->truncated = true;
        return;
    }
    text->start[text->length++] = c;
    text->start[text->length] = '\0';
}

static void add_padded(struct hak_text *text, const char *chars, size_t length, int width) {
    size_t field = (size_t)(width < 0 ? -width : width);
    for (size_t i = length; width > 0 && i < field; i++) add_char(text, ' ');
    for (size_t i = 0; i < length; i++) add_char(text, chars[i]);
    for (size_t i = length; width < 0 && i < field; i++) add_char(text, ' ');
}

static void add_number(struct hak_text *text, uint64_t value, uint32_t base, const char *prefix, int width) {
    char digits[24];
    size_t at = sizeof digits;
    do {
        digits[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value != 0);
    size_t prefix_length = strlen(prefix);
    at -= prefix_length;
    memcpy(digits + at, prefix, prefix_length);
    add_padded(text, digits + at, sizeof digits - at, width);
}

static void add_list(struct hak_text *text, const char *format, va_list arguments) {
    for (const char *at = format; *at != '\0'; at++) {
        if (*at != '%') {
            add_char(text, *at);
            continue;
        }
        at++;
        bool left = *at == '-';
        if (left) at++;
        int width = 0;
        for (; *at >= '0' && *at <= '9'; at++) width = width * 10 + (*at - '0');
        if (left) width = -width;
        bool wide = *at == 'l' || *at == 'z';
        if (wide) at++;
        switch (*at) {
        case 's': {
            const char *chars = va_arg(arguments, const char *);
            add_padded(text, chars, strlen(chars), width);
            break;
        }
        case 'c': add_char(text, (char)va_arg(arguments, int)); break;
        case 'd': {
            int value = va_arg(arguments, int);
            add_number(text, value < 0 ? -(uint64_t)value : (uint64_t)value, 10, value < 0 ? "-" : "", width);
            break;
        }
        case 'u':
            add_number(text, wide ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned), 10, "", width);
            break;
        case 'x': add_number(text, va_arg(arguments, unsigned long), 16, "", width); break;
        case 'p': add_number(text, (uintptr_t)va_arg(arguments, void *), 16, "0x", width); break;
        default: add_char(text, *at); break;
        }
    }
}

void hak_text_add(struct hak_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_list(text, format, arguments);
    va_end(arguments);
}
