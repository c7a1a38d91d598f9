/* Text into a buffer of fixed size: the one place that formats. Never allocates, never fails: what does not fit is
 * cut off, and `truncated` says so. Safe in signal handlers. */
#ifndef HAK_BASE_FORMAT_H
#define HAK_BASE_FORMAT_H

#include "base/platform.h"

struct hak_text {
    char *start;
    size_t length;   /* without the terminating NUL, which always stands at start[length] */
    size_t capacity; /* bytes at start, at least 1 */
    bool truncated;
};

HAK_INLINE struct hak_text hak_text_in(char *buffer, size_t capacity) {
    buffer[0] = '\0';
    return (struct hak_text){.start = buffer, .length = 0, .capacity = capacity, .truncated = false};
}

/* Appends `format` with these conversions: %s %c %d %u %lu %zu %lx %p %%; a width pads with blanks, on the left, or
 * with '-' on the right (%-20s). */
void hak_text_add(struct hak_text *text, const char *format, ...) HAK_PRINTF(2, 3);

#endif
