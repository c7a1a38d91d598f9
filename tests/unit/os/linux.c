/* os/linux.c against the kernel this runs on. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bits.h"
#include "os/os.h"

static uint64_t mapped(void) { return hak_atomic_load(&hak_os_counters.mapped_bytes, relaxed); }
static uint64_t purged(void) { return hak_atomic_load(&hak_os_counters.purged_bytes, relaxed); }
static uint64_t calls(void) { return hak_atomic_load(&hak_os_counters.system_calls, relaxed); }

static bool is_zero(const char *bytes, size_t count) {
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* A pipe's end can be written from an address that can be read, and from no other. */
static bool is_readable(const void *address) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool readable = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return readable;
}

/* By the kernel, as the mlock of the sanitizers does nothing. */
static bool lock(void *start, size_t bytes) { return syscall(SYS_mlock, start, bytes) == 0; }

/* The kernel refuses a system call of this thread from now on. False when it can't be had to. */
static bool refuse(unsigned call, unsigned code) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void page_size(void **state) {
    (void)state;
    assert_int_equal(hak_os_page_bytes(), sysconf(_SC_PAGESIZE));
    assert_int_equal(hak_os_page_bytes(), sysconf(_SC_PAGESIZE));
}

static void alignments(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    for (size_t alignment = 1; alignment <= (size_t)64 << 20; alignment *= 2) {
        uint64_t before = mapped();
        char *reserved = hak_os_reserve(3 * page, alignment);
        char *map = hak_os_map(3 * page, alignment);
        assert_non_null(reserved);
        assert_non_null(map);
        assert_int_equal((uintptr_t)reserved % alignment, 0);
        assert_int_equal((uintptr_t)map % alignment, 0);
        assert_true(is_zero(map, 3 * page));
        map[3 * page - 1] = 1;
        assert_int_equal(mapped() - before, 6 * page);
        assert_true(hak_os_unmap(reserved, 3 * page));
        assert_true(hak_os_unmap(map, 3 * page));
        assert_int_equal(mapped(), before);
    }
}

static void committing(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_reserve((size_t)1 << 30, page);
    assert_non_null(start);
    assert_false(is_readable(start));
    assert_true(hak_os_commit(start + page, 2 * page));
    assert_false(is_readable(start));
    assert_false(is_readable(start + 3 * page));
    assert_true(is_zero(start + page, 2 * page));
    memset(start + page, 1, 2 * page);
    assert_true(hak_os_commit(start + page, 2 * page)); /* twice does no harm */
    assert_int_equal(start[page], 1);
}

static void purging(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(4 * page, page);
    memset(start, 7, 4 * page);
    uint64_t before = purged(), mapped_before = mapped();
    hak_os_refuse_huge_pages(start, 4 * page);
    assert_true(hak_os_purge(start + page, 2 * page));
    assert_int_equal(purged() - before, 2 * page);
    assert_int_equal(mapped(), mapped_before);
    assert_true(is_zero(start + page, 2 * page));
    assert_int_equal(start[page - 1], 7);
    assert_int_equal(start[3 * page], 7);
    assert_true(hak_os_unmap(start, 4 * page));
    assert_int_equal(purged() - before, 6 * page);
}

static void purging_locked_memory(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(page, page);
    if (!lock(start, page)) skip();
    start[0] = 7;
    bool done = hak_os_purge(start, page); /* before Linux 5.18 it can't be */
    assert_int_equal(start[0], done ? 0 : 7);
}

static void remapping(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    uint64_t before = mapped();
    char *start = hak_os_map(8 * page, page);
    for (int i = 0; i < 8; i++) start[(size_t)i * page] = (char)(i + 1);
    assert_true(hak_os_remap(start, 8 * page, 4 * page));
    assert_false(is_readable(start + 4 * page));
    assert_int_equal(mapped() - before, 4 * page);
    assert_true(hak_os_remap(start, 4 * page, 8 * page)); /* into the room it has just left */
    assert_int_equal(mapped() - before, 8 * page);
    assert_int_equal(start[3 * page], 4);
    assert_true(is_zero(start + 4 * page, 4 * page));

    struct hak_os_target place = hak_os_reserve_target(16 * page, 64 * page);
    char *target = place.start;
    assert_int_equal((uintptr_t)target % (64 * page), 0);
    assert_int_equal(mapped() - before, 24 * page);
    assert_true(hak_os_move(start, 8 * page, &place));
    assert_int_equal(mapped() - before, 16 * page);
    assert_false(is_readable(start));
    for (int i = 0; i < 4; i++) assert_int_equal(target[(size_t)i * page], i + 1);
    assert_true(is_zero(target + 4 * page, 12 * page));
    assert_true(hak_os_unmap(target, 16 * page));
    assert_int_equal(mapped(), before);
}

/* Pages move, the addresses they come from stay. */
static void moving_pages(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    uint64_t before = mapped();
    char *start = hak_os_map(8 * page, page);
    for (int i = 0; i < 8; i++) start[(size_t)i * page] = (char)(i + 1);
    char *target = hak_os_move_pages(start + 2 * page, 4 * page);
    assert_non_null(target);
    for (int i = 0; i < 4; i++) assert_int_equal(target[(size_t)i * page], i + 3);
    assert_int_equal(start[page], 2);
    assert_true(is_zero(start + 2 * page, 4 * page));
    assert_int_equal(start[6 * page], 7);
    assert_int_equal(mapped() - before, 12 * page);
    /* More than one mapping stays where it is, as a whole. */
    assert_int_equal(madvise(start, page, MADV_DONTDUMP), 0);
    assert_null(hak_os_move_pages(start, 2 * page));
    assert_int_equal(start[0], 1);
    assert_int_equal(start[page], 2);
    assert_true(hak_os_unmap(target, 4 * page));
    assert_true(hak_os_unmap(start, 8 * page));
    assert_int_equal(mapped(), before);
}

/* Four small mappings of a large alignment, whichever of them are aligned by chance, in a thread for which the kernel
 * refuses all munmap. */
/* Nobody gets at them, in a child neither; purged they stay; and there is zero when they are gone. */
static void guarding(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(4 * page, page), *guarded = start + page;
    memset(start, 7, 4 * page);
    assert_true(hak_os_may_guard());
    if (!hak_os_guard(guarded, 2 * page)) { /* an older kernel, or memory that is locked */
        assert_false(hak_os_may_guard());
        assert_int_equal(guarded[0], 7);
        assert_true(hak_os_unguard(guarded, 2 * page));
        skip();
    }
    assert_true(is_readable(guarded - 1) && is_readable(guarded + 2 * page));
    assert_false(is_readable(guarded) || is_readable(guarded + 2 * page - 1));
    assert_true(hak_os_purge(start, 4 * page));
    assert_false(is_readable(guarded));
    assert_false(hak_os_guard((void *)page, page)); /* where nothing is */
    assert_true(hak_os_may_guard());
    pid_t child = fork();
    if (child == 0) _exit(is_readable(guarded) || !hak_os_unguard(guarded, page) || !is_readable(guarded));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(is_readable(guarded));
    assert_true(hak_os_unguard(start, 4 * page));
    assert_true(is_zero(guarded, 2 * page));
    guarded[0] = 1;
    assert_true(hak_os_unmap(start, 4 * page));
}

/* The first of the process, refused behind a part that has got some. */
static void guarding_to_a_locked_page(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(3 * page, page);
    if (!lock(start + page, page)) skip();
    assert_false(hak_os_guard(start, 3 * page));
    assert_true(is_readable(start) && is_readable(start + 2 * page));
}

/* What a thread maps to which the kernel refuses to unmap anything; and whether it was as expected. */
struct refusing {
    void *maps[40];
    bool right;
};

/* Returns NULL where there are no filters. */
static void *map_refusing_unmaps(void *given) {
    struct refusing *refusing = given;
    size_t page = hak_os_page_bytes(), alignment = 512 * page;
    if (!refuse(SYS_munmap, ENOMEM)) return NULL;
    errno = 1234;
    refusing->right = true;
    for (int i = 0; i < 4; i++) {
        refusing->maps[i] = i % 2 ? hak_os_map(3 * page, alignment) : hak_os_reserve(3 * page, alignment);
        refusing->right &= errno == 1234 && (uintptr_t)refusing->maps[i] % alignment == 0;
    }
    /* Two that look for a place only. */
    refusing->right &= hak_os_pick_addresses(HAK_MIB, alignment, 3) != 0 && errno == 1234;
    refusing->right &= hak_os_map_at(refusing->maps[0], page) == HAK_OS_OCCUPIED && errno == 1234;
    return given;
}

/* What is cut off for an alignment, or was mapped to look for a place, goes back later, if the kernel refuses at first. */
static void refused_pieces(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their own runtimes die of a munmap that is refused */
#endif
    size_t page = hak_os_page_bytes();
    uint64_t before = mapped();
    static struct refusing refusing;
    void **maps = refusing.maps, *result;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, map_refusing_unmaps, &refusing), 0);
    pthread_join(thread, &result);
    if (result == NULL) skip(); /* no filters here */
    assert_true(refusing.right);
    assert_true(mapped() - before > 4 * 3 * page);
    for (int i = 4; i < 40; i++) maps[i] = hak_os_map(page, page);
    assert_int_equal(mapped() - before, (4 * 3 + 36) * page);
    for (int i = 0; i < 40; i++) assert_true(hak_os_unmap(maps[i], i < 4 ? 3 * page : page));
    assert_int_equal(mapped(), before);
}

/* A target is given back as long as it's there. What somebody else has at its addresses is his, also if it looks much
 * like it. */
static void targets(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    uint64_t before = mapped(), last_mark = 0;
    for (int other = 0; other < 4; other++) {
        struct hak_os_target target = hak_os_reserve_target(4 * page, page);
        uint32_t *words = target.start;
        assert_non_null(words);
        assert_int_not_equal(target.mark, last_mark);
        last_mark = target.mark;
        assert_int_equal(mapped() - before, 4 * page);
        if (other > 0) assert_int_equal(munmap(words, 4 * page), 0); /* as by a move that was refused */
        if (other > 1)
            assert_ptr_equal(mmap(words, 2 * page, other == 2 ? PROT_NONE : PROT_READ | PROT_WRITE, flags, -1, 0),
                             words);
        if (other == 3) words[0] = (uint32_t)target.mark; /* not the second one */
        errno = 1234;
        assert_true(hak_os_drop_target(&target));
        assert_int_equal(errno, 1234);
        assert_int_equal(mapped(), before);
        unsigned char there[2];
        assert_int_equal(mincore(words, 2 * page, there), other > 1 ? 0 : -1);
        if (other > 1) munmap(words, 2 * page);
    }
}

static void populating(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(8 * page, page);
    start[page] = 1;
    unsigned char resident[8];
    bool populated = hak_os_populate(start + 4 * page, 3 * page); /* since Linux 5.14 */
    assert_int_equal(mincore(start, 8 * page, resident), 0);
    for (int i = 0; i < 8; i++) assert_int_equal(resident[i] & 1, i == 1 || (populated && i >= 4 && i < 7));
    uint64_t purged_before = purged();
    assert_true(hak_os_purge_lazily(start, 2 * page));
    assert_int_equal(purged() - purged_before, 2 * page);
    assert_true(start[page] == 0 || start[page] == 1);
    assert_true(hak_os_unmap(start, 8 * page));
}

/* A huge page where there are any; when it is broken, its other pages keep their contents. */
static void huge_pages(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes(), huge = (size_t)2 << 20;
    char *start = hak_os_map(huge, huge);
    if (hak_os_has_huge_pages()) assert_true(hak_os_ask_for_huge_pages(start, huge));
    memset(start, 1, huge);
    hak_os_refuse_huge_pages(start, huge);
    hak_os_break_huge_page(start + 3 * page);
    assert_true(hak_os_purge(start + 3 * page, page));
    for (size_t i = 0; i < 8; i++) assert_int_equal(start[i * page], i != 3);
    assert_true(hak_os_unmap(start, huge));
}

/* Where a part isn't mapped, the rest is told all the same. */
static void huge_pages_around_a_gap(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(3 * page, page);
    assert_true(hak_os_unmap(start + page, page));
    assert_true(hak_os_refuse_huge_pages(start, 3 * page));
    assert_true(hak_os_unmap(start, page) && hak_os_unmap(start + 2 * page, page));
}

/* A refusal changes nothing, errno least of all, and is counted as a call. */
static void refusals(void **state) {
    (void)state;
    size_t page = hak_os_page_bytes();
    char *start = hak_os_map(2 * page, page);
    struct hak_os_target target = hak_os_reserve_target(page, page);
    assert_true(hak_os_unmap(start + page, page));
    assert_true(hak_os_purge(start, page)); /* the first one writes to what it purges */
    uint64_t mapped_before = mapped(), purged_before = purged(), calls_before = calls();
    errno = 1234;
    assert_null(hak_os_map((size_t)1 << 62, page));
    assert_null(hak_os_reserve(SIZE_MAX - page + 1, (size_t)1 << 30));
    assert_false(hak_os_commit(start + page, page));
    assert_false(hak_os_purge(start + page, page));
    assert_false(hak_os_unmap(start + 1, page));
    assert_false(hak_os_remap(start + page, page, 2 * page));
    assert_null(hak_os_move_pages(start + page, page));
    assert_false(hak_os_move(start + page, page, &target));
    assert_false(hak_os_populate(start + page, page));
    assert_false(hak_os_purge_lazily(start + page, page));
    assert_false(hak_os_ask_for_huge_pages(start + page, page));
    hak_os_break_huge_page(start + page);
    hak_os_refuse_huge_pages(start + page, page);
    assert_int_equal(errno, 1234);
    assert_int_equal(mapped(), mapped_before);
    assert_int_equal(purged(), purged_before);
    assert_true(calls() - calls_before >= 12);
}

/* Addresses that are picked are free, as asked for, and others each time. */
static void picked_addresses(void **state) {
    (void)state;
    static const size_t sizes[] = {HAK_GIB, 64 * HAK_GIB};
    for (size_t i = 0; i < 2; i++) {
        uintptr_t first = hak_os_pick_addresses(sizes[i], 2 * HAK_MIB, 0);
        assert_int_not_equal(first, 0);
        for (uint32_t attempt = 0; attempt < 8; attempt++) {
            uintptr_t at = hak_os_pick_addresses(sizes[i], 2 * HAK_MIB, attempt);
            if (at == 0) continue;
            assert_int_equal(at % (2 * HAK_MIB), 0);
            assert_int_equal(hak_os_map_at((void *)at, 2 * HAK_MIB), HAK_OS_MAPPED);
            *(char *)at = 1;
            assert_int_equal(hak_os_map_at((void *)at, 2 * HAK_MIB), HAK_OS_OCCUPIED);
            assert_int_equal(hak_os_map_at((char *)at + HAK_MIB, 2 * HAK_MIB), HAK_OS_OCCUPIED);
            assert_int_equal(*(char *)at, 1);
            assert_true(hak_os_unmap((void *)at, 2 * HAK_MIB));
        }
    }
    assert_int_equal(hak_os_pick_addresses(SIZE_MAX / 2, 2 * HAK_MIB, 0), 0);
}

/* A seed says which: each has its own, and without one they are those of before. */
static void seeded_addresses(void **state) {
    (void)state;
    uintptr_t unseeded = hak_os_pick_addresses(HAK_GIB, 2 * HAK_MIB, 0);
    hak_os_seed_random(1);
    uintptr_t first = hak_os_pick_addresses(HAK_GIB, 2 * HAK_MIB, 0);
    assert_int_equal(hak_os_pick_addresses(HAK_GIB, 2 * HAK_MIB, 0), first);
    hak_os_seed_random(2);
    uintptr_t second = hak_os_pick_addresses(HAK_GIB, 2 * HAK_MIB, 0);
    hak_os_seed_random(0);
    assert_int_equal(hak_os_pick_addresses(HAK_GIB, 2 * HAK_MIB, 0), unseeded);
    /* Where the kernel picks (a sanitizer has most addresses) attempts do not differ either. */
    if (unseeded == hak_os_pick_addresses(HAK_GIB, 2 * HAK_MIB, 1)) return;
    assert_int_not_equal(first, unseeded);
    assert_int_not_equal(first, second);
}

static void refused_addresses(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its own runtime needs address space */
#endif
    uintptr_t at = hak_os_pick_addresses(64 * HAK_MIB, 2 * HAK_MIB, 0);
    struct rlimit limit = {(rlim_t)32 << 20, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) skip();
    errno = 1234;
    assert_int_equal(hak_os_map_at((void *)at, 64 * HAK_MIB), HAK_OS_REFUSED);
    assert_int_equal(errno, 1234);
}

static uint64_t own_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Asked, the kernel tells of processor time; else time passes for the process also while it sleeps. */
static void usage(void **state) {
    (void)state;
    struct hak_os_usage known = hak_os_usage(true), guessed = hak_os_usage(false);
    uint64_t start_ns = own_cpu_ns();
    while (own_cpu_ns() - start_ns < 30000000) {
    }
    assert_true(hak_os_usage(true).cpu_ns - known.cpu_ns >= 20000000);
    known = hak_os_usage(true);
    usleep(200000);
    assert_true(hak_os_usage(true).cpu_ns - known.cpu_ns < 100000000);
    assert_true(hak_os_usage(false).cpu_ns - guessed.cpu_ns >= 200000000);
    errno = 1234;
    hak_os_usage(true);
    assert_int_equal(errno, 1234);
}

static void clock_moves(void **state) {
    (void)state;
    uint64_t before = hak_os_clock_ms(), now = before;
    assert_true(before > 0);
    while (now == before) now = hak_os_clock_ms();
    assert_true(now > before);
}

/* The program's, if the kept one is gone or another file's; none, if the program's is another file's as well. */
static void kept_stderr(void **state) {
    (void)state;
    assert_int_equal(hak_os_kept_stderr(), -1);
    hak_os_keep_stderr();
    int kept = hak_os_kept_stderr();
    assert_true(kept >= 100);
    assert_int_not_equal(fcntl(kept, F_GETFD) & FD_CLOEXEC, 0);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int other = dup(kept);
    assert_int_equal(dup2(ends[1], kept), kept);
    assert_int_equal(hak_os_kept_stderr(), STDERR_FILENO);
    hak_os_drop_stderr(); /* not what is another's */
    assert_int_equal(fcntl(kept, F_GETFD), 0);
    dup2(other, kept);
    hak_os_keep_stderr();
    kept = hak_os_kept_stderr();
    hak_os_drop_stderr();
    assert_int_equal(fcntl(kept, F_GETFD), -1);
    assert_int_equal(hak_os_kept_stderr(), STDERR_FILENO);
    other = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    int found = hak_os_kept_stderr();
    dup2(other, STDERR_FILENO);
    assert_int_equal(found, -1);
    close(ends[0]), close(ends[1]), close(other);
}

/* A signal that somebody else has sent stays. */
static void quiet_writes(void **state) {
    (void)state;
    int ends[2];
    sigset_t pipe_signal, pending;
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    assert_false(hak_os_write_quietly(ends[1], "lost", 4)); /* SIGPIPE would end the test */
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
    assert_false(hak_os_write_quietly(ends[1], "lost", 4));
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    raise(SIGPIPE);
    assert_false(hak_os_write_quietly(ends[1], "lost", 4));
    sigpending(&pending);
    assert_true(sigismember(&pending, SIGPIPE));
    close(ends[1]);
}

static void files(void **state) {
    (void)state;
    char path[] = "unit-os-XXXXXX", text[16] = "";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, "old contents", 12), 12);
    close(descriptor);

    descriptor = hak_os_create_file(path);
    assert_true(descriptor >= 0);
    assert_int_not_equal(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
    hak_os_write(descriptor, "new", 3);
    hak_os_close(descriptor);
    errno = 1234;
    hak_os_write(descriptor, "lost", 4); /* closed: nothing to be done */
    assert_false(hak_os_write_quietly(descriptor, "lost", 4));
    assert_int_equal(errno, 1234);

    descriptor = hak_os_open_file(path);
    assert_true(descriptor >= 0);
    assert_int_not_equal(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
    assert_int_equal(write(descriptor, "x", 1), -1);
    assert_int_equal(hak_os_read(descriptor, text, 2), 2);
    assert_int_equal(hak_os_read(descriptor, text + 2, 9), 1);
    assert_int_equal(hak_os_read(descriptor, text, 9), 0);
    assert_string_equal(text, "new");
    hak_os_close(descriptor);
    assert_int_equal(hak_os_read(descriptor, text, 9), 0);
    assert_int_equal(hak_os_open_file("/no/such/folder/file"), -1);

    unlink(path);
    assert_int_equal(hak_os_create_file("/no/such/folder/file"), -1);
}

static const char *problem_of(const char *path, size_t most_bytes) {
    const char *problem;
    int descriptor = hak_os_open_regular_file(path, most_bytes, true, &problem);
    assert_true(descriptor == -1 || problem == NULL);
    if (descriptor < 0) return problem == NULL ? "absent" : problem;
    assert_int_not_equal(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
    hak_os_close(descriptor);
    return "opened";
}

static void own_files(void **state) {
    (void)state;
    char folder[] = "unit-os-XXXXXX", path[32], link[32];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    assert_string_equal(problem_of(path, 3), "absent");
    assert_string_equal(problem_of(folder, 3), "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_string_equal(problem_of(path, 3), "not a regular file"); /* and nobody waits for a writer */
    unlink(path);
    int descriptor = hak_os_create_file(path);
    assert_string_equal(problem_of(path, 3), "empty");
    hak_os_write(descriptor, "abc", 3);
    hak_os_close(descriptor);
    assert_string_equal(problem_of("/proc/self/stat", 3), "empty");
    static char long_name[300];
    memset(long_name, 'x', sizeof long_name - 1);
    assert_string_equal(problem_of(long_name, 3), "absent");
    assert_int_equal(errno, ENAMETOOLONG);
    assert_string_equal(problem_of(path, 3), "opened");
    assert_string_equal(problem_of(path, 2), "too large");
    assert_int_equal(symlink("file", link), 0);
    assert_string_equal(problem_of(link, 3), "opened");
    snprintf(link, sizeof link, "%s/file/x", folder);
    assert_string_equal(problem_of(link, 3), "absent");
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 1234, 0), 0);
        assert_string_equal(problem_of(path, 3), "it belongs to another user");
        const char *problem;
        descriptor = hak_os_open_regular_file(path, 3, false, &problem);
        assert_true(descriptor >= 0 && problem == NULL);
        hak_os_close(descriptor);
        assert_int_equal(chmod(folder, 0), 0);
        assert_int_equal(seteuid(1234), 0);
        assert_string_equal(problem_of(path, 3), "absent");
        assert_int_equal(errno, EACCES);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(chmod(folder, 0700), 0);
    }
    snprintf(link, sizeof link, "%s/link", folder);
    unlink(link), unlink(path), rmdir(folder);
}

static void *see_thread_id(void *seen) {
    *(bool *)seen = hak_os_thread_id() == (uint32_t)gettid();
    return NULL;
}

/* In each thread, and in a child's one. */
static void thread_ids(void **state) {
    (void)state;
    pthread_t thread;
    bool is_same = false;
    int status = 1;
    assert_int_equal(hak_os_thread_id(), gettid());
    assert_int_equal(pthread_create(&thread, NULL, see_thread_id, &is_same), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(is_same);
    pid_t child = fork();
    if (child == 0) _exit(hak_os_thread_id() != (uint32_t)gettid());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void facts(void **state) {
    (void)state;
    assert_int_equal(hak_os_process_id(), getpid());
    assert_true(hak_os_has_thread_pointer());
    assert_false(hak_os_is_privileged());
    hak_os_yield();
}

static void processors(void **state) {
    (void)state;
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(hak_os_processor_count(), CPU_COUNT(&all));
}

static void one_processor(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(hak_os_processor_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(hak_os_processor_count(), 1); /* asked once */
}

/* What `body` writes to standard error before it aborts. */
static void expect_death(void (*body)(void), const char *message) {
    int ends[2], status = 0;
    char text[512] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    unit_read_all(ends[0], text, sizeof text);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_string_equal(text, message);
}

static void free_twice(void) { hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", (void *)0x1230, 0, 64); }
static void free_foreign(void) { hak_misuse(HAK_MISUSE_FOREIGN_POINTER, "realloc", (void *)0x40, 0, 0); }
static void use_freed(void) { hak_misuse(HAK_MISUSE_FREED_BLOCK, "realloc", (void *)0x1240, 0, 40960); }
static void free_inside(void) { hak_misuse(HAK_MISUSE_INTERIOR_POINTER, "free", (void *)0x1238, 8, 1024); }
static void assert_wrongly(void) { hak_assertion_failed("one == two", "file.c", 12); }

static void messages(void **state) {
    (void)state;
    expect_death(free_twice, "hakmem: free(0x1230): double free of a block of 64 bytes\n");
    expect_death(free_foreign, "hakmem: realloc(0x40): invalid pointer: not a block of this heap\n");
    expect_death(use_freed, "hakmem: realloc(0x1240): invalid pointer: a freed block of 40960 bytes\n");
    expect_death(free_inside, "hakmem: free(0x1238): invalid pointer: 8 bytes into a block of 1024 bytes\n");
    expect_death(assert_wrongly, "hakmem: invariant broken: one == two (file.c:12)\n");
}

static HAK_ATOMIC(uint32_t) word;
static HAK_ATOMIC(uint32_t) slept_through;

static void *wait_for_word(void *unused) {
    enum { LONG_MS = 300000 };
    uint64_t start_ms = hak_os_clock_ms();
    while (hak_atomic_load(&word, relaxed) == 0) hak_os_wait(&word, 0, LONG_MS * 1000);
    if (hak_os_clock_ms() - start_ms >= LONG_MS) hak_atomic_fetch_add(&slept_through, 1, relaxed);
    return unused;
}

static void wakes_all(void **state) {
    (void)state;
    enum { WAITERS = 3, ASLEEP_US = 200000 };
    pthread_t waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++) assert_int_equal(pthread_create(&waiters[i], NULL, wait_for_word, NULL), 0);
    usleep(ASLEEP_US);
    hak_atomic_store(&word, 1, relaxed);
    hak_os_wake(&word);
    for (int i = 0; i < WAITERS; i++) pthread_join(waiters[i], NULL);
    assert_int_equal(hak_atomic_load(&slept_through, relaxed), 0);
}

/* A file like any other, or none, and nothing else: no device, no link, no pipe. */
static void replaced_files(void **state) {
    (void)state;
    char folder[] = "replaced-XXXXXX", file[64], link[64], pipe[64], text[16] = "";
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    assert_int_equal(symlink(file, link), 0);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    for (int i = 0; i < 2; i++) assert_true(hak_os_replace_file(file, "text", 4));
    assert_false(hak_os_replace_file(link, "other", 5));
    assert_false(hak_os_replace_file(pipe, "other", 5));
    assert_false(hak_os_replace_file(folder, "other", 5));
    assert_true(hak_os_may_replace(file));
    assert_false(hak_os_may_replace(link) || hak_os_may_replace(pipe) || hak_os_may_replace(folder));
    unit_read_all(open(file, O_RDONLY), text, sizeof text);
    assert_string_equal(text, "text");
    assert_true(unlink(pipe) == 0 && unlink(link) == 0 && unlink(file) == 0 && rmdir(folder) == 0);
}

/* Where the kernel refuses to look, nothing counts as readable. */
static void looking_before_reading(void **state) {
    (void)state;
    uint64_t there = 0;
    errno = 1234;
    assert_true(hak_os_is_readable(&there));
    assert_false(hak_os_is_readable(NULL));
    assert_int_equal(errno, 1234);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their own runtimes die of a signal mask that is refused */
#endif
    if (!refuse(SYS_rt_sigprocmask, EPERM)) skip();
    assert_false(hak_os_is_readable(NULL));
    assert_false(hak_os_is_readable(&there));
    assert_int_equal(errno, 1234);
}

static HAK_ATOMIC(uint32_t) number_of_it;

static void *stay_a_moment(void *unused) {
    hak_atomic_store(&number_of_it, hak_os_thread_id(), relaxed);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return unused;
}

static void gone_threads(void **state) {
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stay_a_moment, NULL), 0);
    uint32_t number;
    while ((number = hak_atomic_load(&number_of_it, relaxed)) == 0) sched_yield();
    errno = 1234;
    hak_os_wait_until_gone(number);
    assert_int_equal(errno, 1234);
    assert_int_equal(syscall(SYS_tgkill, getpid(), number, 0), -1);
    assert_int_equal(errno, ESRCH);
    hak_os_wait_until_gone(number); /* at once */
    pthread_join(thread, NULL);
}

UNIT_MAIN(cmocka_unit_test(page_size), cmocka_unit_test(alignments), cmocka_unit_test(committing),
          cmocka_unit_test(purging), cmocka_unit_test(purging_locked_memory), cmocka_unit_test(remapping),
          cmocka_unit_test(moving_pages), cmocka_unit_test(guarding), cmocka_unit_test(guarding_to_a_locked_page),
          cmocka_unit_test(targets), cmocka_unit_test(refused_pieces), cmocka_unit_test(populating),
          cmocka_unit_test(huge_pages), cmocka_unit_test(huge_pages_around_a_gap), cmocka_unit_test(refusals),
          cmocka_unit_test(picked_addresses), cmocka_unit_test(seeded_addresses), cmocka_unit_test(refused_addresses),
          cmocka_unit_test(usage), cmocka_unit_test(clock_moves), cmocka_unit_test(files), cmocka_unit_test(own_files),
          cmocka_unit_test(kept_stderr), cmocka_unit_test(quiet_writes), cmocka_unit_test(thread_ids),
          cmocka_unit_test(facts), cmocka_unit_test(processors), cmocka_unit_test(one_processor),
          cmocka_unit_test(messages), cmocka_unit_test(wakes_all), cmocka_unit_test(replaced_files),
          cmocka_unit_test(looking_before_reading), cmocka_unit_test(gone_threads))
