/* Buffers that grow, as a vector or a string does, by realloc or by hand.
 *
 *     bench_realloc COUNT BYTES PERCENT SECONDS SEED touched|untouched [realloc|copy]
 *
 * A round grows COUNT buffers from 16 bytes to BYTES, each step to PERCENT (101..1000) of the size before, at random
 * the one or the other, and frees them. Rounds are alike, and begin until SECONDS have passed: where growing means
 * copying, a large buffer takes a thousand times longer. A step is a realloc; or, with copy, a malloc, a memcpy of all
 * bytes, and a free. It writes the last byte of what it added; touched: one byte in every 4 KiB as well. All of these
 * bytes are looked at before a buffer is freed. One operation is one step.
 *
 * Figures: the steps of one buffer, and the page faults of a round.
 */
#include "bench.h"

#include <stdbool.h>

enum { FIRST_BYTES = 16, MAX_STEP_COUNT = 4096 };

struct buffer {
    uint8_t *bytes;
    size_t step; /* it has step_bytes[step] bytes, if it is there */
};

/* Constant during the rounds. */
static size_t step_bytes[MAX_STEP_COUNT];
static size_t step_count;
static bool touches;
static bool copies;

static void compute_steps(size_t last_bytes, uint64_t percent) {
    size_t bytes = FIRST_BYTES;
    while (bytes < last_bytes && step_count < MAX_STEP_COUNT - 1) {
        step_bytes[step_count++] = bytes;
        size_t added = (size_t)((double)bytes * (double)(percent - 100) / 100);
        bytes += added > 0 ? added : 1;
    }
    step_bytes[step_count++] = last_bytes;
}

static uint8_t tag_of(size_t step) { return (uint8_t)(step + 1); }

static uint8_t *move(uint8_t *old, size_t old_bytes, size_t bytes) {
    if (!copies) {
        uint8_t *block = realloc(old, bytes);
        if (!block) {
            bench_fail("out of memory");
        }
        return block;
    }
    uint8_t *block = bench_allocate(bytes);
    if (old) {
        memcpy(block, old, old_bytes);
        free(old);
    }
    return block;
}

/* The multiples of the page step among the bytes that a step adds; true when `visit` was true for all. */
static bool visit_pages(volatile uint8_t *bytes, size_t step, bool (*visit)(volatile uint8_t *, uint8_t)) {
    bool all = true;
    size_t before = step == 0 ? 0 : step_bytes[step - 1];
    size_t first = (before + BENCH_PAGE_STEP - 1) / BENCH_PAGE_STEP * BENCH_PAGE_STEP;
    for (size_t offset = first; touches && offset < step_bytes[step]; offset += BENCH_PAGE_STEP) {
        all &= visit(bytes + offset, tag_of(step));
    }
    return visit(bytes + step_bytes[step] - 1, tag_of(step)) && all;
}

static bool write_byte(volatile uint8_t *byte, uint8_t tag) {
    *byte = tag;
    return true;
}

static bool holds_byte(volatile uint8_t *byte, uint8_t tag) { return *byte == tag; }

static void grow(struct buffer *buffer) {
    size_t next = buffer->bytes ? buffer->step + 1 : 0;
    buffer->bytes = move(buffer->bytes, step_bytes[buffer->step], step_bytes[next]);
    buffer->step = next;
    visit_pages(buffer->bytes, next, write_byte);
}

/* Grows all buffers to their last size; `growing` is room for the indices of those that are not there yet. */
static void grow_all(struct buffer *buffers, size_t count, size_t *growing, struct bench_random random) {
    for (size_t i = 0; i < count; i++) {
        buffers[i] = (struct buffer){0};
        growing[i] = i;
    }
    for (size_t left = count; left > 0;) {
        size_t pick = bench_pick_index(bench_random_next(&random), left);
        struct buffer *buffer = &buffers[growing[pick]];
        grow(buffer);
        if (buffer->step == step_count - 1) {
            growing[pick] = growing[--left];
        }
    }
}

static uint64_t fold_all(const struct buffer *buffers, size_t count) {
    uint64_t checksum = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t step = 0; step < step_count; step++) {
            checksum = bench_fold(checksum, visit_pages(buffers[i].bytes, step, holds_byte));
        }
    }
    return checksum;
}

int main(int argc, char **argv) {
    const char *usage = "bench_realloc COUNT BYTES PERCENT SECONDS SEED touched|untouched [realloc|copy]";
    bench_expect_arguments(argc, 6, 7, usage);
    size_t count = bench_number_between(argv[1], 1, UINT32_MAX);
    compute_steps(bench_number(argv[2], FIRST_BYTES + 1), bench_number_between(argv[3], 101, 1000));
    double duration = bench_seconds(argv[4]);
    const struct bench_random random = bench_random_seeded(bench_number(argv[5], 0), 0);
    touches = bench_choice(argv[6], (const char *const[]){"untouched", "touched", NULL});
    copies = argc > 7 && bench_choice(argv[7], (const char *const[]){"realloc", "copy", NULL});
    struct buffer *buffers = bench_map(count, sizeof *buffers);
    size_t *growing = bench_map(count, sizeof *growing);

    double seconds = 0;
    uint64_t faults = 0;
    uint64_t checksum = 0;
    uint64_t round_count = 0;
    for (; seconds < duration; round_count++) {
        uint64_t faults_before = bench_fault_count();
        double start = bench_now();
        grow_all(buffers, count, growing, random);
        seconds += bench_now() - start;
        faults += bench_fault_count() - faults_before;

        uint64_t found = fold_all(buffers, count);
        checksum = round_count == 0 || found == checksum ? found : bench_fold(checksum, found);
        start = bench_now();
        for (size_t i = 0; i < count; i++) {
            free(buffers[i].bytes);
        }
        seconds += bench_now() - start;
    }

    bench_figure("steps", (double)step_count, "count");
    bench_figure("faults", (double)faults / (double)round_count, "faults");
    bench_close(round_count * count * step_count, seconds, checksum);
    return 0;
}
