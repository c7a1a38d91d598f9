/* Three tiers of checks.
 *   1. Misuse of the heap by the program: always on, cold; the message is part of hakmem's contract (hak_misuse).
 *   2. HAK_ASSERT: an invariant, in O(1); compiled in every build, evaluated from check level 1 on.
 *   3. HAK_WALK: an invariant over a whole structure; evaluated at check level 2.
 * Both report functions are provided by the os layer: they write without allocating, and abort.
 */
#ifndef HAK_BASE_CHECK_H
#define HAK_BASE_CHECK_H

#include "base/platform.h"

/* What a program did wrong. `offset` and `size` are used as the text of the kind needs them. */
enum hak_misuse_kind {
    HAK_MISUSE_DOUBLE_FREE,      /* "double free of a block of SIZE bytes" */
    HAK_MISUSE_FOREIGN_POINTER,  /* "invalid pointer: not a block of this heap" */
    HAK_MISUSE_FREED_BLOCK,      /* "invalid pointer: a freed block of SIZE bytes" */
    HAK_MISUSE_INTERIOR_POINTER, /* "invalid pointer: OFFSET bytes into a block of SIZE bytes" */
    HAK_MISUSE_FREED_WRITE,      /* "write after free: OFFSET bytes into a freed block of SIZE bytes" */
    HAK_MISUSE_WRONG_SIZE,       /* "wrong size: OFFSET bytes for a block of SIZE bytes" */
    HAK_MISUSE_WRONG_ALIGNMENT,  /* "wrong alignment: OFFSET for a block of SIZE bytes" */
    HAK_MISUSE_OVERFLOW,         /* "overflow: OFFSET bytes behind the end of a block of SIZE bytes were written" */
    HAK_MISUSE_UNDERFLOW,        /* "underflow: OFFSET bytes before a block of SIZE bytes were written" */
    HAK_MISUSE_MISMATCH,         /* "mismatch: a block of SIZE bytes from ...": OFFSET is of pool/canary.h */
};

/* Writes "hakmem: FUNCTION(0xADDRESS): TEXT" to standard error, and aborts. */
_Noreturn HAK_COLD void hak_misuse(enum hak_misuse_kind kind, const char *function, const void *address, size_t offset,
                                   size_t size);

_Noreturn HAK_COLD void hak_assertion_failed(const char *condition, const char *file, int line);

#define HAK_CHECK_AT(level, condition)                                                                                 \
    do {                                                                                                               \
        if (HAK_CHECK_LEVEL >= (level) && HAK_UNLIKELY(!(condition)))                                                  \
            hak_assertion_failed(#condition, __FILE__, __LINE__);                                                      \
    } while (0)

#define HAK_ASSERT(condition) HAK_CHECK_AT(1, condition)
#define HAK_WALK(condition) HAK_CHECK_AT(2, condition)

#endif
