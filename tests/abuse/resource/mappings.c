/* A process that has no mapping left (vm.max_map_count): every mmap, and every munmap or mprotect that would split one,
 * fails with ENOMEM. malloc gives NULL and ENOMEM or serves from what it has; free works; all is well again later. */
#include "process.h"

#include <sys/mman.h>

enum { LIVE = 400 };

static const size_t sizes[] = {16, 100, 1024, 5000, 20000, 40000, 100000, 300000, MIB, 3 * MIB, 20 * MIB};

static struct {
    unsigned char *block;
    size_t size;
} live[LIVE];

/* Pages of one reservation with rights that alternate: a mapping each, until there are no more. */
static char *filler;
static size_t filler_bytes;

static void use_up_mappings(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    long count = 65530;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    if (file) {
        if (fscanf(file, "%ld", &count) != 1) {
            count = 65530;
        }
        fclose(file);
    }
    if (count > 300000) {
        SKIP("max_map_count is %ld", count);
    }
    filler_bytes = ((size_t)count + 1000) * page;
    filler = mmap(NULL, filler_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(filler != MAP_FAILED, "no address space");
    size_t at = 0;
    while (at < filler_bytes && mprotect(filler + at, page, PROT_READ) == 0) {
        at += 2 * page;
    }
    EXPECT(errno == ENOMEM && at < filler_bytes, "mappings don't run out");
    while (mmap(NULL, page, at % 3 ? PROT_READ : PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
        at++; /* the last few */
    }
}

static void live_make(void) {
    for (size_t i = 0; i < LIVE; i++) {
        live[i].size = sizes[i % COUNT_OF(sizes)] / (i % COUNT_OF(sizes) == COUNT_OF(sizes) - 1 ? 8 : 1);
        live[i].block = malloc(live[i].size);
        EXPECT(live[i].block, "malloc(%zu)", live[i].size);
        memset(live[i].block, (int)(i % 251), live[i].size);
    }
}

static void live_check(size_t i, size_t size) {
    EXPECT(live[i].block[0] == i % 251 && !memcmp(live[i].block, live[i].block + 1, size - 1),
           "live block %zu of %zu changed", i, live[i].size);
}

/* Blocks of one size until NULL, or 16 MiB; then all are freed. */
static void take(size_t size) {
    void *list = NULL;
    for (size_t taken = 0; taken < 16 * MIB; taken += size) {
        errno = 0;
        unsigned char *block = taken / size % 2 ? calloc(1, size) : malloc(size);
        if (!block) {
            EXPECT(errno == ENOMEM, "%zu bytes: NULL", size);
            break;
        }
        EXPECT(taken / size % 2 == 0 || (!block[0] && !memcmp(block, block + 1, size - 1)),
               "calloc(1, %zu) is not zero", size);
        memset(block, 0xA5, size);
        *(void **)(void *)block = list;
        list = block;
    }
    while (list) {
        void *next = *(void **)list;
        errno = 1234;
        free(list);
        EXPECT(errno == 1234, "free of %zu bytes changed errno", size);
        list = next;
    }
}

static void mappings(void) {
    live_make();
    use_up_mappings();
    for (int round = 0; round < 2; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            take(sizes[s]);
        }
    }
    for (size_t i = 0; i < LIVE; i += 2) { /* a hole between two live ones is a mapping more */
        live_check(i, live[i].size);
        errno = 1234;
        free(live[i].block);
        EXPECT(errno == 1234, "free of %zu bytes changed errno", live[i].size);
    }
    malloc_trim(0);
    for (size_t i = 1; i < LIVE; i += 2) {
        live_check(i, live[i].size);
        errno = 0;
        unsigned char *block = realloc(live[i].block, live[i].size * 2);
        EXPECT(block || errno == ENOMEM, "realloc to %zu", live[i].size * 2);
        live[i].block = block ? block : live[i].block;
        live_check(i, live[i].size);
        errno = 0;
        block = realloc(live[i].block, live[i].size / 2);
        EXPECT(block || errno == ENOMEM, "realloc to %zu", live[i].size / 2);
        live[i].block = block ? block : live[i].block;
        live_check(i, live[i].size / 2);
    }
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        take(sizes[s]);
    }
    EXPECT(!munmap(filler, filler_bytes), "munmap of the filler");
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        void *block = malloc(sizes[s]);
        EXPECT(block, "malloc(%zu) with mappings to be had again", sizes[s]);
        memset(block, 1, sizes[s]);
        free(block);
    }
    for (size_t i = 1; i < LIVE; i += 2) {
        live_check(i, live[i].size / 2);
        free(live[i].block);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"used_up", mappings}};
    if (argc > 1 && !is_watched()) {
        return run_watched(argv, GIB, -1, 0);
    }
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
