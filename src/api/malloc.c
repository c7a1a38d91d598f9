/* malloc and its family: names and argument rules. Each function is defined once, as hak_*; the standard names are
 * aliases of it, unless HAK_NO_OVERRIDE asks for hak_* only. */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/override.h"
#include "base/knobs.h"
#include "control/ace.h"
#include "front/meter.h"
#include "front/miss.h"
#include "front/process.h"
#include "front/statistics.h"
#include "observe/stack.h"
#include "os/os.h"
#include "pool/heap_check.h"
#include "pool/sparse.h"

/* ---- malloc, free, calloc, realloc ------------------------------------------------------------------------------- */

/* As a last act of the public function: so that what it returns to is read here, and not in hits. */
static HAK_MISS void *malloc_missed(size_t size) { return hak_front_alloc_miss(size, HAK_CALLER()); }

HAK_HIT void *hak_malloc(size_t size) {
    void *block = hak_front_take(size, HAK_FROM_MALLOC);
    return HAK_LIKELY(block != NULL) ? block : malloc_missed(size);
}

HAK_HIT void hak_free(void *block) { hak_front_free(block, HAK_FROM_MALLOC); }

void hak_free_sized(void *block, size_t size) { hak_front_free_sized(block, size, HAK_FROM_MALLOC); }

void hak_free_aligned_sized(void *block, size_t alignment, size_t size) {
    hak_front_free_aligned_sized(block, alignment, size, HAK_FROM_MALLOC);
}

static HAK_COLD void *fail(int error) {
    errno = error;
    return NULL;
}

static HAK_MISS void *calloc_missed(size_t bytes) {
    HAK_WALKABLE();
    void *block = hak_front_alloc_miss(bytes, HAK_CALLER());
    return block == NULL ? block : memset(block, 0, bytes);
}

HAK_HIT void *hak_calloc(size_t count, size_t size) {
    size_t bytes;
    if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return fail(ENOMEM);
    if (bytes > HAK_SMALL_MAX) return hak_front_alloc_large(bytes, HAK_ALIGNMENT, true, HAK_CALLER());
    void *block = hak_front_take(bytes, HAK_FROM_MALLOC);
    if (HAK_UNLIKELY(block == NULL)) return calloc_missed(bytes);
    return HAK_SECURE ? block : memset(block, 0, bytes);
}

/* To a block that has been made. */
HAK_INLINE void *move_to(void *moved, void *block, size_t room, size_t size) {
    memcpy(moved, block, size < room ? size : room);
    hak_front_free(block, HAK_FROM_MALLOC);
    return moved;
}

static HAK_MISS void *move_missed(const struct hak_place *place, size_t size, const void *caller) {
    HAK_WALKABLE();
    int saved_errno = errno;
    void *moved = hak_front_alloc_miss(size, caller);
    if (moved != NULL) return move_to(moved, (void *)place->start, place->bytes, size);
    moved = hak_front_stay(place, size, caller);
    if (moved != NULL) errno = saved_errno;
    return moved;
}

static void *move_block(const struct hak_place *place, size_t size, const void *caller) {
    HAK_WALKABLE();
    void *moved = hak_front_take(size, HAK_FROM_MALLOC);
    return HAK_LIKELY(moved != NULL) ? move_to(moved, (void *)place->start, place->bytes, size)
                                     : move_missed(place, size, caller);
}

static HAK_MISS void *resize_large(const struct hak_place *place, size_t size, const void *caller) {
    HAK_WALKABLE();
    int saved_errno = errno;
    void *resized = hak_front_resize_large(place, size, caller);
    if (resized == NULL) resized = move_block(place, size, caller);
    if (HAK_LIKELY(resized != NULL)) return resized;
    resized = hak_front_resize_at_last(place, size, caller);
    if (resized != NULL) errno = saved_errno; /* of the move that was refused */
    return resized;
}

/* It has room, and at most half of that would be wasted. */
HAK_INLINE bool fits(size_t room, size_t size) {
    return size <= room && (size > room / 2 || room <= (size_t)4 * HAK_ALIGNMENT);
}

static HAK_MISS void *reallocate(void *block, size_t size) {
    if (HAK_UNLIKELY(size > PTRDIFF_MAX)) return fail(ENOMEM);
    struct hak_place place = hak_front_place_to_resize(block, "realloc");
    if (size == 0) {
        hak_front_free(block, HAK_FROM_MALLOC);
        return NULL;
    }
    HAK_WALKABLE();
    if (hak_place_is_large(&place)) return resize_large(&place, size, HAK_CALLER());
    bool stays = fits(hak_front_room(&place), size);
    /* A block between guards has to end where it was asked: it stays at its own size only. */
    if (HAK_UNLIKELY(place.kind == HAK_PLACE_GUARDED)) stays = size == place.bytes;
    return stays ? hak_front_end_at(block, size) : move_block(&place, size, HAK_CALLER());
}

/* As a last act, like malloc_missed. */
static HAK_MISS void *move_small_missed(void *block, size_t size, uint32_t size_class) {
    HAK_WALKABLE();
    size_t room = hak_usable_bytes(size_class);
    struct hak_place place = {
        .kind = HAK_PLACE_SMALL, .size_class = size_class, .start = (uintptr_t)block, .bytes = room};
    return move_missed(&place, size, HAK_CALLER());
}

static HAK_MISS void *move_small(void *block, size_t size, uint32_t size_class) {
    void *moved = hak_front_take(size, HAK_FROM_MALLOC);
    if (HAK_UNLIKELY(moved == NULL)) return move_small_missed(block, size, size_class);
    return move_to(moved, block, hak_usable_bytes(size_class), size);
}

void *hak_realloc(void *block, size_t size) {
    if (block == NULL) return hak_malloc(size);
    uint32_t size_class = hak_front_class_to_resize(block);
    bool is_plain = HAK_LIKELY(size_class != HAK_CLASS_NONE) && HAK_LIKELY(size - 1 < PTRDIFF_MAX);
    if (HAK_UNLIKELY(!is_plain)) return reallocate(block, size);
    return fits(hak_usable_bytes(size_class), size) ? block : move_small(block, size, size_class);
}

/* By one realloc or another. */
HAK_INLINE void *reallocate_array(void *block, size_t count, size_t size, void *(*by)(void *, size_t)) {
    size_t bytes;
    if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) return fail(ENOMEM);
    return by(block, bytes);
}

void *hak_reallocarray(void *block, size_t count, size_t size) {
    return reallocate_array(block, count, size, hak_realloc);
}

/* ---- Alignment --------------------------------------------------------------------------------------------------- */

/* `alignment` is a power of two. */
static void *alloc_aligned(size_t alignment, size_t size, const void *caller) {
    if (alignment <= HAK_ALIGNMENT) return hak_front_alloc(size, caller);
    if (HAK_UNLIKELY(!hak_process_initialize())) return fail(ENOMEM);
    uint32_t size_class = hak_size_class_of_aligned(alignment, size);
    if (HAK_SECURE) HAK_WALKABLE();
    if (size_class != HAK_CLASS_NONE)
        return hak_front_end_fresh_at(hak_front_alloc(hak_usable_bytes(size_class), caller), size);
    return hak_front_alloc_large(size, alignment, false, caller);
}

void *hak_aligned_alloc(size_t alignment, size_t size) {
    if (HAK_UNLIKELY(!hak_is_power_of_two(alignment))) return fail(EINVAL);
    return alloc_aligned(alignment, size, HAK_CALLER());
}

void *hak_memalign(size_t alignment, size_t size) {
    if (HAK_UNLIKELY(alignment > (size_t)1 << 63)) return fail(EINVAL);
    /* As in glibc: the next power of two will do. */
    if (!hak_is_power_of_two(alignment)) alignment = alignment == 0 ? 1 : (size_t)2 << hak_highest_bit(alignment);
    return alloc_aligned(alignment, size, HAK_CALLER());
}

int hak_posix_memalign(void **block, size_t alignment, size_t size) {
    if (!hak_is_power_of_two(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
    HAK_WALKABLE();
    void *made = alloc_aligned(alignment, size, HAK_CALLER());
    if (made == NULL) return ENOMEM; /* as errno says, too, with glibc and here */
    *block = made;
    return 0;
}

void *hak_valloc(size_t size) { return alloc_aligned(hak_os_page_bytes(), size, HAK_CALLER()); }

void *hak_pvalloc(size_t size) {
    size_t page = hak_os_page_bytes();
    if (HAK_UNLIKELY(size > PTRDIFF_MAX)) return fail(ENOMEM);
    return alloc_aligned(page, size == 0 ? page : hak_align_up(size, page), HAK_CALLER());
}

/* ---- Questions and requests -------------------------------------------------------------------------------------- */

size_t hak_malloc_usable_size(void *block) {
    return block == NULL ? 0 : hak_front_place_of(block, "malloc_usable_size").bytes;
}

size_t hak_malloc_good_size(size_t size) {
    if (!hak_process_initialize() || size > PTRDIFF_MAX - hak_os_page_bytes()) return size;
    if (HAK_SECURE) return size;
    if (size > HAK_SMALL_MAX) return hak_align_up(size, hak_os_page_bytes());
    return hak_usable_bytes(hak_size_class_of(size));
}

void *hak_alloc_at_least(size_t size, size_t *usable) {
    HAK_WALKABLE();
    void *block = hak_front_alloc(size, HAK_CALLER());
    if (block != NULL) *usable = hak_front_usable_bytes_of(block);
    return block;
}

int hak_owns(const void *address) { return hak_region_covers((uintptr_t)address); }

int hak_should_move(const void *block) { return hak_sparse_holds((uintptr_t)block); }

int hak_heap_check(void) {
    if (!HAK_SECURE) return ENOTSUP;
    if (hak_process_initialize()) hak_heap_check_all();
    return 0;
}

size_t hak_purge(void) {
    if (!hak_process_initialize()) return 0;
    return hak_front_purge();
}

size_t hak_thread_prewarm(size_t max_size) { return hak_front_prewarm(max_size); }

int hak_stats(struct hak_statistics *stats, size_t size) {
    if (stats == NULL) return EINVAL;
    struct hak_statistics total;
    hak_statistics_take(&total);
    memset(stats, 0, size);
    memcpy(stats, &total, size < sizeof *stats ? size : sizeof *stats);
    return 0;
}

int hak_profile_start(size_t interval) {
    if (interval == 0) return EINVAL;
    return hak_meter_start(interval) ? 0 : ENOMEM;
}

void hak_profile_stop(void) { hak_meter_stop(); }

int hak_profile_save(const char *path) {
    int saved_errno = errno, descriptor = path == NULL ? -1 : hak_os_create_file(path);
    int error = path == NULL ? EINVAL : descriptor < 0 ? errno : 0;
    errno = saved_errno;
    if (error != 0) return error;
    error = hak_profile_write(descriptor);
    hak_os_close(descriptor);
    return error;
}

#ifndef HAK_NO_OVERRIDE

/* By its public name: a program that has a realloc of its own may have no reallocarray. */
static void *public_reallocarray(void *block, size_t count, size_t size) {
    extern void *public_realloc(void *, size_t) __asm__("realloc");
    return reallocate_array(block, count, size, public_realloc);
}

/* By its public name, and without a look at the size, as glibc's do: a program that has a malloc of its own may have
 * neither of these; and some pass the largest of several sizes (GLib's g_free). */
static void public_free_sized(void *block, size_t size) {
    extern void public_free(void *) __asm__("free");
    (void)size;
    public_free(block);
}

static void public_free_aligned_sized(void *block, size_t alignment, size_t size) {
    (void)alignment;
    public_free_sized(block, size);
}

static int trim(size_t pad) {
    (void)pad;
    return hak_purge() > 0;
}

/* In memory of its own: it would be too much for the stack of a coroutine. */
struct printed_stats {
    struct hak_snapshot snapshot;
    char text[HAK_STATISTICS_BYTES];
};

static void print_stats(void) {
    static const char refused[] = "hakmem: no memory for the statistics' text\n";
    size_t page = hak_os_page_bytes(), bytes = hak_align_up(sizeof(struct printed_stats), page);
    struct printed_stats *printed = hak_os_map(bytes, page);
    if (printed == NULL) {
        hak_os_write(STDERR_FILENO, refused, sizeof refused - 1);
        return;
    }
    struct hak_text text = hak_text_in(printed->text, sizeof printed->text);
    hak_statistics_write_text(&printed->snapshot, false, &text);
    hak_os_write(STDERR_FILENO, text.start, text.length);
    hak_os_unmap(printed, bytes);
}

/* What mallopt was told. */
static HAK_ATOMIC(bool) never_trims, maps_nothing;

/* A knob that mallopt sets; and what it was before, while it is set: never what was only on trial. */
struct tuned_knob {
    enum hak_knob_number knob;
    HAK_ATOMIC(bool) is_set;
    HAK_ATOMIC(uint64_t) before;
};

static void tune(struct tuned_knob *tuned, bool sets, uint64_t value) {
    bool was_set = hak_atomic_load(&tuned->is_set, relaxed);
    if (sets && !was_set) hak_atomic_store(&tuned->before, hak_ace_chosen(tuned->knob), relaxed);
    hak_atomic_store(&tuned->is_set, sets, relaxed);
    if (sets) hak_knob_give(tuned->knob, value);
    else if (was_set) hak_knob_give(tuned->knob, hak_atomic_load(&tuned->before, relaxed));
}

static void raise_knob(struct tuned_knob *raised, bool is_raised) {
    tune(raised, is_raised, hak_knob_table[raised->knob].highest);
}

/* For programs that must not fault once they have begun their work: what was used once stays, for an hour. Objects
 * above run_limit_bytes, which glibc maps and unmaps, only where it is also told to map nothing. */
static void keep_freed(bool all, bool mappings) {
    static struct tuned_knob dirty_limit = {.knob = HAK_KNOB_dirty_limit_bytes}, decay = {.knob = HAK_KNOB_decay_ms},
                             cache = {.knob = HAK_KNOB_mapping_cache_bytes};
    raise_knob(&dirty_limit, all);
    raise_knob(&decay, all);
    raise_knob(&cache, all && mappings);
}

/* Who sets what glibc has anyway wants the usual: not that most of what is free goes back in each call. */
static void limit_free_memory(uint64_t bytes) {
    enum { USUAL_TRIM_THRESHOLD = 128 << 10 };
    static struct tuned_knob limit = {.knob = HAK_KNOB_dirty_limit_bytes};
    tune(&limit, bytes != USUAL_TRIM_THRESHOLD, bytes);
}

/* glibc's parameters by their numbers, which musl's headers lack. Those that have a counterpart here set a knob; the
 * others are accepted and mean nothing. Returns 1. */
static int set_parameter(int parameter, int value) {
    enum { TRIM_THRESHOLD = -1, MMAP_THRESHOLD = -3, MMAP_MAX = -4 };
    if (parameter == TRIM_THRESHOLD) hak_atomic_store(&never_trims, value < 0, relaxed);
    if (parameter == MMAP_MAX) hak_atomic_store(&maps_nothing, value == 0, relaxed);
    keep_freed(hak_atomic_load(&never_trims, relaxed), hak_atomic_load(&maps_nothing, relaxed));
    if (parameter == TRIM_THRESHOLD && value >= 0) limit_free_memory((uint64_t)value);
    if (parameter == MMAP_THRESHOLD && value >= 0) {
        uint64_t limit = (uint64_t)value;
        if (limit < HAK_MIB / 2) limit = HAK_MIB / 2;
        if (limit > 32 * HAK_MIB) limit = 32 * HAK_MIB;
        hak_knob_give(HAK_KNOB_run_limit_bytes, limit);
    }
    return 1;
}

HAK_OVERRIDE(hak_malloc, malloc, (size_t), void *);
HAK_OVERRIDE(hak_free, free, (void *), void);
HAK_OVERRIDE(hak_free, cfree, (void *), void);
HAK_OVERRIDE(hak_calloc, calloc, (size_t, size_t), void *);
HAK_OVERRIDE(hak_realloc, realloc, (void *, size_t), void *);
HAK_OVERRIDE(public_reallocarray, reallocarray, (void *, size_t, size_t), void *);
HAK_OVERRIDE(hak_aligned_alloc, aligned_alloc, (size_t, size_t), void *);
HAK_OVERRIDE(hak_memalign, memalign, (size_t, size_t), void *);
HAK_OVERRIDE(hak_posix_memalign, posix_memalign, (void **, size_t, size_t), int);
HAK_OVERRIDE(hak_valloc, valloc, (size_t), void *);
HAK_OVERRIDE(hak_pvalloc, pvalloc, (size_t), void *);
HAK_OVERRIDE(hak_malloc_usable_size, malloc_usable_size, (void *), size_t);
HAK_OVERRIDE(public_free_sized, free_sized, (void *, size_t), void);
HAK_OVERRIDE(public_free_aligned_sized, free_aligned_sized, (void *, size_t, size_t), void);
HAK_OVERRIDE(trim, malloc_trim, (size_t), int);
HAK_OVERRIDE(print_stats, malloc_stats, (void), void);
HAK_OVERRIDE(set_parameter, mallopt, (int, int), int);

#ifdef __GLIBC__

/* What glibc's own parts and old programs call. */
HAK_OVERRIDE(hak_malloc, __libc_malloc, (size_t), void *);
HAK_OVERRIDE(hak_free, __libc_free, (void *), void);
HAK_OVERRIDE(hak_calloc, __libc_calloc, (size_t, size_t), void *);
HAK_OVERRIDE(hak_realloc, __libc_realloc, (void *, size_t), void *);
HAK_OVERRIDE(hak_memalign, __libc_memalign, (size_t, size_t), void *);
HAK_OVERRIDE(hak_valloc, __libc_valloc, (size_t), void *);
HAK_OVERRIDE(hak_pvalloc, __libc_pvalloc, (size_t), void *);
HAK_OVERRIDE(hak_posix_memalign, __posix_memalign, (void **, size_t, size_t), int);

#define FILL_MALLINFO(info, number)                                                                                    \
    do {                                                                                                               \
        struct hak_statistics total;                                                                                   \
        hak_statistics_take(&total);                                                                                   \
        (info).arena = (number)total.committed_bytes;                                                                  \
        (info).hblks = (number)total.large_blocks;                                                                     \
        (info).hblkhd = (number)total.large_bytes;                                                                     \
        (info).uordblks = (number)total.live_bytes;                                                                    \
        (info).fordblks = (number)(total.free_bytes + total.cached_bytes);                                             \
        (info).fsmblks = (number)total.cached_bytes;                                                                   \
        (info).smblks = (number)total.cached_blocks;                                                                   \
        (info).keepcost = (number)(hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES);                       \
    } while (0)

HAK_API struct mallinfo mallinfo(void) {
    struct mallinfo info = {0};
    FILL_MALLINFO(info, int);
    return info;
}

/* Programs call it that were built with glibc 2.33 or later. HAK_MALLINFO2: older headers that have the struct. */
#if __GLIBC_PREREQ(2, 33) || defined(HAK_MALLINFO2)
HAK_API struct mallinfo2 mallinfo2(void) {
    struct mallinfo2 info = {0};
    FILL_MALLINFO(info, size_t);
    return info;
}
#endif

HAK_API int malloc_info(int options, FILE *stream) {
    if (options != 0) return EINVAL;
    char buffer[1024];
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    struct hak_statistics total;
    hak_statistics_take(&total);
    hak_text_add(&text, "<malloc version=\"1\">\n<total type=\"rest\" count=\"%lu\" size=\"%lu\"/>\n",
                 (unsigned long)total.cached_blocks, (unsigned long)(total.free_bytes + total.cached_bytes));
    hak_text_add(&text, "<total type=\"mmap\" count=\"%lu\" size=\"%lu\"/>\n", (unsigned long)total.large_blocks,
                 (unsigned long)total.large_bytes);
    hak_text_add(&text, "<system type=\"current\" size=\"%lu\"/>\n<aspace type=\"total\" size=\"%lu\"/>\n</malloc>\n",
                 (unsigned long)total.committed_bytes, (unsigned long)total.mapped_bytes);
    return fputs(text.start, stream) < 0 ? -1 : 0;
}

#endif
#endif
