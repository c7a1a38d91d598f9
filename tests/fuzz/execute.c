/* The allocator under test is one of three:
 *
 *     FUZZ_HAK       hak_* names only. malloc is the C library's: where no sanitizer has replaced it, each call is made
 *                    there, too, and must end the same way (FUZZ_REFERENCE)
 *     FUZZ_STANDARD  malloc is hakmem's
 *     FUZZ_OUTSIDE   malloc is the C library's: it must pass, or the tests ask for too much
 */
#include "execute.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inside.h"
#include "kernel.h"
#include "oracle.h"
#include "threads.h"

#ifndef FUZZ_OUTSIDE
#include "hakmem/hakmem.h"
#endif

#ifdef FUZZ_HAK
#define M(name) hak_##name
#else
#define M(name) name
#endif

#ifdef FUZZ_OUTSIDE
enum { IS_HAKMEM = 0, IS_SECURE = 0, ALL_BLOCKS_ARE_OURS = 0 };
#define hak_owns(address) ((void)(address), 1)
#define hak_thread_prewarm(size) ((void)(size), 0)
#define hak_heap_check() ((void)0)
#define free_sized(block, size) free(block)
#define free_aligned_sized(block, alignment, size) free(block)
#else
#ifdef HAK_SECURE
enum { IS_HAKMEM = 1, IS_SECURE = 1 };
#else
enum { IS_HAKMEM = 1, IS_SECURE = 0 };
#endif
#ifdef FUZZ_HAK
enum { ALL_BLOCKS_ARE_OURS = 1 };
#else
enum { ALL_BLOCKS_ARE_OURS = 0 }; /* libc has some */
void free_sized(void *block, size_t size);
void free_aligned_sized(void *block, size_t alignment, size_t size);
#endif
#endif

#define MIB ((size_t)1 << 20)

/* AddressSanitizer's own allocator, which serves libc's calls beside hak_*, may be locked for ever in the child. */
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
enum { MAY_FORK_FREELY = 0 };
#else
enum { MAY_FORK_FREELY = 1 };
#endif

enum { ERRNO_KEPT = 1234, GROUP_BLOCKS = 2048, FORK_DEPTH = 2, MOST_FORKS = 3, CHILD_SECONDS = 200 };

/* Larger ones are never kept, and may fail. */
#define HUGE_BYTES (128 * MIB)
#define LIVE_BYTES (256 * MIB)
#define FILL_BYTES (4 * MIB)
/* Of large blocks, in all: they take time. */
#define LARGE_BYTES_IN_ALL (512 * MIB)

struct slot {
    atomic_int busy; /* a thread is at it */
    struct block block;
};

struct group {
    atomic_int busy;
    unsigned count;
    struct block blocks[GROUP_BLOCKS];
};

static const struct program *program_now;
static struct slot slots[PROGRAM_SLOTS];
static struct group groups[PROGRAM_GROUPS];
static _Atomic size_t live_bytes, live_blocks, large_bytes_in_all;
static _Atomic uint32_t next_id;
static _Atomic unsigned forks;
static unsigned fork_depth;
/* Once calls were refused, no huge block is asked for from calloc: it may be a mapping that the kernel would neither take
 * back nor empty, and hakmem would write zeros to all of its TiB (open/README.md). */
static uint64_t refused_at_start;
static int has_own_threads; /* hakmem has: it is never quite at rest, and does the background's part itself */
static int has_lost;        /* in a child: what other threads had in hand when it was forked */

/* ---- Single calls ----------------------------------------------------------------------------------------------- */

/* What a call may end with. */
struct terms {
    size_t size, alignment;
    int error; /* it must fail with this; 0: it must not fail, but for want of memory */
    uint64_t refused_before;
};

static struct terms terms_of(size_t size, size_t alignment, int error) {
    struct terms terms = {size, alignment, error, kernel_refused()};
    if (error == 0 && size > PTRDIFF_MAX) terms.error = ENOMEM;
    return terms;
}

static int may_fail(const struct terms *terms) {
    return terms->size > HUGE_BYTES || terms->alignment > HUGE_BYTES || kernel_refused() != terms->refused_before;
}

/* `error` is errno, or what the call has returned. */
static void judge(const struct terms *terms, const void *block, int error) {
    if (block == NULL) {
        EXPECT(error == (terms->error != 0 ? terms->error : ENOMEM), "NULL and errno %d for %#zx bytes at %#zx", error,
               terms->size, terms->alignment);
        EXPECT(terms->error != 0 || may_fail(terms), "no memory for %#zx bytes at %#zx, and the kernel refused nothing",
               terms->size, terms->alignment);
        return;
    }
    size_t alignment = terms->alignment < 16 ? 16 : terms->alignment;
    EXPECT(terms->error == 0, "a block of %#zx bytes at %#zx instead of errno %d", terms->size, terms->alignment,
           terms->error);
    EXPECT(((uintptr_t)block & (alignment - 1)) == 0, "block %p is not at a multiple of %#zx", block, alignment);
    EXPECT(!IS_HAKMEM || error == ERRNO_KEPT, "errno became %d", error);
}

static int is_power_of_two(size_t number) { return number != 0 && (number & (number - 1)) == 0; }

static size_t next_power_of_two(size_t number) {
    size_t power = 1;
    while (power < number) power *= 2;
    return power;
}

static int has_sign_of_overflow(size_t count, size_t size) { return size != 0 && count > SIZE_MAX / size; }

#if defined(FUZZ_HAK) && defined(FUZZ_REFERENCE)
/* What the C library does with the same call. */
static void compare(enum step_kind kind, const struct terms *terms, size_t asked_alignment, const void *block,
                    int error) {
    void *other = NULL;
    int its_error = 0;
    if (kernel_refused() != terms->refused_before || (terms->size > MIB && terms->size <= PTRDIFF_MAX) ||
        asked_alignment > MIB)
        return;
    errno = 0;
    switch (kind) {
    case STEP_MALLOC: other = malloc(terms->size); break;
    case STEP_CALLOC: other = calloc(1, terms->size); break;
    case STEP_REALLOC:
    case STEP_REALLOCARRAY: other = realloc(NULL, terms->size); break;
    case STEP_ALIGNED_ALLOC:
        if (!is_power_of_two(asked_alignment)) return; /* versions of it differ */
        other = aligned_alloc(asked_alignment, terms->size);
        break;
    case STEP_MEMALIGN: other = memalign(asked_alignment, terms->size); break;
    case STEP_VALLOC: other = valloc(terms->size); break;
    case STEP_PVALLOC: other = pvalloc(terms->size); break;
    case STEP_POSIX_MEMALIGN: its_error = posix_memalign(&other, asked_alignment, terms->size); break;
    default: return;
    }
    if (other == NULL && kind != STEP_POSIX_MEMALIGN) its_error = errno;
    EXPECT((other == NULL) == (block == NULL), "%#zx bytes at %#zx: %p, but from the C library %p", terms->size,
           asked_alignment, block, other);
    EXPECT(other != NULL || error == its_error, "%#zx bytes at %#zx: errno %d, but in the C library %d", terms->size,
           asked_alignment, error, its_error);
    free(other);
}
#else
static void compare(enum step_kind kind, const struct terms *terms, size_t asked_alignment, const void *block,
                    int error) {
    (void)kind, (void)terms, (void)asked_alignment, (void)block, (void)error;
}
#endif

static void free_block(const struct step *step, const struct block *block) {
    errno = ERRNO_KEPT;
    int is_sized = step->kind == STEP_FREE_SIZED || step->kind == STEP_FREE_ALIGNED_SIZED;
    /* Where realloc found no memory for a smaller block, the secure build takes a right size for a wrong one. */
    if (!is_sized || (IS_SECURE && kernel_refused() != refused_at_start)) M(free)(block->start);
    else if (block->alignment > 16) M(free_aligned_sized)(block->start, block->alignment, block->asked);
    else M(free_sized)(block->start, block->asked);
    EXPECT(errno == ERRNO_KEPT, "free made errno %d", errno);
}

/* Makes a block as the step says; NULL in `block` when there is none, as may be. */
static void make(const struct step *step, struct block *block) {
    size_t size = step->size, alignment = 16, asked = program_alignment(step->choice), count = step->variant + 1;
    int error = 0, is_power = is_power_of_two(asked);
    struct terms terms;
    void *start = NULL;
    errno = ERRNO_KEPT;
    switch (step->kind) {
    case STEP_CALLOC:
        size = size / count * count;
        if (size > HUGE_BYTES && size <= PTRDIFF_MAX && kernel_refused() != refused_at_start) return;
        terms = terms_of(size, 16, 0);
        start = M(calloc)(count, size / count);
        break;
    case STEP_REALLOC:
        terms = terms_of(size, 16, 0);
        start = M(realloc)(NULL, size);
        break;
    case STEP_REALLOCARRAY:
        size = size / count * count;
        terms = terms_of(size, 16, 0);
        start = M(reallocarray)(NULL, count, size / count);
        break;
    case STEP_ALIGNED_ALLOC:
        if (!IS_HAKMEM && !is_power) return;
        alignment = asked;
        terms = terms_of(size, alignment, is_power ? 0 : EINVAL);
        start = M(aligned_alloc)(alignment, size);
        break;
    case STEP_MEMALIGN:
        alignment = asked == 0 ? 1 : asked > SIZE_MAX / 2 + 1 ? asked : next_power_of_two(asked);
        terms = terms_of(size, alignment, asked > SIZE_MAX / 2 + 1 ? EINVAL : 0);
        start = M(memalign)(asked, size);
        break;
    case STEP_VALLOC:
        asked = alignment = 4096;
        terms = terms_of(size, alignment, 0);
        start = M(valloc)(size);
        break;
    case STEP_PVALLOC:
        asked = alignment = 4096;
        size = size > SIZE_MAX - 4095 ? size : size == 0 && IS_HAKMEM ? 4096 : (size + 4095) / 4096 * 4096;
        terms = terms_of(size, alignment, 0);
        start = M(pvalloc)(step->size);
        break;
    case STEP_POSIX_MEMALIGN:
        alignment = asked;
        terms = terms_of(size, alignment, !is_power || asked % sizeof(void *) != 0 ? EINVAL : 0);
        start = &terms;
        error = M(posix_memalign)(&start, alignment, size);
        EXPECT(error == 0 || start == &terms, "posix_memalign failed with %d and wrote %p", error, start);
        EXPECT(!IS_HAKMEM || errno == (error == ENOMEM ? ENOMEM : ERRNO_KEPT), "errno %d of posix_memalign", errno);
        if (error != 0) start = NULL;
        break;
    default:
        terms = terms_of(size, 16, 0);
        start = M(malloc)(size);
        break;
    }
    if (error == 0) error = errno;
    if (alignment < 16) terms.alignment = alignment = 16;
    judge(&terms, start, error);
    compare(step->kind, &terms, asked, start, error);
    if (start == NULL) return;
    if (step->kind == STEP_CALLOC) oracle_check_zero(start, size);
    if (size > HUGE_BYTES) {
        ((volatile char *)start)[0] = 1;
        ((volatile char *)start)[size - 1] = 1;
        M(free)(start);
        return;
    }
    *block = (struct block){start, size, size, alignment, atomic_fetch_add(&next_id, 1)};
}

static size_t usable_size(const struct block *block) {
    size_t usable = M(malloc_usable_size)(block->start);
    EXPECT(usable >= block->asked, "malloc_usable_size is %zu of %zu bytes", usable, block->asked);
    return usable;
}

/* ---- Blocks one by one ------------------------------------------------------------------------------------------ */

static int begin(struct slot *slot) { return atomic_exchange(&slot->busy, 1) == 0; }
static void end(struct slot *slot) { atomic_store(&slot->busy, 0); }

/* The next slot that has a block, or has none; the caller has it. NULL when there is none. */
static struct slot *take_slot(unsigned number, int with_block) {
    for (unsigned i = 0; i < PROGRAM_SLOTS; i++) {
        struct slot *slot = &slots[(number + i) % PROGRAM_SLOTS];
        if (!begin(slot)) continue;
        if ((slot->block.start != NULL) == with_block) return slot;
        end(slot);
    }
    return NULL;
}

static int may_take(size_t size) {
    if (size > HUGE_BYTES) return 1;
    if (size > MIB && atomic_fetch_add(&large_bytes_in_all, size) > LARGE_BYTES_IN_ALL) return 0;
    return atomic_load(&live_bytes) + size <= LIVE_BYTES;
}

static size_t counted_bytes(const struct block *block) {
    return inside_counted_bytes(block->start, usable_size(block));
}

static void add_block(const struct block *block) {
    oracle_add(block->start, usable_size(block));
    atomic_fetch_add(&live_bytes, counted_bytes(block));
    atomic_fetch_add(&live_blocks, 1);
}

/* Before it is freed: another thread may have its addresses at once. */
static void remove_block(const struct block *block) {
    oracle_remove(block->start);
    atomic_fetch_sub(&live_bytes, counted_bytes(block));
    atomic_fetch_sub(&live_blocks, 1);
}

static void step_make(const struct step *step) {
    struct slot *slot = may_take(step->size) ? take_slot(step->slot, 0) : NULL;
    if (slot == NULL) return;
    make(step, &slot->block);
    if (slot->block.start != NULL) {
        add_block(&slot->block);
        oracle_write(&slot->block);
    }
    end(slot);
}

static void step_free(const struct step *step) {
    struct slot *slot = take_slot(step->slot, 1);
    if (slot == NULL) return;
    struct block block = slot->block;
    oracle_check(&block);
    remove_block(&block);
    slot->block.start = NULL;
    free_block(step, &block);
    end(slot);
}

static void step_resize(const struct step *step) {
    struct slot *slot = may_take(step->size) ? take_slot(step->slot, 1) : NULL;
    if (slot == NULL) {
        step_make(step);
        return;
    }
    struct block *block = &slot->block, old = *block;
    size_t count = step->variant + 1, size = step->size;
    if (step->kind == STEP_REALLOCARRAY) size = size / count * count;
    oracle_check(block);
    remove_block(block);
    block->start = NULL;
    struct terms terms = terms_of(size, 16, 0);
    errno = ERRNO_KEPT;
    unsigned char *start =
        step->kind == STEP_REALLOC ? M(realloc)(old.start, size) : M(reallocarray)(old.start, count, size / count);
    int error = errno;
    if (size == 0) {
        EXPECT(start == NULL && error == ERRNO_KEPT, "realloc to 0 bytes: %p, errno %d", (void *)start, error);
        end(slot);
        return;
    }
    judge(&terms, start, error);
    if (start == NULL) { /* it is what it was */
        *block = old;
    } else {
        oracle_check_part(&old, start, size < old.size ? size : old.size);
        *block = (struct block){start, size, size, 16, atomic_fetch_add(&next_id, 1)};
    }
    add_block(block);
    if (size > HUGE_BYTES && start != NULL) {
        remove_block(block);
        block->start = NULL;
        M(free)(start);
    } else {
        oracle_write(block);
    }
    end(slot);
}

/* As a program does that moves its blocks, whether this one is named or not. */
static void move_block(struct block *block) {
#ifdef FUZZ_OUTSIDE
    (void)block;
#else
    size_t size = usable_size(block);
    if (size > MIB) return;
    (void)hak_should_move(block->start);
    int flags = HAK_MALLOCX_TCACHE_NONE | HAK_MALLOCX_LG_ALIGN(__builtin_ctzl(block->alignment));
    unsigned char *start = hak_mallocx(size, flags);
    if (start == NULL) return;
    EXPECT(((uintptr_t)start & (block->alignment - 1)) == 0, "mallocx gives %p for %#x", (void *)start,
           (unsigned)flags);
    memcpy(start, block->start, size);
    remove_block(block);
    hak_dallocx(block->start, HAK_MALLOCX_TCACHE_NONE);
    block->start = start;
    block->asked = size;
    add_block(block);
    oracle_check(block);
#endif
}

static void step_usable(const struct step *step) {
    struct slot *slot = take_slot(step->slot, 1);
    if (slot == NULL) return;
    oracle_check(&slot->block);
    if (step->variant & 1) move_block(&slot->block);
    slot->block.size = usable_size(&slot->block);
    oracle_write(&slot->block);
    end(slot);
}

static void step_owns(const struct step *step) {
    static char outside;
    struct slot *slot = take_slot(step->slot, 1);
    EXPECT(!IS_HAKMEM || (!hak_owns(&outside) && !hak_owns(&slot)), "hak_owns says 1 of what is not in the heap");
    if (slot == NULL) return;
    const unsigned char *start = slot->block.start;
    EXPECT(hak_owns(start) && hak_owns(start + slot->block.size / 2), "hak_owns says 0 of block %p",
           (const void *)start);
    end(slot);
}

/* Sizes that no machine has; and nothing at all. */
static void step_overflow(const struct step *step) {
    size_t half = SIZE_MAX / 2, count = step->choice + 3;
    struct terms terms = terms_of(SIZE_MAX, 16, ENOMEM);
    EXPECT(has_sign_of_overflow(count, half), "the test is wrong");
    errno = ERRNO_KEPT;
    void *block = M(calloc)(count, half);
    judge(&terms, block, errno);
    struct slot *slot = take_slot(step->slot, 1);
    if (slot != NULL) {
        errno = ERRNO_KEPT;
        block = M(reallocarray)(slot->block.start, half, count);
        judge(&terms, block, errno);
        oracle_check(&slot->block);
        end(slot);
    }
    errno = ERRNO_KEPT;
    M(free)(NULL);
    EXPECT(errno == ERRNO_KEPT && M(malloc_usable_size)(NULL) == 0, "NULL is no block; errno %d", errno);
}

/* ---- Many blocks ------------------------------------------------------------------------------------------------ */

static void step_fill(const struct step *step) {
    struct group *group = &groups[step->slot % PROGRAM_GROUPS];
    size_t size = step->size > 64 << 10 ? step->size % (64 << 10) : step->size;
    unsigned count = program_count(step->choice);
    struct step one = *step;
    one.kind = step->variant == 0 ? STEP_CALLOC : STEP_MALLOC;
    one.size = size;
    if (size * count > FILL_BYTES) count = (unsigned)(FILL_BYTES / size);
    if (atomic_load(&live_bytes) + size * count > LIVE_BYTES || atomic_exchange(&group->busy, 1) != 0) return;
    for (; count > 0 && group->count < GROUP_BLOCKS; count--) {
        struct block *block = &group->blocks[group->count];
        block->start = NULL;
        make(&one, block);
        if (block->start == NULL) break;
        atomic_fetch_add(&live_bytes, counted_bytes(block));
        atomic_fetch_add(&live_blocks, 1);
        oracle_write(block); /* two blocks at one place would write over each other */
        group->count++;
    }
    atomic_store(&group->busy, 0);
}

static void free_of_group(const struct step *step, struct group *group, unsigned at) {
    struct block block = group->blocks[at];
    oracle_check(&block);
    atomic_fetch_sub(&live_bytes, counted_bytes(&block));
    atomic_fetch_sub(&live_blocks, 1);
    free_block(step, &block);
}

static void step_empty(const struct step *step) {
    struct group *group = &groups[step->slot % PROGRAM_GROUPS];
    if (atomic_exchange(&group->busy, 1) != 0) return;
    unsigned count = group->count, kept = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned at = step->variant == 1 || step->variant == 3 ? count - 1 - i : i;
        int stays = (step->variant == 2 && at % 2 == 0) || (step->variant == 3 && at < count / 2);
        if (!stays) free_of_group(step, group, at);
        else kept++;
    }
    if (step->variant == 2)
        for (unsigned i = 0; i < kept; i++) group->blocks[i] = group->blocks[2 * i];
    group->count = kept;
    atomic_store(&group->busy, 0);
}

/* ---- Questions and requests ------------------------------------------------------------------------------------- */

static void check_at_rest(const char *when) {
    struct inside_sums sums;
    if (!IS_HAKMEM || program_now->is_free_running || has_own_threads) return;
    inside_look(&sums);
    EXPECT(sums.broken == NULL || has_lost, "%s: equation %s does not hold: %s", when, sums.broken, sums.figures);
    EXPECT(!kernel_is_wrapped() || sums.mapped_bytes == kernel_mapped_bytes(),
           "%s: hakmem counts %ld bytes mapped too much", when, (long)(sums.mapped_bytes - kernel_mapped_bytes()));
    hak_heap_check();
    if (!ALL_BLOCKS_ARE_OURS || has_lost) return;
    EXPECT(sums.live_blocks == atomic_load(&live_blocks), "%s: statistics say %lu live blocks instead of %zu: %s", when,
           (unsigned long)sums.live_blocks, atomic_load(&live_blocks), sums.figures);
    EXPECT(sums.live_bytes == atomic_load(&live_bytes), "%s: statistics say %lu live bytes instead of %zu", when,
           (unsigned long)sums.live_bytes, atomic_load(&live_bytes));
}

static void trim(void) {
#ifdef FUZZ_HAK
    hak_purge();
#else
    malloc_trim(0);
#endif
}

static void step_statistics(void) {
    check_at_rest("at rest");
#ifdef FUZZ_STANDARD
    struct mallinfo2 info = mallinfo2();
    EXPECT(info.uordblks >= (program_now->is_free_running ? 0 : atomic_load(&live_bytes)),
           "mallinfo2 says %zu bytes live", info.uordblks);
#endif
}

static void step_refuse(const struct step *step) {
    static const int errors[] = {ENOMEM, EPERM, EINVAL, EAGAIN};
    unsigned calls = step->slot == 0 ? 63 : step->slot;
    kernel_refuse(calls, step->choice, 1u << step->change * 2, errors[step->variant]);
}

static void step_fork(unsigned step_number, unsigned thread);

static void perform(unsigned number, unsigned thread) {
    const struct step *step = &program_now->steps[number];
    oracle_at_step(number, program_now);
    switch (step->kind) {
    case STEP_MALLOC:
    case STEP_CALLOC:
    case STEP_ALIGNED_ALLOC:
    case STEP_POSIX_MEMALIGN:
    case STEP_MEMALIGN:
    case STEP_VALLOC:
    case STEP_PVALLOC: step_make(step); break;
    case STEP_REALLOC:
    case STEP_REALLOCARRAY: step_resize(step); break;
    case STEP_FREE:
    case STEP_FREE_SIZED:
    case STEP_FREE_ALIGNED_SIZED: step_free(step); break;
    case STEP_USABLE: step_usable(step); break;
    case STEP_FILL: step_fill(step); break;
    case STEP_EMPTY: step_empty(step); break;
    case STEP_TRIM: trim(); break;
    case STEP_PREWARM: (void)hak_thread_prewarm(step->size); break;
    case STEP_STATISTICS: step_statistics(); break;
    case STEP_OWNS: step_owns(step); break;
    case STEP_OVERFLOW: step_overflow(step); break;
    case STEP_FORK: step_fork(number, thread); break;
    case STEP_REFUSE: step_refuse(step); break;
    case STEP_ALLOW: kernel_refuse(0, 0, 0, 0); break;
    case STEP_KNOB: inside_set_knob(step->slot, step->variant); break;
    case STEP_PROFILE: inside_profile(step->variant, step->size == 0 ? 1 : step->size); break;
    case STEP_TIGHT: inside_set_tight(step->variant & 1); break;
    case STEP_BACKGROUND:
        if (!has_own_threads) inside_background_step(step->slot);
        break;
    case STEP_END_THREAD:
    case STEP_KIND_COUNT: break;
    }
}

/* ---- Threads ---------------------------------------------------------------------------------------------------- */

enum { BACKGROUND = PROGRAM_THREADS, WORKERS, DESTRUCTOR_ROUNDS = 3 };

struct worker {
    pthread_t thread;
    int is_alive, is_ending;
    unsigned number, step;
    sem_t go, done;
};

static struct worker workers[WORKERS];
static unsigned self; /* the thread that hands out the turns */
static pthread_key_t destructor_key;
static int have_destructor_key;

/* A destructor that allocates and frees, before hakmem's and after it. */
static void destructor(void *value) {
    uintptr_t round = (uintptr_t)value & 15, size = (uintptr_t)value >> 4;
    unsigned char *block = M(malloc)(size);
    if (block != NULL) {
        memset(block, 0x5a, size < 64 ? size : 64);
        M(free)(block);
    }
    if (round < DESTRUCTOR_ROUNDS) pthread_setspecific(destructor_key, (void *)((uintptr_t)value + 1));
}

/* A thread that allocates for the first time when it is ending keeps its heap for ever: a program in open/ shows that,
 * with FUZZ_STRICT in its environment. Elsewhere such threads allocate before. */
static void leave_destructor(const struct step *step) {
    if (getenv("FUZZ_STRICT") == NULL) M(free)(M(malloc)(1));
    if (!have_destructor_key) have_destructor_key = pthread_key_create(&destructor_key, destructor) == 0;
    if (have_destructor_key)
        pthread_setspecific(destructor_key, (void *)(uintptr_t)((step->size > MIB ? 1000 : step->size) << 4 | 1));
}

static void await(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) {
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    if (worker->number == BACKGROUND) inside_be_background();
    for (;;) {
        await(&worker->go);
        if (worker->is_ending) {
            if (worker->step < program_now->step_count && (program_now->steps[worker->step].variant & 1) != 0 &&
                worker->number != BACKGROUND)
                leave_destructor(&program_now->steps[worker->step]);
            return NULL;
        }
        perform(worker->step, worker->number);
        sem_post(&worker->done);
    }
}

static int start_worker(unsigned number) {
    struct worker *worker = &workers[number];
    if (worker->is_alive) return 1;
    worker->number = number;
    worker->is_ending = 0;
    sem_init(&worker->go, 0, 0);
    sem_init(&worker->done, 0, 0);
    worker->is_alive = pthread_create(&worker->thread, NULL, work, worker) == 0;
    return worker->is_alive;
}

static void end_worker(unsigned number, unsigned step) {
    struct worker *worker = &workers[number];
    if (number == self || !worker->is_alive) return;
    worker->is_ending = 1;
    worker->step = step;
    sem_post(&worker->go);
    pthread_join(worker->thread, NULL);
    worker->is_alive = 0;
}

static void end_workers(void) {
    for (unsigned i = 0; i < WORKERS; i++) end_worker(i, PROGRAM_STEPS);
}

/* Threads that take turns do so faster on one processor. */
static void stay_on_one_processor(int is_wanted) {
    static cpu_set_t all;
    static int is_here;
    cpu_set_t one;
    if (is_here == is_wanted || (!is_here && sched_getaffinity(0, sizeof all, &all) != 0)) return;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    is_here = is_wanted;
    (void)sched_setaffinity(0, sizeof all, is_wanted ? &one : &all);
}

/* Has the thread of the step perform it, and waits until it has. */
static void take_turn(unsigned number) {
    const struct step *step = &program_now->steps[number];
    unsigned thread = step->kind == STEP_BACKGROUND ? (unsigned)BACKGROUND : step->thread;
    if (step->kind == STEP_END_THREAD) {
        end_worker(thread, number);
        return;
    }
    if (thread == self || !start_worker(thread)) {
        if (thread != BACKGROUND) perform(number, self);
        return;
    }
    workers[thread].step = number;
    sem_post(&workers[thread].go);
    await(&workers[thread].done);
}

/* ---- fork ------------------------------------------------------------------------------------------------------- */

static void finish(void);

/* The child has one thread: the one that forked. */
static void in_child(unsigned step_number, unsigned thread) {
    signal(SIGALRM, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    alarm(CHILD_SECONDS);
    fork_depth++;
    has_lost = has_lost || program_now->is_free_running;
    self = thread;
    for (unsigned i = 0; i < WORKERS; i++) workers[i].is_alive = 0;
    for (unsigned i = 0; i < PROGRAM_SLOTS; i++) {
        if (atomic_load(&slots[i].busy)) slots[i].block.start = NULL; /* another thread was at it */
        atomic_store(&slots[i].busy, 0);
        if (slots[i].block.start != NULL) oracle_check(&slots[i].block);
    }
    for (unsigned i = 0; i < PROGRAM_GROUPS; i++) {
        if (atomic_load(&groups[i].busy)) groups[i].count = 0;
        atomic_store(&groups[i].busy, 0);
    }
    check_at_rest("after fork");
    unsigned steps_end = step_number + 1 + program_now->steps[step_number].choice;
    for (unsigned i = step_number + 1; i < steps_end && i < program_now->step_count; i++) take_turn(i);
    finish();
    _exit(0);
}

static void step_fork(unsigned step_number, unsigned thread) {
    if (program_now->is_free_running && !MAY_FORK_FREELY) return;
    if (fork_depth >= FORK_DEPTH || atomic_fetch_add(&forks, 1) >= MOST_FORKS) return;
    if (!threads_hold()) return;
    oracle_lock();
    pid_t child = fork();
    oracle_unlock();
    threads_let();
    if (child == 0) in_child(step_number, thread);
    if (child < 0) return;
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    oracle_at_step(step_number, program_now);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x", (unsigned)status);
}

/* ---- Programs --------------------------------------------------------------------------------------------------- */

static void *run_freely(void *argument) {
    unsigned thread = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < program_now->step_count; i++)
        if (program_now->steps[i].thread == thread && program_now->steps[i].kind != STEP_BACKGROUND) perform(i, thread);
    return NULL;
}

static void *run_background(void *argument) {
    (void)argument;
    inside_be_background();
    for (unsigned i = 0; i < program_now->step_count; i++)
        if (program_now->steps[i].kind == STEP_BACKGROUND) perform(i, BACKGROUND);
    return NULL;
}

static void run_all_freely(void) {
    pthread_t threads[WORKERS];
    int started[WORKERS] = {0};
    for (unsigned i = 1; i < WORKERS; i++)
        started[i] =
            pthread_create(&threads[i], NULL, i == BACKGROUND ? run_background : run_freely, (void *)(uintptr_t)i) == 0;
    run_freely(NULL);
    for (unsigned i = 1; i < WORKERS; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}

static void free_all(void) {
    for (unsigned i = 0; i < PROGRAM_SLOTS; i++) {
        const struct step step = {.kind = STEP_FREE, .slot = i};
        if (slots[i].block.start != NULL) step_free(&step);
    }
    for (unsigned i = 0; i < PROGRAM_GROUPS; i++) {
        const struct step step = {.kind = STEP_EMPTY, .slot = i};
        step_empty(&step);
    }
}

/* All is freed, and what the statistics say agrees. */
static void finish(void) {
    oracle_at_step(PROGRAM_STEPS, program_now);
    kernel_refuse(0, 0, 0, 0);
    if (program_now->frees_last) end_workers();
    free_all();
    if (!program_now->frees_last) end_workers();
    inside_reset();
    check_at_rest("at the end");
    trim();
    check_at_rest("after the last trim");
}

void execute(const struct program *program) {
    program_now = program;
    atomic_store(&live_bytes, 0);
    atomic_store(&live_blocks, 0);
    atomic_store(&large_bytes_in_all, 0);
    atomic_store(&next_id, 1);
    atomic_store(&forks, 0);
    self = 0;
    refused_at_start = kernel_refused();
    stay_on_one_processor(!program->is_free_running);
    oracle_reset();
    kernel_refuse(0, 0, 0, 0);
    inside_reset();
    for (unsigned i = 0; i < program->setting_count; i++)
        inside_set_knob(program->settings[i].knob, program->settings[i].value);
    if (program->is_free_running) run_all_freely();
    else
        for (unsigned i = 0; i < program->step_count; i++) take_turn(i);
    finish();
}

static int has_step(const struct program *program, enum step_kind kind) {
    for (unsigned i = 0; i < program->step_count; i++)
        if (program->steps[i].kind == kind) return 1;
    return 0;
}

/* What is mapped once for a heap may have been left out by chance in the run before: samples and guards are drawn. So only
 * what grows with each run is a leak. */
void execute_twice(const struct program *program) {
    enum { MOST_RUNS = 4 };
    struct inside_sums before, after;
    execute(program);
    if (program->is_free_running || has_own_threads || has_step(program, STEP_REFUSE)) return;
    execute(program);
    inside_look(&before);
    for (int run = 1;; run++) {
        execute(program);
        inside_look(&after);
        EXPECT(after.heaps <= before.heaps, "%lu heaps instead of %lu when the program has run once more",
               (unsigned long)after.heaps, (unsigned long)before.heaps);
        if (after.mapped_bytes <= before.mapped_bytes) return;
        EXPECT(run < MOST_RUNS, "%lu bytes more mapped each time the program has run",
               (unsigned long)(after.mapped_bytes - before.mapped_bytes));
        before = after;
    }
}

void execute_begin(char **arguments) {
    const char *background = getenv("HAKMEM_BACKGROUND");
    has_own_threads = background != NULL && background[0] == '1';
    if (!IS_HAKMEM || background != NULL) return;
    setenv("HAKMEM_BACKGROUND", "0", 1);
    setenv("HAKMEM_CTL", "0", 1);
    execv("/proc/self/exe", arguments);
}
