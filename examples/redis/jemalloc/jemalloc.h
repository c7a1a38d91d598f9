/* What redis and valkey ask of the jemalloc that they bring along, answered by hakmem. With this folder before theirs
 * in the list of include folders their sources need no change; README.md beside it has the command.
 *
 * Active defragmentation asks of each block whether it is worth moving. jemalloc answers by an addition of redis's own
 * (je_get_defrag_hint) in older versions, and by the mallctl "experimental.utilization.batch_query" in newer ones; both
 * are hak_should_move here. The other mallctls are those that these servers use.
 */
#ifndef HAKMEM_AS_JEMALLOC_H
#define HAKMEM_AS_JEMALLOC_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <hakmem/hakmem.h>

#define JEMALLOC_VERSION "5.3.0-hakmem"
#define JEMALLOC_VERSION_MAJOR 5
#define JEMALLOC_VERSION_MINOR 3
#define JEMALLOC_VERSION_BUGFIX 0
#define JEMALLOC_FRAG_HINT 1
#define MALLOCX_TCACHE_NONE HAK_MALLOCX_TCACHE_NONE

#define je_malloc hak_malloc
#define je_calloc hak_calloc
#define je_realloc hak_realloc
#define je_free hak_free
#define je_malloc_usable_size hak_malloc_usable_size
#define je_mallocx hak_mallocx
#define je_dallocx hak_dallocx
#define je_nallocx hak_nallocx

/* redis declares it again, without `static`: it stays what it is here. */
static inline int __attribute__((unused)) je_get_defrag_hint(void *block) { return hak_should_move(block); }

/* Resident memory that no file is behind. */
static inline size_t hakmem_je_resident(void) {
    unsigned long all = 0, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%lu %lu %lu", &all, &resident, &shared) != 3) resident = shared = 0;
    fclose(file);
    return (resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Of a size_t: what jemalloc calls active are the pages of slabs, which have memory here unless they went back. */
static inline int hakmem_je_statistic(const char *name, size_t *value) {
    struct hak_statistics now;
    hak_stats(&now, sizeof now);
    size_t resident = hakmem_je_resident(), slabs = now.live_bytes + now.cached_bytes + now.free_bytes;
    if (strcmp(name, "stats.allocated") == 0) *value = now.live_bytes;
    else if (strcmp(name, "stats.active") == 0)
        *value = slabs < resident ? slabs : resident > now.live_bytes ? resident : now.live_bytes;
    else if (strcmp(name, "stats.resident") == 0) *value = resident;
    else return ENOENT;
    return 0;
}

/* Three figures of each block: free regions, regions, and bytes of its slab. Those who ask move a block whose slab has
 * more free than the mean; so one that is to be moved is given one block in two, and another one a full slab. */
static inline int hakmem_je_query(void *old, size_t *old_bytes, void *const *blocks, size_t count) {
    size_t *figures = (size_t *)old;
    if (figures == NULL || old_bytes == NULL || *old_bytes < 3 * count * sizeof *figures) return EINVAL;
    for (size_t i = 0; i < count; i++) {
        size_t is_to_move = hak_should_move(blocks[i]) != 0;
        figures[3 * i] = is_to_move;
        figures[3 * i + 1] = 2;
        figures[3 * i + 2] = 2 * hak_malloc_usable_size(blocks[i]);
    }
    return 0;
}

static inline int __attribute__((unused))
je_mallctl(const char *name, void *old, size_t *old_bytes, void *new_value, size_t new_bytes) {
    if (strcmp(name, "epoch") == 0 || strcmp(name, "background_thread") == 0) return 0;
    if (strcmp(name, "experimental.utilization.batch_query") == 0)
        return hakmem_je_query(old, old_bytes, (void *const *)new_value, new_bytes / sizeof(void *));
    if (strcmp(name, "arenas.narenas") == 0 && old != NULL) {
        *(unsigned *)old = 1;
        return 0;
    }
    if (strncmp(name, "arena.", 6) == 0 && strstr(name, ".purge") != NULL) {
        hak_purge();
        return 0;
    }
    return old != NULL && old_bytes != NULL && *old_bytes == sizeof(size_t) ? hakmem_je_statistic(name, (size_t *)old)
                                                                            : ENOENT;
}

static inline void __attribute__((unused))
je_malloc_stats_print(void (*write)(void *, const char *), void *context, const char *options) {
    (void)options;
    if (write != NULL) write(context, "hakmem: HAKMEM_STATS, or hakmem ctl PID stats\n");
}

#endif
