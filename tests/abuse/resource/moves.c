/* Large blocks are resized while the kernel refuses to move mappings, at random; other threads map and unmap meanwhile,
 * and get addresses that a refused move has left. Every block keeps its contents, a refused request says ENOMEM and
 * changes nothing, every block can be freed, what others have mapped stays theirs, and no address space is left over.
 *
 *     moves unmapped    a refused move has unmapped its target, as the kernel does before it finds most reasons
 *     moves kept        it has not, as a filter of system calls does, and the kernel with the other reasons
 *     moves both        now this, now that; munmap and madvise are refused now and then, too
 *     moves limit       the kernel itself refuses: the limit on address space goes up and down
 *
 * This program's mremap, munmap and madvise are the ones that hakmem calls.
 */
#include "process.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sched.h>
#include <sys/mman.h>

enum { WORKERS = 3, STEPS = 400, SLOTS = 3 };

static atomic_uint refuses_moves, unmaps_target, refuses_others; /* one in so many; 0: none */
static atomic_uint moves, refused;

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static unsigned draw(unsigned one_in) {
    static __thread uint64_t random;
    if (one_in == 0) return 0;
    if (random == 0) random = (uintptr_t)&random;
    return random_next(&random) % one_in == 0;
}

void *mremap(void *old, size_t old_bytes, size_t new_bytes, int flags, ...) {
    va_list list;
    va_start(list, flags);
    void *target = flags & MREMAP_FIXED ? va_arg(list, void *) : NULL;
    va_end(list);
    bool grows_in_place = target == NULL && new_bytes > old_bytes;
    if (target != NULL) atomic_fetch_add(&moves, 1);
    if (grows_in_place ? atomic_load(&refuses_moves) != 0 : draw(atomic_load(&refuses_moves))) {
        if (target != NULL) atomic_fetch_add(&refused, 1);
        if (target != NULL && draw(atomic_load(&unmaps_target))) {
            syscall(SYS_munmap, target, new_bytes);
            struct timespec pause = {.tv_nsec = 200000}; /* time for the others */
            nanosleep(&pause, NULL);
        }
        errno = draw(2) ? ENOMEM : draw(2) ? EAGAIN : EPERM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, old, old_bytes, new_bytes, flags, target);
}

int munmap(void *start, size_t bytes) {
    if (draw(atomic_load(&refuses_others))) {
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_munmap, start, bytes);
}

int madvise(void *start, size_t bytes, int advice) {
    if (draw(atomic_load(&refuses_others))) {
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

/* ---- Threads that resize ----------------------------------------------------------------------------------------- */

struct slot {
    unsigned char *block;
    size_t size;
    unsigned char tag;
};

static size_t next_checked(size_t at, size_t size) {
    size_t next = (at / (512 * KIB) + 1) * 512 * KIB;
    return at + 1 < size && next >= size ? size - 1 : next;
}
static void fill(const struct slot *slot) {
    for (size_t at = 0; at < slot->size; at = next_checked(at, slot->size))
        slot->block[at] = (unsigned char)(slot->tag + (at >> 19));
}
/* The first `size` bytes. */
static void check(const struct slot *slot, size_t size) {
    for (size_t at = 0; at < size; at = next_checked(at, slot->size))
        EXPECT(slot->block[at] == (unsigned char)(slot->tag + (at >> 19)), "%p of %zu bytes: %02x at %zu",
               (void *)slot->block, slot->size, slot->block[at], at);
}

/* Runs that are long enough to move, and mappings. */
static size_t pick_size(uint64_t *random) {
    return random_next(random) % 2 ? 600 * KIB + random_next(random) % (3 * MIB)
                                   : 33 * MIB + random_next(random) % (64 * MIB);
}

static void *work(void *argument) {
    struct slot slots[SLOTS] = {{NULL, 0, 0}};
    uint64_t random = (uintptr_t)argument;
    for (unsigned i = 0; i < STEPS; i++) {
        struct slot *slot = &slots[random_next(&random) % SLOTS];
        if (slot->block != NULL && random_next(&random) % 6 == 0) {
            check(slot, slot->size);
            errno = 1234;
            free(slot->block);
            EXPECT(errno == 1234, "free changed errno");
            slot->block = NULL;
            continue;
        }
        size_t size = pick_size(&random), kept = slot->block == NULL ? 0 : size < slot->size ? size : slot->size;
        errno = 0;
        unsigned char *block = realloc(slot->block, size);
        if (block == NULL) {
            EXPECT(errno == ENOMEM, "realloc to %zu gave NULL", size);
            if (slot->block != NULL) check(slot, slot->size);
            continue;
        }
        slot->block = block;
        check(slot, kept);
        *slot = (struct slot){block, size, (unsigned char)random_next(&random)};
        fill(slot);
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        if (slots[i].block != NULL) check(&slots[i], slots[i].size);
        free(slots[i].block);
    }
    return NULL;
}

/* The rest of the program, which maps and unmaps. */
static atomic_bool stop;

static void *map_and_unmap(void *argument) {
    uint64_t random = (uintptr_t)argument;
    while (!atomic_load(&stop)) {
        size_t size = pick_size(&random) & ~(size_t)0xffff;
        unsigned char *start =
            mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) continue;
        start[0] = start[size - 1] = 77;
        sched_yield();
        EXPECT(start[0] == 77 && start[size - 1] == 77, "what others have mapped was changed");
        syscall(SYS_munmap, start, size);
    }
    return argument;
}

static void *change_limit(void *argument) {
    struct rlimit before;
    getrlimit(RLIMIT_AS, &before);
    while (!atomic_load(&stop)) {
        struct rlimit limit = {statm_bytes("/proc/self/statm", 0) + 40 * MIB, before.rlim_max};
        setrlimit(RLIMIT_AS, &limit);
        struct timespec pause = {.tv_nsec = 3000000};
        nanosleep(&pause, NULL);
        setrlimit(RLIMIT_AS, &before);
        nanosleep(&pause, NULL);
    }
    return argument;
}

static void run(void *(*beside)(void *)) {
    pthread_t threads[WORKERS + 2];
    free(malloc(40 * MIB)); /* what is reserved once */
    size_t mapped = statm_bytes("/proc/self/statm", 0);
    for (uintptr_t i = 0; i < WORKERS; i++)
        EXPECT(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0, "no thread");
    EXPECT(pthread_create(&threads[WORKERS], NULL, map_and_unmap, (void *)7) == 0, "no thread");
    if (beside != NULL) EXPECT(pthread_create(&threads[WORKERS + 1], NULL, beside, (void *)8) == 0, "no thread");
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    atomic_store(&stop, true);
    pthread_join(threads[WORKERS], NULL);
    if (beside != NULL) pthread_join(threads[WORKERS + 1], NULL);
    EXPECT(atomic_load(&moves) > 20, "%u moves only", atomic_load(&moves));
    EXPECT(atomic_load(&refuses_moves) == 0 || atomic_load(&refused) > 5, "%u moves refused only",
           atomic_load(&refused));
    atomic_store(&refuses_moves, 0);
    atomic_store(&refuses_others, 0);
    malloc_trim(0);
    size_t now = statm_bytes("/proc/self/statm", 0);
    /* Stacks and heaps of threads, and runs, also of what had no mapping; a target that is lost each time would be many
     * gigabytes. */
    EXPECT(now < mapped + GIB, "%zu MiB more are mapped than before", (now - mapped) / MIB);
}

static void unmapped(void) {
    atomic_store(&unmaps_target, 1);
    atomic_store(&refuses_moves, 2);
    run(NULL);
}
static void kept(void) {
    atomic_store(&refuses_moves, 2);
    run(NULL);
}
static void both(void) {
    atomic_store(&unmaps_target, 2);
    atomic_store(&refuses_moves, 2);
    atomic_store(&refuses_others, 8);
    run(NULL);
}
static void limit(void) { run(change_limit); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"unmapped", unmapped}, {"kept", kept}, {"both", both}, {"limit", limit}};
    if (argc == 2 && !is_watched()) return run_watched(argv, 2 * GIB, -1, 0);
    return run_case(argc, argv, cases, COUNT_OF(cases), 110);
}
