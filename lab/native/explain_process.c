#include "explain_process.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

void process_fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(2);
}

void *process_grow(void *block, size_t count, size_t item_bytes) {
    void *grown = reallocarray(block, count, item_bytes);
    if (grown == NULL) {
        process_fail("out of memory");
    }
    return grown;
}

/* The kernel denied something: who is there, and what stands against it. */
static _Noreturn void fail_denied(pid_t id) {
    char scope = '0';
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (file != NULL) {
        scope = (char)fgetc(file);
        fclose(file);
    }
    if (scope > '0') {
        process_fail("process %d may not be read: another user's, or kernel.yama.ptrace_scope is %c; "
                     "try as root, with CAP_SYS_PTRACE",
                     (int)id, scope);
    }
    process_fail("process %d may not be read: another user's, or one with more rights; "
                 "try as root, with CAP_SYS_PTRACE",
                 (int)id);
}

static _Noreturn void fail_gone(pid_t id) { process_fail("process %d ended meanwhile", (int)id); }

/* ---- Mappings ----------------------------------------------------------------------------------------------------- */

static bool parse_head(const char *line, struct mapping *mapping) {
    int name_at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %*s %" SCNu64 " %n", &mapping->start, &mapping->end,
               mapping->permissions, &mapping->offset, &mapping->inode, &name_at) < 5 ||
        mapping->start >= mapping->end) {
        return false;
    }
    mapping->name = strndup(line + name_at, strcspn(line + name_at, "\n"));
    if (mapping->name == NULL) {
        process_fail("out of memory");
    }
    return true;
}

static void parse_figure(const char *line, struct mapping *mapping) {
    uint64_t kib;
    if (sscanf(line, "Rss: %" SCNu64, &kib) == 1) {
        mapping->resident_bytes = kib << 10;
    } else if (sscanf(line, "Swap: %" SCNu64, &kib) == 1) {
        mapping->swapped_bytes = kib << 10;
    } else if (sscanf(line, "LazyFree: %" SCNu64, &kib) == 1) {
        mapping->lazy_bytes = kib << 10;
    } else if (sscanf(line, "KernelPageSize: %" SCNu64, &kib) == 1) {
        mapping->page_bytes = kib << 10;
    }
}

static void look_at_mappings(struct process *process) {
    char path[64], *line = NULL;
    size_t capacity = 0, room = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)process->id);
    FILE *file = fopen(path, "re");
    if (file == NULL && (errno == ENOENT || errno == ESRCH)) {
        process_fail("there is no process %d", (int)process->id);
    }
    if (file == NULL) {
        fail_denied(process->id);
    }
    while (getline(&line, &capacity, file) >= 0) {
        if (isupper((unsigned char)line[0])) {
            if (process->mapping_count > 0) {
                parse_figure(line, &process->mappings[process->mapping_count - 1]);
            }
            continue;
        }
        if (process->mapping_count == room) {
            room = room == 0 ? 256 : 2 * room;
            process->mappings = process_grow(process->mappings, room, sizeof *process->mappings);
        }
        struct mapping *mapping = &process->mappings[process->mapping_count];
        *mapping = (struct mapping){.start = 0};
        process->mapping_count += parse_head(line, mapping);
    }
    bool denied = ferror(file) && errno == EACCES;
    free(line);
    fclose(file);
    if (denied) {
        fail_denied(process->id);
    }
    if (process->mapping_count == 0) {
        process_fail("process %d has no memory: it has ended, or is the kernel's", (int)process->id);
    }
}

/* ---- Pages -------------------------------------------------------------------------------------------------------- */

static void add_stretch(struct process *process, struct stretch added) {
    struct stretch *last = process->stretch_count > 0 ? &process->stretches[process->stretch_count - 1] : NULL;
    if (last != NULL && added.start < last->end) {
        added.start = last->end;
    }
    if (added.start >= added.end) {
        return;
    }
    if (last != NULL && last->end == added.start && last->is_resident == added.is_resident &&
        last->is_huge == added.is_huge) {
        last->end = added.end;
        return;
    }
    size_t count = process->stretch_count;
    if (count == 0 || (count >= 256 && (count & (count - 1)) == 0)) {
        process->stretches = process_grow(process->stretches, count == 0 ? 256 : 2 * count, sizeof added);
    }
    process->stretches[process->stretch_count++] = added;
}

/* struct pm_scan_arg and struct page_region of linux/fs.h, since Linux 6.7. */
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages;
    uint64_t inverted, all_of, any_of, returned;
};
struct scan_region {
    uint64_t start, end, categories;
};
enum { IS_PRESENT = 1 << 3, IS_SWAPPED = 1 << 4, IS_ZERO = 1 << 5, IS_HUGE = 1 << 6 };
#define SCAN_CALL _IOWR('f', 16, struct scan)

/* False when the kernel is older. */
static bool scan_pages(struct process *process, int pagemap) {
    static struct scan_region regions[4096];
    uint64_t start = process->mappings[0].start, end = start;
    for (size_t i = 0; i < process->mapping_count; i++) {
        if (process->mappings[i].end >> 63 == 0) { /* the kernel's page for old system calls is above */
            end = process->mappings[i].end;
        }
    }
    while (start < end) {
        struct scan scan = {.size = sizeof scan,
                            .start = start,
                            .end = end,
                            .regions = (uintptr_t)regions,
                            .region_count = sizeof regions / sizeof regions[0],
                            .any_of = IS_PRESENT | IS_SWAPPED,
                            .returned = IS_PRESENT | IS_SWAPPED | IS_ZERO | IS_HUGE};
        int found = ioctl(pagemap, SCAN_CALL, &scan);
        if (found < 0 && errno == EINTR) {
            continue;
        }
        if (found < 0 || scan.walk_end <= start) {
            return false;
        }
        for (int i = 0; i < found; i++) {
            uint64_t is = regions[i].categories;
            add_stretch(process, (struct stretch){.start = regions[i].start,
                                                  .end = regions[i].end,
                                                  .is_resident = (is & IS_PRESENT) != 0 && (is & IS_ZERO) == 0,
                                                  .is_huge = (is & IS_HUGE) != 0});
        }
        start = scan.walk_end;
    }
    return true;
}

/* An entry of 64 bits for each page. The kernel's page of zeros can't be told from others. */
static void read_pagemap(struct process *process, int pagemap) {
    static uint64_t entries[8192];
    for (size_t i = 0; i < process->mapping_count; i++) {
        const struct mapping *mapping = &process->mappings[i];
        if ((mapping->resident_bytes | mapping->swapped_bytes) == 0 || mapping->end >> 63 != 0) {
            continue;
        }
        for (uint64_t at = mapping->start; at < mapping->end;) {
            uint64_t pages = (mapping->end - at) / process->page_bytes;
            size_t want = (pages < 8192 ? pages : 8192) * sizeof entries[0];
            ssize_t got = pread(pagemap, entries, want, (off_t)(at / process->page_bytes * sizeof entries[0]));
            if (got < (ssize_t)sizeof entries[0]) {
                break;
            }
            for (size_t j = 0; j < (size_t)got / sizeof entries[0]; j++, at += process->page_bytes) {
                if (entries[j] >> 62 != 0) {
                    add_stretch(process, (struct stretch){.start = at,
                                                          .end = at + process->page_bytes,
                                                          .is_resident = entries[j] >> 63 != 0});
                }
            }
        }
    }
}

static void look_at_pages(struct process *process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)process->id);
    int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    if (pagemap < 0 && (errno == ENOENT || errno == ESRCH)) {
        fail_gone(process->id);
    }
    if (pagemap < 0) {
        fail_denied(process->id);
    }
    process->sees_huge_pages = getenv("EXPLAIN_WITHOUT_SCAN") == NULL && scan_pages(process, pagemap);
    if (!process->sees_huge_pages) {
        process->stretch_count = 0;
        read_pagemap(process, pagemap);
    }
    close(pagemap);
}

/* What the kernel says of all mappings together; 0 when it doesn't. */
static uint64_t read_rollup(pid_t id) {
    char path[64], line[256];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)id);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && sscanf(line, "Rss: %" SCNu64, &kib) != 1) {
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib << 10;
}

static void forget(struct process *process) {
    for (size_t i = 0; i < process->mapping_count; i++) {
        free(process->mappings[i].name);
    }
    free(process->mappings);
    free(process->stretches);
}

/* Everything at one time, but for what the process does meanwhile. Returns by how much its resident memory changed while its pages were
 * looked at. */
static uint64_t look(struct process *process, pid_t id) {
    *process = (struct process){.id = id, .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    look_at_mappings(process);
    uint64_t before = read_rollup(id);
    look_at_pages(process);
    uint64_t after = read_rollup(id);
    for (size_t i = 0; before == 0 && i < process->mapping_count; i++) {
        process->resident_bytes += process->mappings[i].resident_bytes; /* Linux before 4.14 */
    }
    if (before != 0) {
        process->resident_bytes = after == 0 ? before : before / 2 + after / 2;
    }
    return after == 0 ? 0 : before < after ? after - before : before - after;
}

void process_look(struct process *process, pid_t id) {
    enum { MOST_LOOKS = 8, STEADY = 500 };
    uint64_t least = look(process, id);
    for (int looks = 1; looks < MOST_LOOKS && least > process->resident_bytes / STEADY; looks++) {
        struct process again;
        uint64_t change = look(&again, id);
        bool is_better = change < least;
        forget(is_better ? process : &again);
        if (is_better) {
            *process = again;
            least = change;
        }
    }
}

/* The first stretch that ends after `address`. */
static size_t first_after(const struct process *process, uint64_t address) {
    size_t low = 0, high = process->stretch_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (process->stretches[middle].end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

uint64_t process_resident(const struct process *process, uint64_t start, uint64_t end) {
    uint64_t bytes = 0;
    if (start >= end) {
        return 0;
    }
    for (size_t i = first_after(process, start); i < process->stretch_count; i++) {
        const struct stretch *stretch = &process->stretches[i];
        if (stretch->start >= end) {
            break;
        }
        uint64_t from = stretch->start > start ? stretch->start : start, to = stretch->end < end ? stretch->end : end;
        bytes += stretch->is_resident ? to - from : 0;
    }
    return bytes;
}

void process_pages(const struct process *process, uint64_t start, size_t count, uint8_t *pages) {
    memset(pages, 0, count);
    size_t i = first_after(process, start);
    for (size_t page = 0; page < count; page++) {
        uint64_t at = start + page * process->page_bytes;
        while (i < process->stretch_count && process->stretches[i].end <= at) {
            i++;
        }
        if (i == process->stretch_count) {
            return;
        }
        const struct stretch *stretch = &process->stretches[i];
        if (stretch->start <= at && stretch->is_resident) {
            pages[page] = (uint8_t)(PAGE_RESIDENT | (stretch->is_huge ? PAGE_HUGE : 0));
        }
    }
}

/* ---- Contents ----------------------------------------------------------------------------------------------------- */

bool process_read_anyway(const struct process *process, uint64_t start, void *to, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)start, bytes};
    ssize_t got = process_vm_readv(process->id, &here, 1, &there, 1, 0);
    if (got < 0 && errno == ESRCH) {
        fail_gone(process->id);
    }
    if (got < 0 && errno == EPERM) {
        fail_denied(process->id);
    }
    return got == (ssize_t)bytes;
}

bool process_read(const struct process *process, uint64_t start, void *to, size_t bytes) {
    uint64_t end = start + bytes;
    memset(to, 0, bytes);
    if (end < start) {
        return false;
    }
    bool whole = true;
    for (size_t i = first_after(process, start); i < process->stretch_count; i++) {
        const struct stretch *stretch = &process->stretches[i];
        if (stretch->start >= end) {
            break;
        }
        uint64_t from = stretch->start > start ? stretch->start : start,
                 until = stretch->end < end ? stretch->end : end;
        whole &= process_read_anyway(process, from, (char *)to + (from - start), until - from);
    }
    return whole;
}
