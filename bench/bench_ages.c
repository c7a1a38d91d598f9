/* Buffers of all ages, each of which doubles by realloc: vectors, strings and hash tables that come and go by
 * themselves.
 *
 *     bench_ages COUNT BYTES STEPS SEED
 *
 * STEPS times one of COUNT buffers, at random, doubles and is written to where it is new; it begins with 16 bytes. One
 * that would be larger than BYTES is freed, and begins anew at its next turn. One operation is one step. The checksum
 * counts buffers whose bytes were not as they had been written when they were freed.
 */
#include "bench.h"

#include <stdbool.h>

enum { FIRST_BYTES = 16 };

struct buffer {
    uint8_t *bytes;
    size_t size;
};

static uint8_t tag_at(size_t offset) { return (uint8_t)(offset % 251); }

/* The last byte that each doubling has added. */
static bool is_whole(const struct buffer *buffer) {
    for (size_t size = FIRST_BYTES; size <= buffer->size; size *= 2) {
        if (buffer->bytes[size - 1] != tag_at(size)) {
            return false;
        }
    }
    return true;
}

static void grow(struct buffer *buffer) {
    size_t size = buffer->bytes ? buffer->size * 2 : FIRST_BYTES;
    uint8_t *bytes = realloc(buffer->bytes, size);
    if (!bytes) {
        bench_fail("out of memory");
    }
    memset(bytes + buffer->size, 1, size - buffer->size);
    bytes[size - 1] = tag_at(size);
    *buffer = (struct buffer){bytes, size};
}

static uint64_t drop(struct buffer *buffer) {
    uint64_t is_damaged = buffer->bytes && !is_whole(buffer);
    free(buffer->bytes);
    *buffer = (struct buffer){0};
    return is_damaged;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 4, 4, "bench_ages COUNT BYTES STEPS SEED");
    size_t count = bench_number_between(argv[1], 1, UINT32_MAX), most_bytes = bench_number(argv[2], FIRST_BYTES);
    uint64_t steps = bench_number(argv[3], 1), damaged = 0;
    struct bench_random random = bench_random_seeded(bench_number(argv[4], 0), 0);
    struct buffer *buffers = bench_map(count, sizeof *buffers);

    double start = bench_now();
    for (uint64_t i = 0; i < steps; i++) {
        struct buffer *buffer = &buffers[bench_pick_index(bench_random_next(&random), count)];
        if (buffer->size * 2 > most_bytes) {
            damaged += drop(buffer);
        } else {
            grow(buffer);
        }
    }
    for (size_t i = 0; i < count; i++) {
        damaged += drop(&buffers[i]);
    }
    bench_close(steps, bench_now() - start, damaged);
    return 0;
}
