/* What is known of the blocks that live: where they are, that no two overlap, what is in each. It allocates nothing. */
#ifndef HAKMEM_FUZZ_ORACLE_H
#define HAKMEM_FUZZ_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#include "program.h"

struct block {
    unsigned char *start; /* NULL for none */
    size_t asked;         /* as malloc was told */
    size_t size;          /* what of it has a pattern: `asked` or all that is usable */
    size_t alignment;     /* as was asked for; 16 for blocks that were not */
    uint32_t id;          /* what the pattern is made of */
};

/* Ends the process by SIGABRT with a line that begins with "fuzz: step N: ". */
_Noreturn void oracle_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The step that messages name, of the calling thread. */
void oracle_at_step(unsigned step, const struct program *program);

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) oracle_fail(__VA_ARGS__);                                                                    \
    } while (0)

void oracle_reset(void);

/* A range of usable bytes lives; the first function fails when it overlaps another, the second when it is not known. */
void oracle_add(const void *start, size_t bytes);
void oracle_remove(const void *start);

/* No thread is in one of the two between these: for a fork. */
void oracle_lock(void);
void oracle_unlock(void);

void oracle_write(const struct block *block);
/* The first `size` bytes at `start` are what was written to the block. */
void oracle_check_part(const struct block *block, const unsigned char *start, size_t size);
void oracle_check(const struct block *block);
/* All of a block that is not too large for that; of the others both ends, and a part of their pages. */
void oracle_check_zero(const unsigned char *start, size_t size);

#endif
