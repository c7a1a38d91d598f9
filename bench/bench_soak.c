/* A long run of a program that keeps changing: does its memory, or the number of its mappings, grow with time?
 *
 *     bench_soak SECONDS BYTES SEED THREADS
 *
 * Cycles begin until SECONDS have passed, all of the same phases: blocks of 16 B..1 KiB, of 64 B..32 KiB, buffers that grow by
 * realloc, blocks of 32 KiB..8 MiB, and of 16 B..1 MiB; sizes are log-uniform, and an eighth of a lane at most. In each of
 * THREADS lanes a phase fills BYTES / THREADS, replaces as much at random, hands some blocks over to other lanes, and in the
 * end frees fifteen of sixteen; the rest lives on into later phases. Each time there are new threads. All pages of a block are
 * written. At the end of a cycle nothing happens for a hundredth of SECONDS, two seconds at most. One operation is one malloc,
 * realloc or free.
 *
 * Figures: the number of cycles; rss_drift, by how much resident memory changes through the last two thirds of the time:
 * along a straight line through the means of the cycles, which are all taken at the same moments (each phase with all its
 * blocks there, and the end), relative to their mean; 0 for fewer than three cycles; rss_end, after the last cycle;
 * mappings_most, the most lines in /proc/self/maps at any of these moments, and mappings_end.
 */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    MOST_CYCLES = 1 << 16,
    LEAST_MEAN_BYTES = 128, /* of the blocks of a full lane; those of the first phase have 250 */
    SHARED_COUNT = 256,     /* blocks on their way from lane to lane */
    HANDED_OVER = 16,       /* one in so many new blocks */
    SURVIVING = 16,         /* one in so many blocks, at the end of a phase */
    GROWING_COUNT = 64,     /* buffers of a lane that grow at a time */
    LARGEST_SHARE = 8,      /* of a lane */
};

/* Sizes from 1 << least_shift to 1 << (least_shift + doublings). */
struct phase {
    unsigned least_shift;
    unsigned doublings;
    bool grows; /* by realloc, up to the largest size */
};

static const struct phase phases[] = {{4, 6, false}, {6, 9, false}, {4, 6, true}, {15, 8, false}, {4, 16, false}};
enum { PHASE_COUNT = sizeof phases / sizeof *phases, MOMENT_COUNT = PHASE_COUNT + 1 };

/* What every block begins with. Its last byte is the tag. */
struct header {
    uint32_t bytes;
    uint8_t tag;
};

/* Belongs to the thread that works in it, if there is one; handed on by pthread_create and pthread_join. */
struct lane {
    _Alignas(64) struct header **blocks;
    size_t count;
    size_t live_bytes;
    uint64_t operations;
    uint64_t damaged; /* blocks that did not hold what was written */
    struct bench_random random;
    const struct phase *phase;
    pthread_t thread;
};

/* As seen at its end. */
struct cycle {
    double seconds; /* since the start of the first */
    double resident_bytes;
};

/* Constant while there are threads. */
static struct lane *lanes;
static size_t lane_count;
static size_t lane_bytes;
static size_t block_limit; /* of a lane */

static _Atomic(struct header *) shared[SHARED_COUNT];

/* ---- Blocks -------------------------------------------------------------------------------------------------------- */

static size_t pick_size(const struct phase *phase, uint64_t draw) {
    size_t octave = (size_t)1 << (phase->least_shift + bench_pick_index(draw, phase->doublings));
    size_t bytes = octave + (size_t)((draw >> 32) * octave >> 32);
    size_t largest = lane_bytes / LARGEST_SHARE;
    return bytes < largest ? bytes : largest;
}

static struct header *write_block(void *block, size_t bytes, uint64_t draw) {
    struct header *header = block;
    bench_touch_pages(block, bytes, (uint8_t)draw);
    *header = (struct header){.bytes = (uint32_t)bytes, .tag = (uint8_t)draw};
    return header;
}

static void check_block(struct lane *lane, const struct header *header) {
    lane->damaged += ((const uint8_t *)header)[header->bytes - 1] != header->tag;
}

static void add_block(struct lane *lane, struct header *header) {
    lane->blocks[lane->count++] = header;
    lane->live_bytes += header->bytes;
}

static struct header *remove_block(struct lane *lane, size_t i) {
    struct header *header = lane->blocks[i];
    lane->blocks[i] = lane->blocks[--lane->count];
    lane->live_bytes -= header->bytes;
    return header;
}

static size_t new_block(struct lane *lane) {
    uint64_t draw = bench_random_next(&lane->random);
    size_t bytes = pick_size(lane->phase, draw);
    add_block(lane, write_block(bench_allocate(bytes), bytes, draw));
    lane->operations++;
    return bytes;
}

static void free_block(struct lane *lane, size_t i) {
    struct header *header = remove_block(lane, i);
    check_block(lane, header);
    free(header);
    lane->operations++;
}

static size_t grow_block(struct lane *lane, size_t i) {
    struct header *header = lane->blocks[i];
    size_t had = header->bytes;
    size_t bytes = had + had / 2;
    check_block(lane, header);
    struct header *grown = realloc(header, bytes);
    if (!grown) {
        bench_fail("out of memory");
    }
    lane->damaged += grown->bytes != had;
    lane->blocks[i] = write_block(grown, bytes, bench_random_next(&lane->random));
    lane->live_bytes += bytes - had;
    lane->operations++;
    return bytes;
}

/* ---- A phase of a lane --------------------------------------------------------------------------------------------- */

static size_t pick_block(struct lane *lane, size_t count) {
    return bench_pick_index(bench_random_next(&lane->random), count);
}

static void make_room(struct lane *lane) {
    while (lane->count > 0 && (lane->live_bytes > lane_bytes || lane->count == block_limit)) {
        free_block(lane, pick_block(lane, lane->count));
    }
}

/* A block for one of another lane, or for none. */
static void hand_over(struct lane *lane) {
    struct header *header = remove_block(lane, pick_block(lane, lane->count));
    /* Release: the next holder finds it written; acquire: so are we. */
    header = atomic_exchange_explicit(&shared[pick_block(lane, SHARED_COUNT)], header, memory_order_acq_rel);
    if (header) {
        add_block(lane, header);
    }
}

static void replace(struct lane *lane) {
    for (size_t written = 0; written < 2 * lane_bytes;) {
        make_room(lane);
        written += new_block(lane);
        if (pick_block(lane, HANDED_OVER) == 0) {
            hand_over(lane);
        }
    }
}

/* A buffer that is as large as one may be makes place for another. */
static void grow(struct lane *lane) {
    size_t growing_count = block_limit - 1 < GROWING_COUNT ? block_limit - 1 : GROWING_COUNT;
    for (size_t written = 0; written < 2 * lane_bytes;) {
        make_room(lane);
        size_t i = lane->count < growing_count ? lane->count : pick_block(lane, growing_count);
        if (i < lane->count && lane->blocks[i]->bytes + lane->blocks[i]->bytes / 2 <= lane_bytes / LARGEST_SHARE) {
            written += grow_block(lane, i);
            continue;
        }
        if (i < lane->count) {
            free_block(lane, i);
        }
        written += new_block(lane);
    }
}

static void *work(void *argument) {
    struct lane *lane = argument;
    if (lane->phase->grows) {
        grow(lane);
    } else {
        replace(lane);
    }
    return NULL;
}

static void *free_most(void *argument) {
    struct lane *lane = argument;
    for (size_t i = lane->count; i-- > 0;) {
        if (pick_block(lane, SURVIVING) != 0) {
            free_block(lane, i);
        }
    }
    return NULL;
}

/* By a new thread in each lane. Returns the time it took. */
static double run_in_lanes(void *(*step)(void *lane), const struct phase *phase) {
    double start = bench_now();
    for (size_t i = 0; i < lane_count; i++) {
        lanes[i].phase = phase;
        if (pthread_create(&lanes[i].thread, NULL, step, &lanes[i]) != 0) {
            bench_fail("no thread");
        }
    }
    for (size_t i = 0; i < lane_count; i++) {
        pthread_join(lanes[i].thread, NULL);
    }
    return bench_now() - start;
}

/* ---- Cycles -------------------------------------------------------------------------------------------------------- */

/* Allocates nothing. */
static uint64_t count_mappings(void) {
    char text[4096];
    uint64_t lines = 0;
    int descriptor = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return 0;
    }
    for (ssize_t length; (length = read(descriptor, text, sizeof text)) > 0;) {
        for (ssize_t i = 0; i < length; i++) {
            lines += text[i] == '\n';
        }
    }
    close(descriptor);
    return lines;
}

struct seen {
    double resident_bytes; /* sum over the moments of a cycle */
    uint64_t mappings_most;
};

static void look(struct seen *seen) {
    seen->resident_bytes += (double)bench_resident_bytes();
    uint64_t mappings = count_mappings();
    seen->mappings_most = mappings > seen->mappings_most ? mappings : seen->mappings_most;
}

/* Returns the time of its phases. */
static double run_cycle(struct seen *seen, double rest_seconds) {
    double seconds = 0;
    seen->resident_bytes = 0;
    for (size_t i = 0; i < PHASE_COUNT; i++) {
        seconds += run_in_lanes(work, &phases[i]);
        look(seen);
        seconds += run_in_lanes(free_most, &phases[i]);
    }
    bench_sleep(rest_seconds);
    look(seen);
    return seconds;
}

/* How much resident memory changes from the first cycle to the last, in parts of its mean, along the line of least squares. */
static double drift_of(const struct cycle *cycles, size_t count) {
    double mean_seconds = 0;
    double mean_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        mean_seconds += cycles[i].seconds / (double)count;
        mean_bytes += cycles[i].resident_bytes / (double)count;
    }
    double products = 0;
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        double seconds = cycles[i].seconds - mean_seconds;
        products += seconds * (cycles[i].resident_bytes - mean_bytes);
        squares += seconds * seconds;
    }
    double slope = products / squares;
    return slope * (cycles[count - 1].seconds - cycles[0].seconds) / mean_bytes;
}

static double late_drift(const struct cycle *cycles, size_t count) {
    size_t first = 0;
    while (first < count && cycles[first].seconds < cycles[count - 1].seconds / 3) {
        first++;
    }
    return count - first < 3 ? 0 : drift_of(cycles + first, count - first);
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 4, 4, "bench_soak SECONDS BYTES SEED THREADS");
    double duration = bench_seconds(argv[1]);
    uint64_t bytes = bench_number_between(argv[2], 1 << 20, UINT32_MAX);
    uint64_t seed = bench_number(argv[3], 0);
    lane_count = bench_number_between(argv[4], 1, 256);
    lane_bytes = bytes / lane_count;
    block_limit = lane_bytes / LEAST_MEAN_BYTES;
    lanes = bench_map(lane_count, sizeof *lanes);
    for (size_t i = 0; i < lane_count; i++) {
        lanes[i].blocks = bench_map(block_limit, sizeof *lanes[i].blocks);
        lanes[i].random = bench_random_seeded(seed, i);
    }
    struct cycle *cycles = bench_map(MOST_CYCLES, sizeof *cycles);

    struct seen seen = {0};
    size_t cycle_count = 0;
    double seconds = 0;
    double start = bench_now();
    while (cycle_count < MOST_CYCLES && bench_now() - start < duration) {
        seconds += run_cycle(&seen, duration < 200 ? duration / 100 : 2);
        cycles[cycle_count++] = (struct cycle){bench_now() - start, seen.resident_bytes / MOMENT_COUNT};
    }

    bench_figure("cycles", (double)cycle_count, "count");
    bench_figure("rss_drift", 100 * late_drift(cycles, cycle_count), "%");
    bench_figure("rss_end", (double)bench_resident_bytes(), "bytes");
    bench_figure("mappings_most", (double)seen.mappings_most, "count");
    bench_figure("mappings_end", (double)count_mappings(), "count");
    uint64_t operations = 0;
    uint64_t damaged = 0;
    for (size_t i = 0; i < lane_count; i++) {
        operations += lanes[i].operations;
        damaged += lanes[i].damaged;
    }
    bench_close(operations, seconds, bench_fold(lane_count, damaged));
    return 0;
}
