/* What hakmem.h has beyond the standard interface: versions, ownership, purge, prewarm, statistics.
 * Compiled twice: linked to libhakmem.so, and to the core that has the hak_* names only (API_HAK). */
#include "expect.h"

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
        {"version", version},   {"owns", owns},   {"purge", purge},
        {"prewarm", prewarm},   {"stats", stats}, {"stats_sizes", stats_sizes},
#ifndef API_HAK
        {"one_heap", one_heap},
#endif
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
