/* Random sequences of every entry point, against a model: the blocks that live, in the order of their addresses, and a
 * pattern in each. A block that overlaps another, is misaligned, not zeroed by calloc or changed behind its owner's
 * back ends the test with the seed and the step.
 *
 *     model single|threads [SEED]
 *
 * The seed is argv[2] or HAK_TEST_SEED, else taken from the clock; HAK_TEST_SECONDS (3) bounds the time. `single`
 * repeats exactly for a seed; with threads, each thread's choices do, their interleaving does not. Slots are shared, so
 * most blocks are freed by another thread than the one that allocated them.
 *
 * Compiled twice: under the standard names, and under hak_* with API_HAK. */
#include "expect.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SLOTS = 4096, THREADS = 6, DENSE_BYTES = 4096, SPARSE_STRIDE = 512 };

#define LIVE_BYTES_MAX (192 * MIB)

struct slot {
    pthread_mutex_t lock;
    unsigned char *block; /* NULL when free */
    size_t size;
    uint64_t stamp; /* what its contents are made from */
};

struct worker {
    pthread_t thread;
    uint64_t state;
    uint64_t step;
    int number;
};

static struct slot slots[SLOTS];
static _Atomic size_t live_bytes;
static uint64_t seed;
static uint64_t end_ns;

#define CHECK(worker, condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            say("seed %llu, thread %d, step %llu: ", (unsigned long long)seed, (worker)->number,                       \
                (unsigned long long)(worker)->step);                                                                   \
            EXPECT(condition, __VA_ARGS__);                                                                            \
        }                                                                                                              \
    } while (0)

/* ---- The model: live ranges, sorted ---- */

struct range {
    uintptr_t start;
    uintptr_t end;
};

static struct range ranges[SLOTS + THREADS];
static size_t range_count;
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;

/* The first range that starts at or above the address. */
static size_t range_position(uintptr_t start) {
    size_t low = 0;
    size_t high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start < start) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A range belongs to the model from after its allocation until before its free. */
static void range_add(const struct worker *worker, const void *block, size_t size) {
    uintptr_t start = (uintptr_t)block;
    uintptr_t end = start + (size ? size : 1);
    pthread_mutex_lock(&ranges_lock);
    size_t at = range_position(start);
    CHECK(worker, at == range_count || ranges[at].start >= end, "block %p of %zu bytes overlaps one at %p", block, size,
          (void *)ranges[at].start);
    CHECK(worker, at == 0 || ranges[at - 1].end <= start, "block %p of %zu bytes overlaps one at %p", block, size,
          (void *)ranges[at - 1].start);
    memmove(&ranges[at + 1], &ranges[at], (range_count - at) * sizeof(ranges[0]));
    ranges[at] = (struct range){start, end};
    range_count++;
    pthread_mutex_unlock(&ranges_lock);
}

static void range_remove(const struct worker *worker, const void *block) {
    pthread_mutex_lock(&ranges_lock);
    size_t at = range_position((uintptr_t)block);
    CHECK(worker, at < range_count && ranges[at].start == (uintptr_t)block, "block %p is not in the model", block);
    range_count--;
    memmove(&ranges[at], &ranges[at + 1], (range_count - at) * sizeof(ranges[0]));
    pthread_mutex_unlock(&ranges_lock);
}

/* ---- Contents: all of a small block; of a large one both ends and a byte here and there ---- */

static unsigned char content(uint64_t stamp, size_t at) {
    return (unsigned char)((stamp + at) * 0x9E3779B97F4A7C15u >> 56);
}

static size_t next_position(size_t at, size_t size) {
    return at < DENSE_BYTES || at + SPARSE_STRIDE >= size ? at + 1 : at + SPARSE_STRIDE;
}

static void contents_write(struct slot *slot) {
    for (size_t at = 0; at < slot->size; at = next_position(at, slot->size)) {
        slot->block[at] = content(slot->stamp, at);
    }
}

/* The first size bytes of the block hold what was written for a block of `written` bytes. */
static void contents_check(const struct worker *worker, const struct slot *slot, const unsigned char *block,
                           size_t written, size_t size) {
    for (size_t at = 0; at < size; at = next_position(at, written)) {
        CHECK(worker, block[at] == content(slot->stamp, at), "block %p of %zu bytes changed at %zu",
              (const void *)block, slot->size, at);
    }
}

static int is_zero(const unsigned char *block, size_t size) {
    return size == 0 || (block[0] == 0 && !memcmp(block, block + 1, size - 1));
}

/* ---- Steps ---- */

static size_t choose_size(uint64_t *state) {
    uint64_t kind = random_next(state) % 1000;
    if (kind < 5) {
        return 0;
    }
    return kind < 700   ? random_size(state, 1, 2 * KIB)
           : kind < 970 ? random_size(state, 1, 64 * KIB)
           : kind < 997 ? random_size(state, 64 * KIB, MIB)
                        : random_size(state, MIB, 16 * MIB);
}

static void *allocate(struct worker *worker, size_t size) {
    uint64_t choice = random_next(&worker->state);
    size_t alignment = (size_t)8 << (choice >> 32) % (choice & 0x7000 ? 6 : 18);
    void *block = NULL;
    switch (choice % 8) {
    case 0:
        block = M(calloc)(1, size);
        CHECK(worker, !block || is_zero(block, size), "calloc of %zu bytes gave dirty %p", size, block);
        return block;
    case 1:
        block = M(memalign)(alignment, size);
        CHECK(worker, is_aligned(block, alignment), "memalign(%zu, %zu) gave %p", alignment, size, block);
        return block;
    case 2: {
        int code = M(posix_memalign)(&block, alignment, size);
        CHECK(worker, code == 0 && is_aligned(block, alignment), "posix_memalign(%zu, %zu) gave %d, %p", alignment,
              size, code, block);
        return block;
    }
    case 3: return M(realloc)(NULL, size);
    default: return M(malloc)(size);
    }
}

static void fill_slot(struct worker *worker, struct slot *slot) {
    size_t size = choose_size(&worker->state);
    if (atomic_load(&live_bytes) + size > LIVE_BYTES_MAX) {
        return;
    }
    unsigned char *block = allocate(worker, size);
    CHECK(worker, block, "no block of %zu bytes", size);
    CHECK(worker, owned(block), "%p is not ours", (void *)block);
    size_t usable = M(malloc_usable_size)(block);
    CHECK(worker, usable >= size, "usable size %zu of %zu", usable, size);
    if (random_next(&worker->state) % 4 == 0) { /* all of it belongs to the owner */
        size = usable;
    }
    range_add(worker, block, size);
    atomic_fetch_add(&live_bytes, size);
    slot->block = block;
    slot->size = size;
    slot->stamp = random_next(&worker->state);
    contents_write(slot);
}

static void resize_slot(struct worker *worker, struct slot *slot) {
    size_t size = choose_size(&worker->state);
    if (size == 0 || atomic_load(&live_bytes) + size > LIVE_BYTES_MAX) {
        return;
    }
    range_remove(worker, slot->block);
    unsigned char *block =
        random_next(&worker->state) % 2 ? M(realloc)(slot->block, size) : M(reallocarray)(slot->block, size, 1);
    CHECK(worker, block, "realloc from %zu to %zu bytes", slot->size, size);
    range_add(worker, block, size);
    contents_check(worker, slot, block, slot->size, size < slot->size ? size : slot->size);
    atomic_fetch_add(&live_bytes, size - slot->size);
    slot->block = block;
    slot->size = size;
    contents_write(slot);
}

static void empty_slot(struct worker *worker, struct slot *slot) {
    range_remove(worker, slot->block);
    M(free)(slot->block);
    atomic_fetch_sub(&live_bytes, slot->size);
    slot->block = NULL;
}

static void step(struct worker *worker) {
    struct slot *slot = &slots[random_next(&worker->state) % SLOTS];
    if (pthread_mutex_trylock(&slot->lock) != 0) {
        return;
    }
    uint64_t choice = random_next(&worker->state) % 16;
    if (!slot->block) {
        fill_slot(worker, slot);
    } else {
        contents_check(worker, slot, slot->block, slot->size, slot->size);
        if (choice < 4) {
            resize_slot(worker, slot);
        } else if (choice < 15) {
            empty_slot(worker, slot);
        }
    }
    pthread_mutex_unlock(&slot->lock);
}

/* Now and then a worker empties a run of slots, so that slabs become empty and change their class. */
static void sweep(struct worker *worker) {
    size_t first = random_next(&worker->state) % SLOTS;
    size_t count = random_next(&worker->state) % SLOTS;
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = &slots[(first + i) % SLOTS];
        if (pthread_mutex_trylock(&slot->lock) == 0) {
            if (slot->block) {
                contents_check(worker, slot, slot->block, slot->size, slot->size);
                empty_slot(worker, slot);
            }
            pthread_mutex_unlock(&slot->lock);
        }
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (worker->step = 0; worker->step % 256 || now_ns() < end_ns; worker->step++) {
        if (worker->step % 20000 == 19999) {
            sweep(worker);
        } else {
            step(worker);
        }
    }
    return NULL;
}

/* ---- Cases ---- */

static void finish(void) {
    struct worker last = {.number = -1};
    for (size_t i = 0; i < SLOTS; i++) {
        if (slots[i].block) {
            contents_check(&last, &slots[i], slots[i].block, slots[i].size, slots[i].size);
            empty_slot(&last, &slots[i]);
        }
    }
    EXPECT(range_count == 0 && live_bytes == 0, "%zu blocks and %zu bytes left in the model", range_count,
           (size_t)live_bytes);
}

static void run(int threads) {
    static struct worker workers[THREADS];
    const char *seconds = getenv("HAK_TEST_SECONDS");
    end_ns = now_ns() + (seconds ? strtoull(seconds, NULL, 10) : 3) * 1000000000u;
    for (size_t i = 0; i < SLOTS; i++) {
        pthread_mutex_init(&slots[i].lock, NULL);
    }
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].state = seed + (uint64_t)i * 0x1234567;
        if (threads == 1) {
            work(&workers[i]);
            continue;
        }
        int code = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        EXPECT(code == 0, "pthread_create gave %d", code);
    }
    uint64_t steps = 0;
    for (int i = 0; i < threads; i++) {
        if (threads > 1) {
            pthread_join(workers[i].thread, NULL);
        }
        steps += workers[i].step;
    }
    finish();
    say("%llu steps\n", (unsigned long long)steps);
}

static void single(void) { run(1); }

static void threads(void) { run(THREADS); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"single", single}, {"threads", threads}};
    const char *given = argc > 2 ? argv[2] : getenv("HAK_TEST_SEED");
    const char *seconds = getenv("HAK_TEST_SECONDS");
    seed = given ? strtoull(given, NULL, 10) : now_ns() % 1000000000;
    say("seed %llu\n", (unsigned long long)seed);
    return run_case(argc, argv, cases, COUNT_OF(cases), 30 + (seconds ? (unsigned)atoi(seconds) : 3));
}
