/* delay: preloaded before a program's allocator, makes its calls take longer by a known time, counts them and times some.
 *
 * HAK_DELAY=MALLOC:FREE:TOUCH:FILE. A call that hands out a block takes MALLOC ns longer, one that takes back a block FREE ns.
 * A call that hands out pages which none before it has handed out takes TOUCH ns longer for each of them. All processes of the
 * command count into FILE (struct counts). Without FILE, or where it can't be mapped, calls pass as they are.
 *
 * D1  What was waited is counted as it was by the clock, so that it is known however long a look at the clock takes. A wait
 *     that is longer by STOPPED_NS is one in which the thread did not run. It counts as what it was to be.
 * D2  The calls pass through this library alike whatever the delays are, a wait of 0 ns too: two runs differ by the difference of
 *     what was waited.
 * D3  One call in TIMED_EVERY of a thread is timed. A prime: no period of the program's keeps step with it. */
#include "next.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum {
    CLASS_COUNT = 48,
    LINE_COUNT = 256,
    TIMED_EVERY = 17,
    CLOCK_READS = 1000,
    STOPPED_NS = 20000,
    PAGE_SHIFT = 12,
    ADDRESS_BITS = 47
};

struct tally {
    _Atomic uint64_t count;
    _Atomic uint64_t timed_count;
    _Atomic uint64_t timed_ns;
};

/* Of the threads that share it; one, unless they are many. Class n is of sizes up to 2^n and above the one before. */
struct line {
    _Alignas(64) struct tally allocations[CLASS_COUNT];
    struct tally frees;
    _Atomic uint64_t page_count;
    _Atomic uint64_t waited_ns;
};

/* The file, which lab/hakmem/delays.py reads. */
struct counts {
    _Atomic uint64_t thread_count;
    _Atomic uint64_t clock_ns; /* that CLOCK_READS looks at the clock take */
    struct line lines[LINE_COUNT];
};

static struct counts *counts;       /* NULL: calls pass as they are */
static _Atomic uint64_t *was_given; /* a bit for each page of the address space */
static uint64_t malloc_ns, free_ns, touch_ns;

static _Thread_local struct line *own __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t call_count __attribute__((tls_model("initial-exec")));
/* Of calls; only the outermost is counted, timed and delayed. */
static _Thread_local volatile uint32_t depth __attribute__((tls_model("initial-exec")));

static void add(_Atomic uint64_t *sum, uint64_t value) { atomic_fetch_add_explicit(sum, value, memory_order_relaxed); }

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static uint64_t time_of_looks(void) {
    uint64_t start = now_ns();
    for (int i = 1; i < CLOCK_READS; i++) {
        now_ns();
    }
    return now_ns() - start;
}

static void map_counts(void) {
    const char *text = getenv("HAK_DELAY");
    unsigned long of_malloc, of_free, of_touch;
    int length = 0;
    if (!text || sscanf(text, "%lu:%lu:%lu:%n", &of_malloc, &of_free, &of_touch, &length) != 3 || length == 0) {
        return;
    }
    int file = open(text + length, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return;
    }
    bool is_sized = ftruncate(file, sizeof *counts) == 0;
    void *shared = is_sized ? mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    size_t bytes = (size_t)1 << (ADDRESS_BITS - PAGE_SHIFT - 3);
    void *bits = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED || bits == MAP_FAILED) {
        return;
    }
    madvise(bits, bytes, MADV_NOHUGEPAGE);
    malloc_ns = of_malloc;
    free_ns = of_free;
    touch_ns = of_touch;
    was_given = bits;
    counts = shared;
    if (atomic_load_explicit(&counts->clock_ns, memory_order_relaxed) == 0) {
        atomic_store_explicit(&counts->clock_ns, time_of_looks(), memory_order_relaxed);
    }
}

static bool is_ready(void) { return find_next_once(NULL); }

/* Calls before it, of the dynamic linker and of libraries that begin earlier, pass as they are. */
__attribute__((constructor)) static void begin_with_the_program(void) {
    int error = errno;
    if (is_ready()) {
        map_counts();
    }
    errno = error;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static struct line *line(void) {
    if (!own) {
        uint64_t number = atomic_fetch_add_explicit(&counts->thread_count, 1, memory_order_relaxed);
        own = &counts->lines[number % LINE_COUNT];
    }
    return own;
}

static void wait_ns(uint64_t asked_ns) {
    uint64_t start = now_ns(), waited_ns;
    do {
        waited_ns = now_ns() - start;
    } while (waited_ns < asked_ns);
    add(&line()->waited_ns, waited_ns > asked_ns + STOPPED_NS ? asked_ns : waited_ns);
}

/* Returns the time, or 0 for a call that isn't timed. */
static uint64_t enter(void) { return depth++ == 0 && counts && ++call_count % TIMED_EVERY == 0 ? now_ns() : 0; }

static void tally(struct tally *of, uint64_t start_ns) {
    add(&of->count, 1);
    if (start_ns) {
        add(&of->timed_ns, now_ns() - start_ns);
        add(&of->timed_count, 1);
    }
}

/* How many pages of a block none before it has had a byte on. */
static uint64_t new_pages(const void *block, size_t bytes) {
    uint64_t count = 0, last = ((uintptr_t)block + (bytes ? bytes - 1 : 0)) >> PAGE_SHIFT;
    for (uint64_t page = (uintptr_t)block >> PAGE_SHIFT; page <= last && page >> (ADDRESS_BITS - PAGE_SHIFT) == 0;
         page++) {
        _Atomic uint64_t *word = &was_given[page / 64];
        uint64_t bit = (uint64_t)1 << page % 64;
        if (!(atomic_load_explicit(word, memory_order_relaxed) & bit)) {
            count += !(atomic_fetch_or_explicit(word, bit, memory_order_relaxed) & bit);
        }
    }
    return count;
}

/* Ends a call that hands out a block; NULL is none. */
static void *leave(uint64_t start_ns, void *block, size_t bytes) {
    if (--depth == 0 && counts && block) {
        int error = errno;
        unsigned class = bytes <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(bytes - 1);
        tally(&line()->allocations[class < CLASS_COUNT ? class : CLASS_COUNT - 1], start_ns);
        uint64_t page_count = new_pages(block, bytes);
        if (page_count) {
            add(&own->page_count, page_count);
            wait_ns(touch_ns * page_count);
        }
        wait_ns(malloc_ns);
        errno = error;
    }
    return block;
}

/* Ends a call that takes back a block. */
static void leave_free(uint64_t start_ns) {
    if (--depth == 0 && counts) {
        tally(&line()->frees, start_ns);
        wait_ns(free_ns);
    }
}

EXPORT void *malloc(size_t bytes) {
    if (!is_ready()) {
        return early_allocate(bytes);
    }
    uint64_t start_ns = enter();
    return leave(start_ns, next.malloc(bytes), bytes);
}

EXPORT void *calloc(size_t count, size_t bytes_each) {
    if (!is_ready()) {
        size_t bytes;
        return __builtin_mul_overflow(count, bytes_each, &bytes) ? NULL : early_allocate(bytes); /* never used before */
    }
    uint64_t start_ns = enter();
    return leave(start_ns, next.calloc(count, bytes_each), count * bytes_each);
}

EXPORT void free(void *block) {
    if (!block || is_early(block) || !is_ready()) {
        return;
    }
    uint64_t start_ns = enter();
    next.free(block);
    leave_free(start_ns);
}

EXPORT void *realloc(void *block, size_t bytes) {
    if (is_early(block) || !is_ready()) {
        return early_reallocate(block, bytes);
    }
    uint64_t start_ns = enter();
    void *moved = next.realloc(block, bytes);
    if (block && bytes == 0 && !moved) { /* as in the C library */
        leave_free(start_ns);
        return NULL;
    }
    return leave(start_ns, moved, bytes);
}

EXPORT int posix_memalign(void **result, size_t alignment, size_t bytes) {
    if (!is_ready()) {
        return ENOMEM;
    }
    uint64_t start_ns = enter();
    int error = next.posix_memalign(result, alignment, bytes);
    leave(start_ns, error == 0 ? *result : NULL, bytes);
    return error;
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes) {
    if (!is_ready()) {
        return NULL;
    }
    uint64_t start_ns = enter();
    return leave(start_ns, next.aligned_alloc(alignment, bytes), bytes);
}

EXPORT void *memalign(size_t alignment, size_t bytes) {
    if (!is_ready()) {
        return NULL;
    }
    uint64_t start_ns = enter();
    return leave(start_ns, next.memalign(alignment, bytes), bytes);
}
