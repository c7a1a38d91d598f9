/* proc: what helpers read of a process. */
#ifndef HAK_LAB_PROC_H
#define HAK_LAB_PROC_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fields of /proc/PID/stat, as proc(5) counts them. */
enum {
    FIELD_CODE = 26,  /* where its code begins; 1: that may not be told, 0: it has ended */
    FIELD_STACK = 28, /* where its stack began; 0: as above */
};

/* The beginning of a file of /proc, empty if there is none. */
static inline bool read_text(const char *path, char *text, size_t capacity) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, capacity - 1);
    if (file >= 0) {
        close(file);
    }
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* A field after the second, which is a name and may hold anything; 0 where it is missing. */
static inline unsigned long long number_of_field(const char *stat, int field) {
    const char *at = strrchr(stat, ')');
    for (; at && field > 2; field--) {
        at = strchr(at + 1, ' ');
    }
    return at ? strtoull(at, NULL, 10) : 0;
}

#endif
