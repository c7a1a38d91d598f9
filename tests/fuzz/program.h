/* A program of allocator calls, and the byte string that means it. Any byte string means a program: values out of range
 * wrap round, missing bytes are 0, and what is too much is left out. A program is bounded in steps; what a step may
 * take of memory and time is bounded by execute.c.
 *
 *   header   8 bytes: flags, number of settings, three settings of two bytes each (knob, which of its values)
 *   step     4 bytes: kind and thread, slot and variant, size, alignment or count and what is added to the size
 */
#ifndef HAKMEM_FUZZ_PROGRAM_H
#define HAKMEM_FUZZ_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    PROGRAM_STEPS = 200,
    PROGRAM_THREADS = 4,
    PROGRAM_SLOTS = 64, /* each holds a block, or none */
    PROGRAM_GROUPS = 4, /* each holds many blocks, or none */
    PROGRAM_SETTINGS = 3,
    HEADER_BYTES = 8,
    STEP_BYTES = 4,
    PROGRAM_BYTES = HEADER_BYTES + PROGRAM_STEPS * STEP_BYTES,
};

/* A row each: the name of the step's kind, and how many of 64 codes mean it. */
#define STEP_KINDS(row)                                                                                                \
    row(MALLOC, 6) row(CALLOC, 4) row(REALLOC, 6) row(REALLOCARRAY, 2) row(FREE, 7) row(ALIGNED_ALLOC, 2)              \
        row(POSIX_MEMALIGN, 2) row(MEMALIGN, 2) row(VALLOC, 1) row(PVALLOC, 1) row(USABLE, 1) row(FREE_SIZED, 2)       \
            row(FREE_ALIGNED_SIZED, 1) row(FILL, 4) row(EMPTY, 4) row(TRIM, 2) row(PREWARM, 1) row(STATISTICS, 1)      \
                row(OWNS, 1) row(OVERFLOW, 1) row(END_THREAD, 2) row(FORK, 1) row(REFUSE, 2) row(ALLOW, 1)             \
                    row(KNOB, 1) row(BACKGROUND, 4) row(PROFILE, 1) row(TIGHT, 1)

enum step_kind {
#define STEP_KIND(name, weight) STEP_##name,
    STEP_KINDS(STEP_KIND)
#undef STEP_KIND
        STEP_KIND_COUNT
};

struct step {
    enum step_kind kind;
    unsigned thread, slot, variant; /* variant: 0..3 */
    size_t size;
    unsigned choice; /* 0..31: of an alignment, a count, whatever the kind needs */
    unsigned change; /* 0..7: which change of the size was applied; a second choice for kinds without a size */
};

struct program {
    int is_free_running; /* its threads run as they like; else a step at a time, in the order of the steps */
    int frees_last;      /* threads end before the blocks that are left are freed */
    unsigned setting_count, step_count;
    struct {
        unsigned knob, value;
    } settings[PROGRAM_SETTINGS];
    struct step steps[PROGRAM_STEPS];
};

void program_decode(struct program *program, const uint8_t *bytes, size_t length);

/* What the choice of a step stands for. */
size_t program_alignment(unsigned choice);
unsigned program_count(unsigned choice);

/* The program as text that reads like C. `first_line` comes before each line. */
void program_print(const struct program *program, const char *first_line);

const char *program_kind_name(enum step_kind kind);

/* Changes a byte string into another one, of up to `capacity` bytes, by whole steps and by fields of steps; returns its
 * length. `other` is one to take steps from. The same seed makes the same change. */
size_t program_mutate(uint8_t *bytes, size_t length, size_t capacity, const uint8_t *other, size_t other_length,
                      uint64_t seed);

#endif
