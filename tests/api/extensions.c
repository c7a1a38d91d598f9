/* What hakmem.h has beyond the standard interface: versions, sizes, ownership, moves, purge, prewarm, statistics.
 * Compiled twice: linked to libhakmem.so, and to the core that has the hak_* names only (API_HAK). */
#include "expect.h"

#include <errno.h>
#include <pthread.h>

static void version(void) {
    char wanted[32];
    snprintf(wanted, sizeof(wanted), "%d.%d.%d", HAK_VERSION_MAJOR, HAK_VERSION_MINOR, HAK_VERSION_PATCH);
    EXPECT(!strcmp(hak_version(), wanted), "hak_version() is %s, the header's is %s", hak_version(), wanted);
}

static int global_variable;

static void owns(void) {
    static const size_t sizes[] = {0, 1, 16, 100, 1024, 5000, 40000, 300000, 3 * MIB, 100 * MIB};
    int local = 0;
    EXPECT(hak_owns(NULL) == 0, "hak_owns(NULL)");
    EXPECT(hak_owns(&local) == 0, "hak_owns of the stack");
    EXPECT(hak_owns(&global_variable) == 0, "hak_owns of a variable");
    EXPECT(hak_owns((void *)(uintptr_t)owns) == 0, "hak_owns of code");
    EXPECT(hak_owns((void *)(uintptr_t)0x40) == 0, "hak_owns(0x40)");
    EXPECT(hak_owns((void *)(uintptr_t)0x8000000000000000u) == 0, "hak_owns of a non-canonical address");
    EXPECT(hak_owns((void *)UINTPTR_MAX) == 0, "hak_owns of the last address");
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char *block = hak_malloc(sizes[i]);
        EXPECT(block && hak_owns(block) == 1, "hak_owns of a block of %zu bytes", sizes[i]);
        EXPECT(!sizes[i] || (hak_owns(block + sizes[i] - 1) == 1 && hak_owns(block + sizes[i] / 2) == 1),
               "hak_owns inside a block of %zu bytes", sizes[i]);
        hak_free(block);
        block = hak_memalign(MIB, sizes[i]);
        EXPECT(block && hak_owns(block) == 1, "hak_owns of an aligned block of %zu bytes", sizes[i]);
        hak_free(block);
    }
}

/* In the secure build, which alone can look at its heap. */
static int ends_where_asked(void) { return hak_heap_check() != ENOTSUP; }

/* A fresh heap is small: some of its blocks are wider than the good size, unless each ends where it was asked. */
static void good_size(void) {
    size_t wider = 0;
    for (size_t size = 0; size < 100 * MIB; size += size < 40000 ? 1 : size / 5) {
        size_t good = hak_malloc_good_size(size);
        EXPECT(good >= size && hak_malloc_good_size(good) == good, "the good size of %zu is %zu", size, good);
        char *block = hak_malloc(size);
        size_t usable = hak_malloc_usable_size(block);
        EXPECT(block && usable >= good, "%zu bytes have less than %zu", size, good);
        EXPECT(usable == good || size > 1000, "%zu bytes have %zu, not %zu", size, usable, good);
        wider += size < 32000 && usable > good;
        hak_free(block);
    }
    EXPECT((wider > 0) == !ends_where_asked(), "%zu blocks are wider than their good size", wider);
    EXPECT(hak_malloc_good_size(SIZE_MAX) == SIZE_MAX, "the good size of SIZE_MAX");
    EXPECT(hak_malloc_good_size((size_t)PTRDIFF_MAX + 1) == (size_t)PTRDIFF_MAX + 1, "of more than can be");
}

static void at_least(void) {
    for (size_t size = 0; size < 100 * MIB; size += size < 40000 ? 1 : size / 5) {
        size_t usable = 0;
        char *block = hak_alloc_at_least(size, &usable);
        EXPECT(block && usable >= size && usable == hak_malloc_usable_size(block), "%zu bytes, usable %zu", size,
               usable);
        memset(block, 1, usable);
        hak_free_sized(block, usable - (usable - size) / 2);
    }
    size_t usable = 12345;
    EXPECT_REFUSED(ENOMEM, hak_alloc_at_least(opaque(SIZE_MAX), &usable));
    EXPECT(usable == 12345, "a refused hak_alloc_at_least wrote %zu", usable);
}

static size_t slabs_now(void) {
    struct hak_statistics stats;
    hak_stats(&stats, sizeof(stats));
    return stats.slabs;
}

/* Asks for all blocks, and moves those that are named; how many. Where each ends where it was asked, one may move to
 * blocks of another size, which lie elsewhere. */
static size_t move_named(unsigned char **blocks, size_t count) {
    size_t moved = 0;
    int is_exact = ends_where_asked();
    for (size_t i = 0; i < count; i++) {
        if (!hak_should_move(blocks[i])) continue;
        size_t size = hak_malloc_usable_size(blocks[i]);
        unsigned char *target = hak_mallocx(size, HAK_MALLOCX_TCACHE_NONE);
        EXPECT(target && (target < blocks[i] || is_exact), "block %p was named, and moved to %p", (void *)blocks[i],
               (void *)target);
        memcpy(target, blocks[i], size);
        hak_dallocx(blocks[i], HAK_MALLOCX_TCACHE_NONE);
        blocks[i] = target;
        moved++;
    }
    return moved;
}

/* A heap of blocks of one size, of which one in `keep_one_in` is left, in random order; what moving them gains. */
static void defragment(size_t size, size_t count, size_t keep_one_in) {
    static unsigned char *blocks[400000];
    uint64_t random = size;
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        blocks[i] = hak_malloc(size);
        EXPECT(blocks[i], "hak_malloc(%zu)", size);
        memset(blocks[i], (int)(i % 251), size);
    }
    for (size_t i = 0; i < count; i++) {
        if (random_next(&random) % keep_one_in) hak_free(blocks[i]);
        else blocks[left++] = blocks[i];
    }
    for (size_t i = left; i > 1; i--) {
        size_t other = random_next(&random) % i;
        unsigned char *swapped = blocks[i - 1];
        blocks[i - 1] = blocks[other];
        blocks[other] = swapped;
    }
    hak_purge();
    size_t slabs = slabs_now();
    size_t resident = resident_bytes();
    size_t passes = 1;
    while (move_named(blocks, left)) {
        EXPECT(passes++ < 20, "blocks of %zu bytes are named again and again", size);
    }
    hak_purge();
    /* The secure build's slabs have a page less, for a guard, and its blocks a word more. */
    size_t least = ends_where_asked() ? left * (size + sizeof(uint64_t)) / (60 * KIB) : left * size / (64 * KIB);
    EXPECT(slabs_now() < slabs / 2 && slabs_now() <= least + least / 4 + 80,
           "slabs of %zu bytes: %zu, after %zu passes %zu; the blocks would fill %zu", size, slabs, passes, slabs_now(),
           least);
    EXPECT(size > 1000 || resident_bytes() + (slabs - slabs_now()) * 16 * KIB < resident,
           "blocks of %zu bytes: resident %zu, then %zu", size, resident, resident_bytes());
    for (size_t i = 0; i < left; i++) {
        EXPECT(!memcmp(blocks[i], blocks[i] + 1, size - 1), "a moved block of %zu bytes changed", size);
        hak_free(blocks[i]);
    }
}

/* Only the secure build can; what it finds is tested with that (abuse.secure_build). */
static void heap_check(void) {
    char *block = hak_malloc(100);
    int result = hak_heap_check();
    EXPECT(result == 0 || result == ENOTSUP, "hak_heap_check() gave %d", result);
    hak_free(block);
}

static void should_move(void) {
    static char global[100];
    EXPECT(!hak_should_move(NULL) && !hak_should_move(global) && !hak_should_move((void *)UINTPTR_MAX),
           "what is no block was named");
    char *large = hak_malloc(100000);
    EXPECT(!hak_should_move(large), "a large block was named");
    hak_free(large);
    defragment(64, 400000, 10);
    defragment(500, 100000, 4);
    defragment(5000, 20000, 5);
    defragment(20000, 4000, 4);
}

/* Blocks of a heap that is full are left where they are, but for those of the last slab. */
static void should_stay(void) {
    static void *blocks[20000];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = hak_malloc(200);
    }
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            EXPECT(!hak_should_move(blocks[i]), "block %zu of a full heap was named", i);
        }
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i += 20) { /* less than an eighth of each slab */
        hak_free(blocks[i]);
        blocks[i] = NULL;
    }
    hak_purge();
    size_t named = 0;
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        named += blocks[i] && hak_should_move(blocks[i]);
    }
    EXPECT(named <= 64 * KIB / 200, "%zu blocks of a heap that is nearly full were named", named);
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        hak_free(blocks[i]);
    }
}

enum { MOVERS = 4, MOVED = 20000 };

/* Threads that move their own blocks while others allocate and free beside them. */
static void *move_thread(void *seed) {
    unsigned char **blocks = hak_calloc(MOVED, sizeof(*blocks));
    uint64_t random = (uint64_t)(uintptr_t)seed;
    EXPECT(blocks, "hak_calloc");
    for (int round = 0; round < 6; round++) {
        size_t left = 0;
        for (size_t i = 0; i < MOVED; i++) {
            if (!blocks[i]) {
                blocks[i] = hak_malloc(100);
                EXPECT(blocks[i], "hak_malloc");
                memset(blocks[i], (int)(uintptr_t)seed, 100);
            }
        }
        for (size_t i = 0; i < MOVED; i++) {
            if (random_next(&random) % 5) hak_free(blocks[i]);
            else blocks[left++] = blocks[i];
        }
        for (size_t i = 0; i < left; i++) {
            if (!hak_should_move(blocks[i])) continue;
            unsigned char *target = hak_mallocx(100, HAK_MALLOCX_TCACHE_NONE);
            EXPECT(target, "hak_mallocx");
            memcpy(target, blocks[i], 100);
            hak_dallocx(blocks[i], HAK_MALLOCX_TCACHE_NONE);
            blocks[i] = target;
        }
        for (size_t i = 0; i < left; i++) {
            EXPECT(blocks[i][0] == (unsigned char)(uintptr_t)seed && !memcmp(blocks[i], blocks[i] + 1, 99),
                   "a block of thread %d changed", (int)(uintptr_t)seed);
        }
        memset(blocks + left, 0, (MOVED - left) * sizeof(*blocks));
    }
    for (size_t i = 0; i < MOVED; i++) {
        hak_free(blocks[i]);
    }
    hak_free(blocks);
    return NULL;
}

static void movers(void) {
    pthread_t threads[MOVERS];
    for (size_t i = 0; i < MOVERS; i++) {
        int code = pthread_create(&threads[i], NULL, move_thread, (void *)(i + 1));
        EXPECT(code == 0, "pthread_create gave %d", code);
    }
    for (size_t i = 0; i < MOVERS; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void purge(void) {
    static void *blocks[30000];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = hak_malloc(1600);
        EXPECT(blocks[i], "hak_malloc");
        memset(blocks[i], 1, 1600);
    }
    size_t full = resident_bytes();
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        if (i % 1000) {
            hak_free(blocks[i]);
        }
    }
    size_t freed = resident_bytes();
    size_t given = hak_purge();
    size_t purged = resident_bytes();
    EXPECT(purged + 40 * MIB < full, "resident: %zu full, %zu freed, %zu purged; hak_purge gave %zu", full, freed,
           purged, given);
    /* Either may be the larger one: what was freed may be back before the purge. */
    EXPECT(given + 4 * MIB + purged >= freed && given + purged <= freed + 4 * MIB,
           "hak_purge says %zu bytes; resident memory went from %zu to %zu", given, freed, purged);
    for (size_t i = 0; i < COUNT_OF(blocks); i += 1000) {
        char *bytes = blocks[i];
        EXPECT(bytes[0] == 1 && !memcmp(bytes, bytes + 1, 1599), "hak_purge touched a live block");
        hak_free(blocks[i]);
    }
}

static void *prewarm_thread(void *unused) {
    (void)unused;
    size_t before = resident_bytes();
    size_t count = hak_thread_prewarm(1024);
    size_t after = resident_bytes();
    EXPECT(count > 0, "hak_thread_prewarm(1024) readied nothing");
    EXPECT(after < before + 2 * MIB, "hak_thread_prewarm touched %zu bytes", after - before);
    void *blocks[64];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = hak_malloc(i * 16);
        EXPECT(blocks[i], "hak_malloc(%zu)", i * 16);
        memset(blocks[i], 1, i * 16);
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        hak_free(blocks[i]);
    }
    hak_thread_prewarm(0);
    hak_thread_prewarm(1);
    hak_thread_prewarm(SIZE_MAX);
    return NULL;
}

static void prewarm(void) {
    prewarm_thread(NULL);
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        int code = pthread_create(&thread, NULL, prewarm_thread, NULL);
        EXPECT(code == 0, "pthread_create gave %d", code);
        pthread_join(thread, NULL);
    }
}

static void stats(void) {
    EXPECT(hak_stats(NULL, sizeof(struct hak_statistics)) == EINVAL, "hak_stats(NULL)");
    struct hak_statistics before;
    int code = hak_stats(&before, sizeof(before));
    EXPECT(code == 0, "hak_stats gave %d", code);
    static void *blocks[1000];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = hak_malloc(1000);
        EXPECT(blocks[i], "hak_malloc");
    }
    void *large = hak_malloc(20 * MIB);
    EXPECT(large, "hak_malloc of 20 MiB");
    struct hak_statistics full;
    hak_stats(&full, sizeof(full));
    uint64_t blocks_more = full.live_blocks - before.live_blocks;
    uint64_t bytes_more = full.live_bytes - before.live_bytes;
    EXPECT(blocks_more == COUNT_OF(blocks) + 1, "%llu blocks more for 1001", (unsigned long long)blocks_more);
    EXPECT(bytes_more >= 1000 * COUNT_OF(blocks) + 20 * MIB && bytes_more < 1200 * COUNT_OF(blocks) + 24 * MIB,
           "%llu bytes more", (unsigned long long)bytes_more);
    EXPECT(full.large_blocks == before.large_blocks + 1 && full.large_bytes >= before.large_bytes + 20 * MIB,
           "%llu large blocks", (unsigned long long)full.large_blocks);
    EXPECT(full.mapped_bytes >= full.committed_bytes && full.committed_bytes >= full.metadata_bytes &&
               full.committed_bytes >= full.live_bytes,
           "mapped %llu, committed %llu", (unsigned long long)full.mapped_bytes,
           (unsigned long long)full.committed_bytes);
    EXPECT(full.heaps >= 1 && full.slabs >= 1 && full.super_slabs >= 1 && full.system_calls >= 1, "no heap");
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        hak_free(blocks[i]);
    }
    hak_free(large);
    struct hak_statistics after;
    hak_stats(&after, sizeof(after));
    EXPECT(after.live_blocks == before.live_blocks && after.live_bytes == before.live_bytes, "%llu blocks left of %llu",
           (unsigned long long)after.live_blocks, (unsigned long long)before.live_blocks);
}

/* An older program's struct is shorter, a newer one's longer. */
static void stats_sizes(void) {
    union {
        struct hak_statistics stats;
        unsigned char bytes[sizeof(struct hak_statistics) + 64];
    } buffer;
    for (size_t size = 0; size <= sizeof(buffer); size += 8) {
        memset(&buffer, 0xA5, sizeof(buffer));
        int code = hak_stats(&buffer.stats, size);
        EXPECT(code == 0, "hak_stats with %zu bytes gave %d", size, code);
        for (size_t i = size; i < sizeof(buffer); i++) {
            EXPECT(buffer.bytes[i] == 0xA5, "hak_stats with %zu bytes wrote byte %zu", size, i);
        }
        for (size_t i = sizeof(struct hak_statistics); i < size; i++) {
            EXPECT(buffer.bytes[i] == 0, "hak_stats with %zu bytes left byte %zu", size, i);
        }
    }
}

#ifndef API_HAK
/* The two sets of names are one heap. */
static void one_heap(void) {
    for (size_t size = 0; size < 3 * MIB; size += size / 3 + 1) {
        char *block = hak_malloc(size);
        EXPECT(block && malloc_usable_size(block) >= size, "hak_malloc(%zu)", size);
        free(block);
        block = malloc(size);
        EXPECT(block && hak_owns(block) == 1 && hak_malloc_usable_size(block) >= size, "malloc(%zu)", size);
        hak_free(block);
        hak_free(realloc(hak_calloc(1, size), size + 1));
        free(hak_realloc(aligned_alloc(64, size), size + 1));
    }
}
#endif

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"version", version},         {"good_size", good_size},
        {"at_least", at_least},       {"owns", owns},
        {"should_move", should_move}, {"should_stay", should_stay},
        {"movers", movers},           {"purge", purge},
        {"prewarm", prewarm},         {"stats", stats},
        {"stats_sizes", stats_sizes}, {"heap_check", heap_check},
#ifndef API_HAK
        {"one_heap", one_heap},
#endif
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
