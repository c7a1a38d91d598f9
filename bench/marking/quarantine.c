/* An experiment: another implementation of pool/quarantine.h, in which freed blocks wait until no word of live blocks,
 * globals and stacks points to them. It measures what marking costs (docs/decisions/0138). Built into
 * libhakmem-marking.so in place of pool/quarantine.c, whatever else is the secure build's.
 *
 *     MARKING=DESIGN:PERCENT:FLOOR_KIB:FILE
 *
 * DESIGN is one of
 *   0  no marking: what waits is released when so much of it waits
 *   1  all at once: the thread that frees stops the others, reads all memory, and lets them go on
 *   2  a thread reads all memory beside the program, then stops it and looks again at the pages that were written
 *      meanwhile, which the kernel knows (PAGEMAP_SCAN), at globals and at stacks
 *   3  a thread reads all memory and globals beside the program, then stops it for the stacks only
 * A round begins when PERCENT of the heap wait, or FLOOR_KIB if that is more. FILE has the sums of all processes.
 *
 *   M1  A block that waits is in one list: the one that threads append to, the one that a round has taken, or the one
 *       of blocks that a round has found pointers to. Only a round releases blocks; one at a time runs.
 *   M2  A mark is a bit for each block, apart from the blocks, in a row for each slab.
 *   M3  A child of fork loses what a round of its parent had in hand.
 *
 * Large objects don't wait: their pages could go back at once, and their addresses cost nothing. They are counted. */
#include "pool/quarantine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "front/thread.h"
#include "os/os.h"
#include "pool/freed.h"
#include "pool/pool.h"
#include "region/directory.h"

/* ---- Figures ----------------------------------------------------------------------------------------------------- */

#define FIGURES(X)                                                                                                     \
    X(freed_blocks) /* small ones */                                                                                   \
    X(freed_bytes)  /* theirs */                                                                                       \
    X(freed_large)  /* bytes of large objects */                                                                       \
    X(rounds)                                                                                                          \
    X(heap_bytes)    /* of blocks that were read, all rounds */                                                        \
    X(mapping_bytes) /* of these, in mappings of their own */                                                          \
    X(global_bytes)                                                                                                    \
    X(stack_bytes)                                                                                                     \
    X(again_bytes)     /* that were read once more, because they were written meanwhile */                             \
    X(pointers)        /* words that point into the heap */                                                            \
    X(marking_ns)      /* processor time of marking: all of a round but the release */                                 \
    X(reading_ns)      /* of that, reading the heap */                                                                 \
    X(protecting_ns)   /* of that, asking the kernel to watch pages */                                                 \
    X(stopped_ns)      /* wall time that the program was stopped */                                                    \
    X(stopped_threads) /* all rounds */                                                                                \
    X(deaf_threads)    /* that did not stop */                                                                         \
    X(releasing_ns)                                                                                                    \
    X(held_bytes)      /* that waited at the begin of a round, all rounds */                                           \
    X(kept_bytes)      /* that still waited after a round, all rounds */                                               \
    X(footprint_bytes) /* units and mappings in use, all rounds */

enum figure {
#define X(name) FIGURE_##name,
    FIGURES(X)
#undef X
        FIGURE_COUNT
};

static _Atomic(uint64_t) own_figures[FIGURE_COUNT], *figures = own_figures; /* or shared with all processes */

static void count_figure(enum figure figure, uint64_t amount) {
    hak_atomic_fetch_add(&figures[figure], amount, relaxed);
}

static uint64_t clock_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t cpu_ns(void) { return clock_of(CLOCK_THREAD_CPUTIME_ID); }

/* ---- What waits -------------------------------------------------------------------------------------------------- */

enum { CLASS_SHIFT = 48, BATCH = 64 };
#define LIST_CAPACITY ((uint64_t)1 << 27)
#define SECOND_LIST ((uint64_t)1 << 63)

static int design = -1; /* nothing is done before it is known */
static uint64_t percent = 8, floor_bytes = 1 << 20;
static HAK_ATOMIC(uint64_t) *lists[2]; /* what threads append to, by turns; 0 where nothing is */
static uint64_t *kept_list;
static uint64_t kept_count, still_bytes;
static HAK_ATOMIC(uint64_t) list_cursor; /* which list, and how many are in it */
static HAK_ATOMIC(uint64_t) waiting_bytes, threshold = UINT64_MAX;
static uint64_t taken_bytes;
static HAK_ATOMIC(uint32_t) is_in_round, is_asked, marker;
static HAK_ATOMIC(int) own_process;

static void *reserve(uint64_t bytes) {
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) abort();
    return found;
}

/* Another list for who frees. Returns the one that there was. */
static HAK_ATOMIC(uint64_t) *take_list(uint64_t *count) {
    uint64_t old = hak_atomic_load(&list_cursor, relaxed), other = ~old & SECOND_LIST;
    old = hak_atomic_exchange(&list_cursor, other, acq_rel);
    taken_bytes = hak_atomic_exchange(&waiting_bytes, 0, relaxed);
    *count = old & ~SECOND_LIST;
    count_figure(FIGURE_freed_blocks, *count);
    count_figure(FIGURE_freed_bytes, taken_bytes);
    return lists[old >> 63];
}

/* ---- Reading memory ---------------------------------------------------------------------------------------------- */

enum { ROW_BYTES = HAK_UNIT_BYTES / HAK_ALIGNMENT / 8 };
#define MOST_UNITS ((uint64_t)1 << 20)

static uint8_t *marks; /* [unit][ROW_BYTES], of a slab in the row of its first unit (M2) */
static struct hak_range *window;
static uint64_t window_units;

static void mark(uintptr_t offset) {
    uintptr_t unit = offset >> HAK_UNIT_SHIFT;
    uint32_t size_class = hak_page_map_class(window, unit);
    if (size_class == HAK_CLASS_NONE || size_class > HAK_SMALL_CLASS_COUNT) return;
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    offset &= facts->unit_count * HAK_UNIT_BYTES - 1;
    uint32_t index = hak_block_index((uint32_t)offset, facts->reciprocal);
    marks[(unit & ~(uintptr_t)(facts->unit_count - 1)) * ROW_BYTES + index / 8] |= (uint8_t)(1 << index % 8);
}

static uint64_t read_words(uintptr_t start, size_t bytes) {
    uintptr_t first = window->start, heap_bytes = window_units << HAK_UNIT_SHIFT;
    uint64_t pointers = 0;
    for (const uintptr_t *word = (const void *)start, *end = word + bytes / sizeof *word; word < end; word++) {
        uintptr_t offset = *(const volatile uintptr_t *)word - first;
        if (HAK_LIKELY(offset >= heap_bytes)) continue;
        mark(offset);
        pointers++;
    }
    return pointers;
}

static bool is_marked(uint64_t entry) {
    uintptr_t offset = (entry & (((uint64_t)1 << CLASS_SHIFT) - 1)) - window->start;
    const struct hak_size_class *facts = &hak_size_classes[entry >> CLASS_SHIFT];
    uintptr_t unit = offset >> HAK_UNIT_SHIFT & ~(uintptr_t)(facts->unit_count - 1);
    uint32_t index = hak_block_index((uint32_t)(offset - (unit << HAK_UNIT_SHIFT)), facts->reciprocal);
    return marks[unit * ROW_BYTES + index / 8] >> index % 8 & 1;
}

/* Blocks of a slab that are not free: neighbours together. */
static uint64_t read_slab(uint64_t unit, uint32_t size_class, uint64_t *bytes) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    struct hak_slab *slab = &window->slabs[unit];
    HAK_ATOMIC(uint64_t) *bits = hak_region_bits_of(window, slab, size_class);
    uintptr_t start = window->start + (unit << HAK_UNIT_SHIFT);
    uint64_t pointers = 0;
    for (uint32_t i = 0; i < (facts->block_count + 63) / 64; i++) {
        uint64_t used = hak_atomic_load(&bits[i], relaxed) | hak_slab_claimed_in(slab, facts->block_count, i);
        used = ~used & hak_slab_word_mask(facts->block_count, i);
        while (used != 0) {
            uint32_t first = hak_lowest_bit(used);
            uint64_t behind = ~(used >> first);
            uint32_t count = behind == 0 ? 64 : hak_lowest_bit(behind);
            size_t length = (size_t)count * facts->block_bytes;
            pointers += read_words(start + (uintptr_t)(i * 64 + first) * facts->block_bytes, length);
            *bytes += length;
            used = first + count >= 64 ? 0 : used >> (first + count) << (first + count);
        }
    }
    return pointers;
}

static uint64_t mapping_pointers, mapping_bytes;

/* A mapping may go meanwhile: the kernel reads it. */
static void read_mapping(uintptr_t start, size_t bytes, void *context) {
    static char buffer[256 << 10];
    (void)context;
    for (size_t at = 0; at < bytes;) {
        struct iovec to = {buffer, sizeof buffer}, from = {(void *)(start + at), bytes - at};
        if (from.iov_len > sizeof buffer) from.iov_len = sizeof buffer;
        ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
        if (got <= 0) return;
        mapping_pointers += read_words((uintptr_t)buffer, (size_t)got);
        mapping_bytes += (uint64_t)got;
        at += (size_t)got;
    }
}

/* A round's heap decides when the next one begins. */
static void set_threshold(uint64_t footprint) {
    uint64_t limit = footprint * percent / 100;
    hak_atomic_store(&threshold, limit > floor_bytes ? limit : floor_bytes, relaxed);
    count_figure(FIGURE_footprint_bytes, footprint);
}

static uint64_t count_used_units(void) {
    uint64_t count = 0;
    for (uint64_t unit = 0; unit < window_units; unit++) count += hak_page_map_class(window, unit) != HAK_CLASS_NONE;
    return count;
}

/* Clears marks, and reads all blocks in use. */
static void read_heap(void) {
    uint64_t before = cpu_ns(), bytes = 0, pointers = 0, used_units = count_used_units();
    for (uint64_t unit = 0; unit < window_units; unit++) {
        uint32_t size_class = hak_page_map_class(window, unit);
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) continue;
        memset(&marks[unit * ROW_BYTES], 0, (hak_size_classes[size_class].block_count + 7) / 8);
    }
    for (uint64_t unit = 0; unit < window_units; unit++) {
        uint32_t size_class = hak_page_map_class(window, unit);
        if (size_class == HAK_CLASS_NONE) continue;
        if (size_class <= HAK_SLAB_CLASS_COUNT) {
            if ((unit & (hak_size_classes[size_class].unit_count - 1)) == 0)
                pointers += read_slab(unit, size_class, &bytes);
        } else if (size_class == HAK_CLASS_RUN_HEAD) {
            size_t length = hak_atomic_load(&window->slabs[unit].run_pages, relaxed) * hak_os_page_bytes();
            pointers += read_words(window->start + (unit << HAK_UNIT_SHIFT), length);
            bytes += length;
        }
    }
    mapping_pointers = mapping_bytes = 0;
    hak_directory_for_each_mapping(read_mapping, NULL);
    set_threshold((used_units << HAK_UNIT_SHIFT) + mapping_bytes);
    count_figure(FIGURE_heap_bytes, bytes + mapping_bytes);
    count_figure(FIGURE_mapping_bytes, mapping_bytes);
    count_figure(FIGURE_pointers, pointers + mapping_pointers);
    count_figure(FIGURE_reading_ns, cpu_ns() - before);
}

/* What modules may write to. They are looked up beside the program, and read when it is time. */
enum { MOST_AREAS = 4096 };
static struct area { uintptr_t start, end; } globals[MOST_AREAS], stacks[MOST_AREAS];
static uint32_t global_count, stack_count;

static int note_module(struct dl_phdr_info *module, size_t size, void *context) {
    (void)size, (void)context;
    for (uint32_t i = 0; i < module->dlpi_phnum && global_count < MOST_AREAS; i++) {
        const ElfW(Phdr) *part = &module->dlpi_phdr[i];
        uintptr_t start = module->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        bool is_own = (uintptr_t)globals >= start && (uintptr_t)globals < end;
        if (part->p_type != PT_LOAD || (part->p_flags & PF_W) == 0 || is_own) continue;
        globals[global_count++] = (struct area){hak_align_up(start, sizeof(uintptr_t)), end};
    }
    return 0;
}

static void find_globals(void) {
    global_count = 0;
    dl_iterate_phdr(note_module, NULL);
}

static void read_globals(void) {
    for (uint32_t i = 0; i < global_count; i++) {
        read_words(globals[i].start, globals[i].end - globals[i].start);
        count_figure(FIGURE_global_bytes, globals[i].end - globals[i].start);
    }
}

/* ---- Stopping the program ---------------------------------------------------------------------------------------- */

enum { MOST_THREADS = 1024, STOP_US = 20000 };
static int stop_signal;
static HAK_ATOMIC(uint32_t) stop_turn, stopped_count;
static HAK_ATOMIC(uint32_t) is_stopping;
static uintptr_t stopped_at[MOST_THREADS]; /* stack pointers */
static uint32_t stopped_total;
static int deaf[MOST_THREADS];
static uint32_t deaf_count;
static uint64_t stopped_since;

static void wait_while(HAK_ATOMIC(uint32_t) *word, uint32_t value, uint64_t most_us) {
    struct timespec time = {(time_t)(most_us / 1000000), (long)(most_us % 1000000 * 1000)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, most_us == 0 ? NULL : &time, NULL, 0);
}

static void wake_all(HAK_ATOMIC(uint32_t) *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, 0, 0, 0); }

/* Registers lie above: the kernel has put them on the stack. */
static void stay(int number) {
    int saved_errno = errno;
    (void)number;
    uint32_t turn = hak_atomic_load(&stop_turn, acquire);
    if (hak_atomic_load(&is_stopping, acquire) != 0) {
        uint32_t place = hak_atomic_fetch_add(&stopped_count, 1, relaxed);
        if (place < MOST_THREADS)
            __atomic_store_n(&stopped_at[place], (uintptr_t)__builtin_frame_address(0), __ATOMIC_RELEASE);
        wake_all(&stopped_count);
        while (hak_atomic_load(&stop_turn, acquire) == turn) wait_while(&stop_turn, turn, 0);
    }
    errno = saved_errno;
}

static bool is_deaf(int thread) {
    for (uint32_t i = 0; i < deaf_count; i++)
        if (deaf[i] == thread) return true;
    return false;
}

static uint32_t list_threads(int *threads) {
    char buffer[4096];
    uint32_t count = 0;
    int own = (int)syscall(SYS_gettid), folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (ssize_t got; (got = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;) {
        for (ssize_t at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(buffer + at);
            int thread = atoi(entry->d_name);
            at += entry->d_reclen;
            if (thread > 0 && thread != own && !is_deaf(thread) && count < MOST_THREADS) threads[count++] = thread;
        }
    }
    close(folder);
    return count;
}

/* All threads that the program has. A thread that is born meanwhile is not asked: it has got what it has from one that
 * was. */
static void stop(void) {
    static int threads[MOST_THREADS];
    uint32_t asked = 0, count = list_threads(threads);
    stopped_since = clock_of(CLOCK_MONOTONIC);
    stopped_total = 0;
    if (count == 0) return;
    hak_atomic_store(&stopped_count, 0, relaxed);
    memset(stopped_at, 0, count * sizeof *stopped_at);
    hak_atomic_store(&is_stopping, 1, release);
    for (uint32_t i = 0; i < count; i++) asked += syscall(SYS_tgkill, getpid(), threads[i], stop_signal) == 0;
    uint64_t end = stopped_since + (uint64_t)STOP_US * 1000;
    for (uint32_t now; (now = hak_atomic_load(&stopped_count, acquire)) < asked;) {
        wait_while(&stopped_count, now, STOP_US);
        if (clock_of(CLOCK_MONOTONIC) < end) continue;
        deaf_count = 0; /* somebody blocks the signal: who does is found out before the next round */
        count_figure(FIGURE_deaf_threads, asked - now);
        break;
    }
    stopped_total = hak_atomic_load(&stopped_count, acquire);
    count_figure(FIGURE_stopped_threads, stopped_total);
}

static void let_go(void) {
    hak_atomic_store(&is_stopping, 0, release);
    hak_atomic_fetch_add(&stop_turn, 1, release);
    if (stopped_total != 0) wake_all(&stop_turn);
    count_figure(FIGURE_stopped_ns, clock_of(CLOCK_MONOTONIC) - stopped_since);
}

/* Threads of hakmem's own block all signals: they are not asked. */
static void find_deaf(void) {
    static int threads[MOST_THREADS];
    char path[64], text[4096];
    deaf_count = 0;
    uint32_t count = list_threads(threads);
    for (uint32_t i = 0; i < count; i++) {
        struct hak_text name = hak_text_in(path, sizeof path);
        hak_text_add(&name, "/proc/self/task/%u/status", (unsigned)threads[i]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0) close(file);
        text[got < 0 ? 0 : got] = 0;
        const char *blocked = strstr(text, "SigBlk:\t");
        if (blocked == NULL) continue;
        if (strtoull(blocked + 8, NULL, 16) >> (stop_signal - 1) & 1 && deaf_count < MOST_THREADS)
            deaf[deaf_count++] = threads[i];
    }
}

/* ---- Stacks ------------------------------------------------------------------------------------------------------ */

/* All that may be a stack: what is anonymous, readable and writable. */
static void find_stacks(void) {
    static char text[1 << 20];
    size_t length = 0;
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t got; length < sizeof text - 1 && (got = read(file, text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(file);
    text[length] = 0;
    stack_count = 0;
    for (char *line = text; line != NULL && *line != 0 && stack_count < MOST_AREAS;) {
        char *end;
        uintptr_t from = strtoull(line, &end, 16), to = strtoull(end + 1, &end, 16);
        if (strncmp(end, " rw", 3) == 0) stacks[stack_count++] = (struct area){from, to};
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
}

static void read_stack(uintptr_t at) {
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < stack_count; i++) {
            if (at < stacks[i].start || at >= stacks[i].end) continue;
            at = at & ~(uintptr_t)7;
            read_words(at, stacks[i].end - at);
            count_figure(FIGURE_stack_bytes, stacks[i].end - at);
            return;
        }
        find_stacks(); /* a new one, or one that has grown */
    }
}

static void read_stacks(void) {
    for (uint32_t i = 0; i < stopped_total && i < MOST_THREADS; i++) {
        uintptr_t at;
        while ((at = __atomic_load_n(&stopped_at[i], __ATOMIC_ACQUIRE)) == 0) {
        }
        read_stack(at);
    }
}

/* ---- Pages that were written ------------------------------------------------------------------------------------- */

/* Of newer headers. */
struct page_region {
    uint64_t start, end, categories;
};
struct page_scan {
    uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages, inverted, mask, any_of, returned;
};
#define PAGE_SCAN _IOWR('f', 16, struct page_scan)
enum { SCAN_PROTECTS = 1, SCAN_EXPECTS_ASYNC = 2, PAGE_WRITTEN = 2, PAGE_PRESENT = 8, MOST_REGIONS = 4096 };
#define FEATURE_UNPOPULATED ((uint64_t)1 << 13)
#define FEATURE_ASYNC ((uint64_t)1 << 15)

static int watch = -1, pagemap = -1;
static uint64_t watched_units;

static void watch_heap(void) {
    if (watch < 0) {
        struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_UNPOPULATED | FEATURE_ASYNC};
        watch = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
        pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        if (watch < 0 || pagemap < 0 || ioctl(watch, UFFDIO_API, &api) != 0) abort();
    }
    if (watched_units >= window_units) return;
    struct uffdio_register area = {
        .range = {window->start + (watched_units << HAK_UNIT_SHIFT), (window_units - watched_units) << HAK_UNIT_SHIFT},
        .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(watch, UFFDIO_REGISTER, &area) != 0) abort();
    watched_units = window_units;
}

/* Pages of the heap that were written since they were watched. They are watched from now on, or else read. */
static void look_at_written(bool protects) {
    static struct page_region regions[MOST_REGIONS];
    struct page_scan scan = {.size = sizeof scan,
                             .flags = protects ? SCAN_PROTECTS | SCAN_EXPECTS_ASYNC : 0,
                             .start = window->start,
                             .end = window->start + (window_units << HAK_UNIT_SHIFT),
                             .regions = (uintptr_t)regions,
                             .region_count = MOST_REGIONS,
                             .mask = PAGE_WRITTEN | PAGE_PRESENT,
                             .returned = PAGE_WRITTEN};
    while (scan.start < scan.end) {
        int found = ioctl(pagemap, PAGE_SCAN, &scan);
        if (found < 0) abort();
        for (int i = 0; i < found && !protects; i++) {
            read_words(regions[i].start, regions[i].end - regions[i].start);
            count_figure(FIGURE_again_bytes, regions[i].end - regions[i].start);
        }
        scan.start = scan.walk_end;
    }
}

static void watch_pages(void) {
    uint64_t before = cpu_ns();
    watch_heap();
    look_at_written(true);
    count_figure(FIGURE_protecting_ns, cpu_ns() - before);
}

/* ---- A round ----------------------------------------------------------------------------------------------------- */

static void mark_everything(void) {
    uint64_t before = cpu_ns();
    jmp_buf registers;
    if (deaf_count == 0 || hak_atomic_load(&figures[FIGURE_rounds], relaxed) % 64 == 0) find_deaf();
    find_globals();
    if (design == 1) {
        stop();
        read_heap();
        read_globals();
        read_stacks();
        (void)setjmp(registers);
        read_stack((uintptr_t)&registers);
        let_go();
    } else if (design == 2) {
        watch_pages();
        read_heap();
        stop();
        look_at_written(false);
        read_globals();
        read_stacks();
        let_go();
    } else {
        read_heap();
        read_globals();
        stop();
        read_stacks();
        let_go();
    }
    count_figure(FIGURE_marking_ns, cpu_ns() - before);
}

static void *batches[HAK_SMALL_CLASS_COUNT + 1][BATCH];
static uint32_t batch_counts[HAK_SMALL_CLASS_COUNT + 1];

static void release_batch(uint32_t size_class) {
    uint32_t count = batch_counts[size_class];
    batch_counts[size_class] = 0;
    if (count > 0) hak_pool_put(NULL, size_class, batches[size_class], count);
}

static void release_or_keep(uint64_t entry) {
    uint32_t size_class = (uint32_t)(entry >> CLASS_SHIFT);
    if (design != 0 && is_marked(entry)) {
        kept_list[kept_count++] = entry;
        still_bytes += hak_size_classes[size_class].block_bytes;
        return;
    }
    batches[size_class][batch_counts[size_class]++] = (void *)(entry & (((uint64_t)1 << CLASS_SHIFT) - 1));
    if (batch_counts[size_class] == BATCH) release_batch(size_class);
}

static void run_round(void) {
    uint64_t count, before;
    window = hak_region_range(0);
    HAK_ATOMIC(uint64_t) *list = take_list(&count);
    window_units = (uint64_t)hak_region_super_slabs(window) * HAK_UNITS_PER_SUPER_SLAB; /* after: all of the list */
    if (window_units > MOST_UNITS || hak_region_range(1) != NULL) abort();
    count_figure(FIGURE_rounds, 1);
    count_figure(FIGURE_held_bytes, taken_bytes + still_bytes);
    if (design != 0) mark_everything();
    else set_threshold(count_used_units() << HAK_UNIT_SHIFT);
    before = cpu_ns();
    uint64_t old_count = kept_count;
    kept_count = still_bytes = 0;
    for (uint64_t i = 0; i < old_count; i++) release_or_keep(kept_list[i]);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t entry;
        while ((entry = hak_atomic_exchange(&list[i], 0, acquire)) == 0) {
        } /* it is being appended */
        release_or_keep(entry);
    }
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) release_batch(i);
    count_figure(FIGURE_releasing_ns, cpu_ns() - before);
    count_figure(FIGURE_kept_bytes, still_bytes);
}

static void run_marker(void) {
    hak_thread_refuse_heap();
    for (;;) {
        while (hak_atomic_load(&is_asked, acquire) == 0) wait_while(&is_asked, 0, 0);
        run_round();
        hak_atomic_store(&is_asked, 0, release);
    }
}

/* In a child there is no marker, and a round of the parent's doesn't end (M3). */
static void look_for_fork(void) {
    int process = getpid();
    if (hak_atomic_load(&own_process, relaxed) == process) return;
    hak_atomic_store(&own_process, process, relaxed);
    hak_atomic_store(&is_in_round, 0, relaxed);
    hak_atomic_store(&is_asked, 0, relaxed);
    hak_atomic_store(&marker, 0, relaxed);
    hak_atomic_store(&is_stopping, 0, relaxed);
    kept_count = still_bytes = 0;
    memset(batch_counts, 0, sizeof batch_counts);
    if (watch >= 0) close(watch), close(pagemap);
    watch = pagemap = -1;
    watched_units = deaf_count = stack_count = 0;
}

static HAK_COLD void begin_marking_round(void) {
    int saved_errno = errno;
    look_for_fork();
    if (design <= 1) {
        if (hak_atomic_exchange(&is_in_round, 1, acquire) == 0) {
            run_round();
            hak_atomic_store(&is_in_round, 0, release);
        }
    } else if (hak_atomic_load(&is_asked, relaxed) == 0) {
        if (hak_atomic_exchange(&marker, 1, relaxed) == 0 && !hak_os_start_thread(run_marker, NULL)) abort();
        hak_atomic_store(&is_asked, 1, release);
        wake_all(&is_asked);
    }
    errno = saved_errno;
}

/* ---- pool/quarantine.h ------------------------------------------------------------------------------------------- */

static void append(uint64_t entry) {
    uint64_t place = hak_atomic_fetch_add(&list_cursor, 1, acq_rel);
    if ((place & ~SECOND_LIST) >= LIST_CAPACITY) abort();
    hak_atomic_store(&lists[place >> 63][place & ~SECOND_LIST], entry, release);
}

void *hak_quarantine_exchange(void *block, uint32_t size_class, uint64_t turn, const void **twice) {
    (void)turn;
    *twice = NULL;
    if (design < 0) return block;
    uint64_t bytes = hak_size_classes[size_class].block_bytes;
    append((uint64_t)size_class << CLASS_SHIFT | (uintptr_t)block);
    if (hak_atomic_fetch_add(&waiting_bytes, bytes, relaxed) + bytes >= hak_atomic_load(&threshold, relaxed))
        begin_marking_round();
    return NULL;
}

void *hak_quarantine_release(uint32_t size_class, uint64_t turn, const void **twice) {
    (void)size_class, (void)turn;
    *twice = NULL;
    return NULL;
}

void hak_quarantine_begin(void) { hak_atomic_store(&hak_secret, hak_os_random(HAK_RANDOM_QUARANTINE) | 1, relaxed); }
void hak_quarantine_seed(uint64_t seed) { (void)seed; }
void hak_quarantine_prefetch(const void *block, uint32_t size_class) { (void)block, (void)size_class; }
bool hak_quarantine_has(const void *block, uint32_t size_class) { return (void)block, (void)size_class, false; }
uint32_t hak_quarantine_count(uint32_t size_class) { return (void)size_class, 0; }
void hak_quarantine_empty(struct hak_heap *heap) { (void)heap; }

static void count_large(uint64_t bytes) { count_figure(FIGURE_freed_large, bytes); }
#define hak_freed_note(heap, start, bytes) (count_large(bytes), hak_freed_note(heap, start, bytes))

__attribute__((destructor)) static void count_rest(void) {
    if (design < 0) return;
    count_figure(FIGURE_freed_blocks, hak_atomic_load(&list_cursor, relaxed) & ~SECOND_LIST);
    count_figure(FIGURE_freed_bytes, hak_atomic_load(&waiting_bytes, relaxed));
}

__attribute__((constructor(102))) static void begin_marking(void) {
    char *text = getenv("MARKING");
    if (text == NULL) return;
    int wanted = (int)strtol(text, &text, 10);
    percent = strtoull(text + 1, &text, 10);
    floor_bytes = strtoull(text + 1, &text, 10) << 10;
    int file = open(text + 1, O_RDWR | O_CLOEXEC | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, sizeof own_figures) != 0) abort();
    (void)!fchmod(file, 0666); /* whoever the program goes on as */
    figures = mmap(NULL, sizeof own_figures, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (figures == MAP_FAILED) abort();
    for (int i = 0; i < 2; i++) lists[i] = reserve(LIST_CAPACITY * sizeof *lists[i]);
    kept_list = reserve(LIST_CAPACITY * sizeof *kept_list);
    marks = reserve(MOST_UNITS * ROW_BYTES);
    stop_signal = SIGRTMAX - 1;
    struct sigaction action = {.sa_handler = stay, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    sigaction(stop_signal, &action, NULL);
    hak_atomic_store(&own_process, getpid(), relaxed);
    hak_atomic_store(&threshold, floor_bytes, relaxed);
    design = wanted;
}
