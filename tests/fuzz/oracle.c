#include "oracle.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { END_BYTES = 64, PAGE_BYTES = 4096, PAGE_PART = 8, PAGES_LOOKED_AT = 24, DENSE_BYTES = 512 };

static __thread unsigned step_now;
static __thread const char *kind_now = "start";

void oracle_at_step(unsigned step, const struct program *program) {
    step_now = step;
    kind_now = step < program->step_count ? program_kind_name(program->steps[step].kind) : "end";
}

void oracle_fail(const char *format, ...) {
    char line[512];
    int length = snprintf(line, sizeof line, "fuzz: step %u: %s: ", step_now, kind_now);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
    line[length++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written;
    abort();
}

/* ---- Ranges that live, by their addresses ----------------------------------------------------------------------- */

struct range {
    uintptr_t start, end;
};

static struct range ranges[PROGRAM_SLOTS + PROGRAM_THREADS + 1];
static size_t range_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void oracle_reset(void) { range_count = 0; }
void oracle_lock(void) { pthread_mutex_lock(&lock); }
void oracle_unlock(void) { pthread_mutex_unlock(&lock); }

static size_t position(uintptr_t start) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start < start) low = middle + 1;
        else high = middle;
    }
    return low;
}

void oracle_add(const void *start, size_t bytes) {
    uintptr_t first = (uintptr_t)start, end = first + (bytes == 0 ? 1 : bytes);
    oracle_lock();
    size_t at = position(first);
    EXPECT(at == range_count || ranges[at].start >= end, "block %p of %zu bytes overlaps one at %p", start, bytes,
           (void *)ranges[at].start);
    EXPECT(at == 0 || ranges[at - 1].end <= first, "block %p of %zu bytes overlaps one at %p", start, bytes,
           (void *)ranges[at - 1].start);
    memmove(&ranges[at + 1], &ranges[at], (range_count - at) * sizeof ranges[0]);
    ranges[at] = (struct range){first, end};
    range_count++;
    oracle_unlock();
}

void oracle_remove(const void *start) {
    oracle_lock();
    size_t at = position((uintptr_t)start);
    EXPECT(at < range_count && ranges[at].start == (uintptr_t)start, "the tests have lost block %p", start);
    range_count--;
    memmove(&ranges[at], &ranges[at + 1], (range_count - at) * sizeof ranges[0]);
    oracle_unlock();
}

/* ---- Contents: all of a small block; of others both ends, and the beginnings of up to PAGES_LOOKED_AT pages ----- */

static unsigned char content(uint32_t id, size_t at) {
    return (unsigned char)((id * UINT64_C(0xD1B54A32D192ED03) + at * UINT64_C(0x9E3779B97F4A7C15)) >> 56);
}

static size_t page_step(size_t size) {
    size_t pages = size / PAGE_BYTES / PAGES_LOOKED_AT;
    return (pages == 0 ? 1 : pages) * PAGE_BYTES;
}

/* The part after the one at `at`; `size` for none. Parts are the first and last 64 bytes, and 8 at each step. */
static size_t next_part(size_t at, size_t size) {
    if (size <= DENSE_BYTES || at >= size - END_BYTES) return size;
    size_t next = at / page_step(size) * page_step(size) + page_step(size);
    return next < size - END_BYTES ? next : size - END_BYTES;
}

static size_t part_end(size_t at, size_t size) {
    if (size <= DENSE_BYTES) return size;
    size_t end = at == 0 || at == size - END_BYTES ? at + END_BYTES : at + PAGE_PART;
    return end < size ? end : size;
}

void oracle_write(const struct block *block) {
    for (size_t at = 0; at < block->size; at = next_part(at, block->size))
        for (size_t i = at; i < part_end(at, block->size); i++) block->start[i] = content(block->id, i);
}

void oracle_check_part(const struct block *block, const unsigned char *start, size_t size) {
    for (size_t at = 0; at < size; at = next_part(at, block->size))
        for (size_t i = at; i < part_end(at, block->size) && i < size; i++)
            EXPECT(start[i] == content(block->id, i), "block %p of %zu bytes changed at %zu", (const void *)start,
                   block->size, i);
}

void oracle_check(const struct block *block) { oracle_check_part(block, block->start, block->size); }

void oracle_check_zero(const unsigned char *start, size_t size) {
    enum { WHOLE_BYTES = 1 << 18, STEPS = 256 };
    size_t step = size <= WHOLE_BYTES ? 1 : size / PAGE_BYTES > STEPS ? size / STEPS : PAGE_BYTES;
    if (size == 0) return;
    if (step == 1) {
        EXPECT(start[0] == 0 && memcmp(start, start + 1, size - 1) == 0, "%zu bytes from calloc are not zero", size);
        return;
    }
    for (size_t at = 0; at < size; at += step) {
        size_t page = at / PAGE_BYTES * PAGE_BYTES;
        for (size_t i = page; i < page + PAGE_PART && i < size; i++)
            EXPECT(start[i] == 0, "%zu bytes from calloc are not zero at %zu", size, i);
    }
    for (size_t i = size - END_BYTES; i < size; i++)
        EXPECT(start[i] == 0, "%zu bytes from calloc are not zero at %zu", size, i);
}
