/* What hakmem's own records cost: resident metadata over resident heap.
 *
 *     bench_metadata BYTES MIN MAX
 *
 * Fills a heap with BYTES of live blocks of MIN..MAX bytes (MIN >= 16), touches all their pages, and asks the kernel
 * (/proc/self/smaps) where its anonymous memory is resident:
 *
 *     anonymous = heap + spare + metadata
 *
 * Told apart page by page: heap is what lies in a 64 KiB unit that holds a live block, spare is what hak_owns claims
 * besides, and metadata all the rest, with some 100 KiB of libc's and of this program. Under another allocator nothing
 * is spare. The figures are these four, in bytes that are resident; metadata_of_heap, their ratio; and
 * metadata_committed, which is what hak_stats says, resident or not. One operation is one malloc.
 */
#include "bench.h"

#include <ctype.h>
#include <stdbool.h>

#include "../include/hakmem/hakmem.h"

enum { UNIT_SHIFT = 16, ADDRESS_BITS = 48, PAGE_BYTES_MIN = 4096, WINDOW_PAGES = 4096 };

struct block {
    struct block *next;
    size_t bytes;
};

struct resident {
    uint64_t anonymous_bytes;
    uint64_t heap_bytes;
    uint64_t spare_bytes;
};

static uint64_t *unit_bits; /* one bit per unit of the address space: it holds a live block */

static bool unit_has_block(uintptr_t address) {
    uintptr_t unit = address >> UNIT_SHIFT;
    return address >> ADDRESS_BITS == 0 && (unit_bits[unit / 64] >> (unit % 64) & 1);
}

/* Shared, and so no part of the anonymous memory that is counted. */
static void map_unit_bits(void) {
    size_t bytes = (size_t)1 << (ADDRESS_BITS - UNIT_SHIFT - 3);
    unit_bits = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (unit_bits == MAP_FAILED) {
        bench_fail("no memory for the program's own tables");
    }
}

static void mark_units(const struct block *block) {
    for (; block; block = block->next) {
        uintptr_t last = (uintptr_t)block + block->bytes - 1;
        if (last >> ADDRESS_BITS) {
            bench_fail("an address beyond 48 bits");
        }
        for (uintptr_t unit = (uintptr_t)block >> UNIT_SHIFT; unit <= last >> UNIT_SHIFT; unit++) {
            unit_bits[unit / 64] |= UINT64_C(1) << (unit % 64);
        }
    }
}

static struct block *fill(uint64_t bytes_wanted, struct bench_sizes sizes, uint64_t *count) {
    struct bench_random random = bench_random_seeded(1, 0);
    struct block *newest = NULL;
    for (uint64_t bytes = 0; bytes < bytes_wanted; ++*count) {
        size_t size = bench_pick_size(bench_random_next(&random), sizes);
        struct block *block = bench_allocate(size);
        for (size_t offset = PAGE_BYTES_MIN; offset < size; offset += PAGE_BYTES_MIN) {
            ((volatile char *)block)[offset] = 0;
        }
        ((volatile char *)block)[size - 1] = 0;
        *block = (struct block){.next = newest, .bytes = size};
        newest = block;
        bytes += size;
    }
    return newest;
}

/* Sorts the resident pages of one mapping. A mapping is asked in windows: it may be a reservation of terabytes. */
static void count_pages(uintptr_t start, uintptr_t end, int (*owns)(const void *), struct resident *resident) {
    static unsigned char in_core[WINDOW_PAGES];
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uintptr_t window = start; window < end; window += page_bytes * WINDOW_PAGES) {
        size_t bytes = end - window < page_bytes * WINDOW_PAGES ? end - window : page_bytes * WINDOW_PAGES;
        if (mincore((void *)window, bytes, in_core) != 0) {
            continue; /* unmapped meanwhile */
        }
        for (size_t i = 0; i < bytes / page_bytes; i++) {
            uintptr_t page = window + i * page_bytes;
            if (!(in_core[i] & 1)) {
                continue;
            }
            if (unit_has_block(page)) {
                resident->heap_bytes += page_bytes;
            } else if (owns && owns((void *)page)) {
                resident->spare_bytes += page_bytes;
            }
        }
    }
}

static struct resident count_resident(int (*owns)(const void *)) {
    struct resident resident = {0};
    char line[4352];
    char name[sizeof line] = "";
    uintptr_t start = 0;
    uintptr_t end = 0;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    if (!smaps) {
        bench_fail("cannot read /proc/self/smaps");
    }
    while (fgets(line, sizeof line, smaps)) {
        uint64_t anonymous_kib;
        if (!isupper((unsigned char)line[0])) { /* a mapping; the lines about it begin with a capital */
            name[0] = '\0';
            sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %4351s", &start, &end, name);
        } else if (sscanf(line, "Anonymous: %" SCNu64, &anonymous_kib) == 1 && anonymous_kib > 0 &&
                   strcmp(name, "[stack]") != 0) {
            resident.anonymous_bytes += anonymous_kib << 10;
            count_pages(start, end, owns, &resident);
        }
    }
    fclose(smaps);
    return resident;
}

static void report(struct resident resident) {
    uint64_t known_bytes = resident.heap_bytes + resident.spare_bytes;
    uint64_t metadata_bytes = resident.anonymous_bytes > known_bytes ? resident.anonymous_bytes - known_bytes : 0;
    bench_figure("anonymous", (double)resident.anonymous_bytes, "bytes");
    bench_figure("heap", (double)resident.heap_bytes, "bytes");
    bench_figure("spare", (double)resident.spare_bytes, "bytes");
    bench_figure("metadata", (double)metadata_bytes, "bytes");
    bench_figure("metadata_of_heap", 100 * (double)metadata_bytes / (double)resident.heap_bytes, "%");
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 3, "bench_metadata BYTES MIN MAX");
    uint64_t bytes_wanted = bench_number(argv[1], 1);
    struct bench_sizes sizes = bench_sizes(bench_number(argv[2], 16), bench_number(argv[3], 16));
    int (*owns)(const void *) = NULL;
    int (*ask_stats)(struct hak_statistics *, size_t) = NULL;
    *(void **)&owns = dlsym(RTLD_DEFAULT, "hak_owns");
    *(void **)&ask_stats = dlsym(RTLD_DEFAULT, "hak_stats");
    map_unit_bits();

    uint64_t count = 0;
    double start = bench_now();
    struct block *blocks = fill(bytes_wanted, sizes, &count);
    double seconds = bench_now() - start;

    mark_units(blocks);
    report(count_resident(owns));
    struct hak_statistics stats;
    if (ask_stats && ask_stats(&stats, sizeof stats) == 0) {
        bench_figure("metadata_committed", (double)stats.metadata_bytes, "bytes");
    }
    uint64_t checksum = 0;
    for (struct block *block = blocks; block; block = block->next) {
        checksum = bench_fold(checksum, block->bytes);
    }
    bench_close(count, seconds, checksum);
    return 0;
}
