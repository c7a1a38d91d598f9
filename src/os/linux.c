/* os.h on Linux. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/format.h"
#include "base/siphash.h"
#include "os/descriptors.h"
#include "os/kernel.h"
#include "os/libc.h"
#include "os/notes.h"
#include "os/os.h"

/* Constants newer than the oldest headers hakmem builds with. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* ThreadSanitizer knows of the addresses only that the kernel gives. */
#ifdef __SANITIZE_THREAD__
enum { HAK_ONLY_SOME_ADDRESSES = 1 };
#else
enum { HAK_ONLY_SOME_ADDRESSES = 0 };
#endif

HAK_WRITTEN_BY_MANY struct hak_os_counters hak_os_counters;

static void count_call(void) { hak_counter_add_shared(&hak_os_counters.system_calls, 1); }

size_t hak_os_page_bytes(void) {
    static HAK_ATOMIC(size_t) page_bytes;
    size_t known = hak_atomic_load(&page_bytes, relaxed);
    if (HAK_LIKELY(known != 0)) return known;
    known = getauxval(AT_PAGESZ);
    if (known == 0) known = 4096;
    hak_atomic_store(&page_bytes, known, relaxed);
    return known;
}

/* ---- Memory --------------------------------------------------------------------------------------------------
 *
 * What gives the process memory goes straight to the kernel: libc's functions may be wrapped, by wrappers that
 * allocate or hold a lock, and malloc is never the C library's caller there either. What takes memory away that was
 * used goes through libc: some programs watch for that, as those that have told a network card where the memory is
 * (docs/decisions/0074). The runtimes of the sanitizers see all. */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DIRECTLY(name, ...) name(__VA_ARGS__)
#else
#define DIRECTLY(name, ...) HAK_SYSTEM_CALL(SYS_##name, __VA_ARGS__)
#endif

/* What is to be used counts against what the kernel thinks it has: so it refuses what can't be had by far, as a program
 * expects that asks for too much, and wants to be told. Addresses alone don't. */
static int anonymous(bool is_reserved_only) {
    return MAP_PRIVATE | MAP_ANONYMOUS | (is_reserved_only ? MAP_NORESERVE : 0);
}

static void *map_anywhere(size_t bytes, int protection) {
    count_call();
    void *start = (void *)DIRECTLY(mmap, NULL, bytes, protection, anonymous(protection == PROT_NONE), -1, (off_t)0);
    if (start == MAP_FAILED) return NULL;
    hak_counter_add_shared(&hak_os_counters.mapped_bytes, bytes);
    return start;
}

static bool count_unmapped(bool done, size_t bytes) {
    count_call();
    if (done) hak_counter_add_shared(&hak_os_counters.mapped_bytes, -(uint64_t)bytes);
    return done;
}

/* Of address space that was never used. */
static bool unmap_unused(void *start, size_t bytes) {
    return bytes == 0 || count_unmapped(DIRECTLY(munmap, start, bytes) == 0, bytes);
}

/* Pieces that nobody has used, and that the kernel has refused to take back: it is asked again when something else is
 * mapped, for one of them. A word has the number of a piece's first page, and how many they are. What
 * finds no place is lost. */
enum { REFUSED_PIECES = 32, PIECE_PAGES_SHIFT = 28 };
static HAK_ATOMIC(uint64_t) refused_pieces[REFUSED_PIECES];
static HAK_ATOMIC(uint32_t) refused_count; /* a hint */

static void unmap_piece(void *start, size_t bytes) {
    if (unmap_unused(start, bytes)) return;
    uint64_t first = (uintptr_t)start / hak_os_page_bytes(), pages = bytes / hak_os_page_bytes();
    if (first >> (64 - PIECE_PAGES_SHIFT) != 0 || pages >> PIECE_PAGES_SHIFT != 0) return;
    for (uint32_t i = 0; i < REFUSED_PIECES; i++) {
        uint64_t none = 0;
        if (!hak_atomic_cas(&refused_pieces[i], &none, first << PIECE_PAGES_SHIFT | pages, relaxed, relaxed)) continue;
        hak_atomic_fetch_add(&refused_count, 1, relaxed);
        return;
    }
}

static void unmap_refused_piece(void) {
    if (HAK_LIKELY(hak_atomic_load(&refused_count, relaxed) == 0)) return;
    for (uint32_t i = 0; i < REFUSED_PIECES; i++) {
        uint64_t piece = hak_atomic_exchange(&refused_pieces[i], 0, relaxed);
        if (piece == 0) continue;
        hak_atomic_fetch_sub(&refused_count, 1, relaxed);
        unmap_piece((void *)((piece >> PIECE_PAGES_SHIFT) * hak_os_page_bytes()),
                    (piece & hak_low_bits(PIECE_PAGES_SHIFT)) * hak_os_page_bytes());
        return;
    }
}

static void *map_aligned(size_t bytes, size_t alignment, int protection) {
    int saved_errno = errno;
    unmap_refused_piece();
    char *start = map_anywhere(bytes, protection);
    if (start != NULL && ((uintptr_t)start & (alignment - 1)) != 0) {
        unmap_piece(start, bytes);
        size_t room = alignment - hak_os_page_bytes();
        start = bytes > SIZE_MAX - room ? NULL : map_anywhere(bytes + room, protection);
        if (start != NULL) {
            size_t before = hak_align_up((uintptr_t)start, alignment) - (uintptr_t)start;
            unmap_piece(start, before);
            start += before;
            unmap_piece(start + bytes, room - before);
        }
    }
    errno = saved_errno;
    return start;
}

void *hak_os_reserve(size_t bytes, size_t alignment) { return map_aligned(bytes, alignment, PROT_NONE); }

void *hak_os_map(size_t bytes, size_t alignment) { return map_aligned(bytes, alignment, PROT_READ | PROT_WRITE); }

void *hak_os_map_wiped(void) {
    int saved_errno = errno;
    size_t bytes = hak_os_page_bytes();
    void *page = hak_os_map(bytes, bytes);
    if (page == NULL) return NULL;
    count_call();
    bool done = DIRECTLY(madvise, page, bytes, MADV_WIPEONFORK) == 0;
    if (!done) hak_os_unmap(page, bytes);
    errno = saved_errno;
    return done ? page : NULL;
}

bool hak_os_commit(void *start, size_t bytes) {
    int saved_errno = errno;
    count_call();
    bool done = DIRECTLY(mprotect, start, bytes, PROT_READ | PROT_WRITE) == 0;
    errno = saved_errno;
    return done;
}

bool hak_os_forbid(void *start, size_t bytes) {
    int saved_errno = errno;
    count_call();
    bool done = DIRECTLY(mprotect, start, bytes, PROT_NONE) == 0;
    errno = saved_errno;
    return done;
}

/* The address is a hint: the mapping lies elsewhere if something is in its place. MAP_FIXED_NOREPLACE would say so
 * without mapping, but filters of system calls know the flags of their time, and kill for others. */
enum hak_os_mapped hak_os_map_at(void *start, size_t bytes) {
    int saved_errno = errno;
    count_call();
    void *got = (void *)DIRECTLY(mmap, start, bytes, PROT_READ | PROT_WRITE, anonymous(false), -1, (off_t)0);
    if (got != MAP_FAILED) hak_counter_add_shared(&hak_os_counters.mapped_bytes, bytes);
    if (got != MAP_FAILED && got != start) unmap_piece(got, bytes);
    errno = saved_errno;
    return got == start ? HAK_OS_MAPPED : got == MAP_FAILED ? HAK_OS_REFUSED : HAK_OS_OCCUPIED;
}

/* ---- Where in the address space ---------------------------------------------------------------------------------- */

/* How much of it programs have. The stack of the first thread, where the kernel puts its random bytes, lies at the
 * upper end. */
static uintptr_t address_space_bytes(void) {
    uintptr_t high = getauxval(AT_RANDOM);
    if (high == 0) high = (uintptr_t)&high;
    return (uintptr_t)1 << (hak_highest_bit(high) + 1);
}

static uint64_t random_seed; /* const once numbers are drawn; 0: none */

void hak_os_seed_random(uint64_t seed) { random_seed = seed; }

/* Made once, before there are threads. The program, and whoever reads its stack protector, knows the bytes that the
 * kernel has put on the stack; so the secure build asks for others, too. If that is refused, the former must do. */
static uint64_t random_key[2];
static bool is_random_key_made;

static void make_random_key(void) {
    const void *given = (const void *)getauxval(AT_RANDOM);
    uint64_t others[2] = {0};
    if (given != NULL) memcpy(random_key, given, sizeof random_key);
    if (HAK_SECURE) HAK_SYSTEM_CALL(SYS_getrandom, others, sizeof others, GRND_NONBLOCK);
    for (int i = 0; i < 2; i++) random_key[i] ^= others[i];
    is_random_key_made = true;
}

uint64_t hak_os_random(uint32_t number) {
    uint64_t seeded[2] = {random_seed, 0};
    if (random_seed == 0 && !is_random_key_made) {
        int saved_errno = errno;
        make_random_key();
        errno = saved_errno;
    }
    return hak_siphash(random_seed != 0 ? seeded : random_key, number);
}

/* Below what the kernel gives at this moment, where it will come to last. */
static uintptr_t pick_near_others(size_t bytes, size_t alignment) {
    int saved_errno = errno;
    uintptr_t start = (uintptr_t)hak_os_reserve(bytes, alignment);
    if (start != 0) unmap_piece((void *)start, bytes);
    errno = saved_errno;
    return start;
}

/* Programs lie at two thirds of the address space, libraries and the like at its end, and what is asked for below 4 GiB
 * or by hint at its beginning: from an eighth to five eighths there is next to nothing, in any layout that Linux
 * has. */
uintptr_t hak_os_pick_addresses(size_t bytes, size_t alignment, uint32_t attempt) {
    enum { RANDOM_ATTEMPTS = 3, ATTEMPTS };
    uintptr_t eighth = address_space_bytes() / 8, low = eighth + eighth / 8, high = 5 * eighth;
    if (bytes > high - low) return 0;
    if (HAK_ONLY_SOME_ADDRESSES) return bytes > 64 * HAK_GIB ? 0 : pick_near_others(bytes, alignment);
    if (attempt % ATTEMPTS == RANDOM_ATTEMPTS) return pick_near_others(bytes, alignment);
    uintptr_t places = (high - low - bytes) / alignment + 1;
    return hak_align_up(low, alignment) + hak_os_random(attempt) % places * alignment;
}

bool hak_os_unmap(void *start, size_t bytes) {
    int saved_errno = errno;
    bool done = count_unmapped(munmap(start, bytes) == 0, bytes);
    if (done) hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    errno = saved_errno;
    return done;
}

/* Some emulators of a kernel (qemu's user mode) say that they have purged (before 7.2), or put guards somewhere, and
 * have not. The first purge and the first guards tell; and a purge of memory that pages have moved from
 * (hak_os_move_pages) tells for itself. */
enum { KERNEL_UNKNOWN, KERNEL_DOES_IT, KERNEL_DOES_NOT };
static HAK_ATOMIC(uint32_t) purges, moves, guards;

static bool purge(void *start, size_t bytes) {
    count_call();
    if (madvise(start, bytes, MADV_DONTNEED) == 0) return true;
    if (errno != EINVAL) return false;
    count_call();
    return madvise(start, bytes, MADV_DONTNEED_LOCKED) == 0;
}

/* False when the kernel has refused; *is_zero says what is there now. The contents stay where nothing was purged. */
static HAK_COLD bool purge_and_look(void *start, size_t bytes, bool *is_zero) {
    volatile uint64_t *word = start;
    uint64_t before = *word;
    *word = 1;
    bool done = purge(start, bytes);
    *is_zero = done && *word == 0;
    if (!*is_zero) *word = before;
    return done;
}

/* Where that is tried: what the program has freed may be in a pipe still (vmsplice). NULL: there is none, or a thread
 * has it. */
static HAK_ATOMIC(void *) trial_page;

/* KERNEL_UNKNOWN: the kernel has refused. The page stays for the next trial. */
static HAK_COLD uint32_t try_to_purge(void) {
    size_t bytes = hak_os_page_bytes();
    bool is_zero;
    /* Acquire pairs with the release below. */
    void *page = hak_atomic_exchange(&trial_page, NULL, acquire);
    if (page == NULL) page = hak_os_map(bytes, bytes);
    if (page == NULL) return KERNEL_UNKNOWN;
    bool done = purge_and_look(page, bytes, &is_zero);
    if (done) hak_atomic_store(&purges, is_zero ? KERNEL_DOES_IT : KERNEL_DOES_NOT, relaxed);
    else page = hak_atomic_exchange(&trial_page, page, acq_rel); /* acq_rel: pairs with itself, and with the above */
    if (page != NULL) unmap_piece(page, bytes);
    return hak_atomic_load(&purges, relaxed);
}

bool hak_os_purge(void *start, size_t bytes) {
    int saved_errno = errno;
    uint32_t known = hak_atomic_load(&purges, relaxed);
    if (HAK_UNLIKELY(known == KERNEL_UNKNOWN)) known = try_to_purge();
    bool done = known == KERNEL_DOES_IT && purge(start, bytes);
    if (done) hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    errno = saved_errno;
    return done;
}

/* ---- Targets of moves ------------------------------------------------------------------------------------------- */

/* Numbers of linux/futex.h, which musl-gcc does not find. */
enum { WAIT_PRIVATE = 0 | 128, WAKE_PRIVATE = 1 | 128 };

/* What is at an address, which may be another thread's, or nobody's: only the kernel can look. */
enum word_is { WORD_IS_EQUAL, WORD_IS_OTHER, WORD_IS_UNKNOWN };

static enum word_is compare_word(const uint32_t *word, uint32_t value) {
    static const struct timespec no_time;
    count_call();
    /* It waits only if the word is equal, and then no time. */
    while (HAK_SYSTEM_CALL(SYS_futex, word, WAIT_PRIVATE, value, &no_time, NULL, 0) != 0) {
        if (errno == ETIMEDOUT) return WORD_IS_EQUAL;
        if (errno == EAGAIN || errno == EFAULT) return WORD_IS_OTHER;
        if (errno != EINTR) return WORD_IS_UNKNOWN;
    }
    return WORD_IS_EQUAL;
}

static enum word_is find_mark(const struct hak_os_target *target) {
    const uint32_t *words = target->start;
    enum word_is first = compare_word(&words[0], (uint32_t)target->mark);
    return first == WORD_IS_EQUAL ? compare_word(&words[1], (uint32_t)(target->mark >> 32)) : first;
}

struct hak_os_target hak_os_reserve_target(size_t bytes, size_t alignment) {
    static HAK_ATOMIC(uint64_t) last_mark;
    const uint64_t step = UINT64_C(0x9E3779B97F4A7C15); /* odd: no mark comes twice; and none is 0 so soon */
    struct hak_os_target target = {hak_os_reserve(bytes, alignment), bytes, 0};
    if (target.start == NULL) return target;
    if (!hak_os_commit(target.start, hak_os_page_bytes())) {
        int saved_errno = errno;
        unmap_piece(target.start, bytes);
        errno = saved_errno;
        target.start = NULL;
        return target;
    }
    target.mark = hak_atomic_fetch_add(&last_mark, step, relaxed) + step;
    uint32_t *words = target.start;
    words[0] = (uint32_t)target.mark;
    words[1] = (uint32_t)(target.mark >> 32);
    return target;
}

bool hak_os_drop_target(const struct hak_os_target *target) {
    int saved_errno = errno;
    enum word_is mark = find_mark(target);
    bool done = mark != WORD_IS_EQUAL || unmap_unused(target->start, target->bytes);
    if (mark == WORD_IS_OTHER) hak_counter_add_shared(&hak_os_counters.mapped_bytes, -(uint64_t)target->bytes);
    errno = saved_errno;
    return done;
}

bool hak_os_remap(void *start, size_t old_bytes, size_t new_bytes) {
    int saved_errno = errno;
    count_call();
    bool done = mremap(start, old_bytes, new_bytes, 0) != MAP_FAILED;
    if (done) hak_counter_add_shared(&hak_os_counters.mapped_bytes, new_bytes - (uint64_t)old_bytes);
    errno = saved_errno;
    return done;
}

/* Replaces the target, whose bytes were counted already. */
bool hak_os_move(void *start, size_t bytes, const struct hak_os_target *target) {
    int saved_errno = errno;
    count_call();
    bool done = mremap(start, bytes, target->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target->start) != MAP_FAILED;
    if (done) hak_counter_add_shared(&hak_os_counters.mapped_bytes, -(uint64_t)bytes);
    errno = saved_errno;
    return done;
}

/* qemu's user mode takes what pages have moved from for unmapped: system calls on it fail, and what is to go back
 * stays. The first move tells. */
static HAK_COLD void look_at_first_move(void *start, size_t bytes) {
    bool is_zero;
    purge_and_look(start, hak_os_page_bytes(), &is_zero);
    hak_atomic_store(&moves, is_zero ? KERNEL_DOES_IT : KERNEL_DOES_NOT, relaxed);
    if (is_zero) return;
    count_call();
    /* Mapped anew, it is memory for all who ask. A filter may refuse, which then has refused the purge, too: the memory
     * reads as zero all the same. */
    (void)!mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

void *hak_os_move_pages(void *start, size_t bytes) {
    int saved_errno = errno;
    uint32_t known = hak_atomic_load(&moves, relaxed);
    if (known == KERNEL_DOES_NOT) return NULL;
    count_call();
    void *moved = mremap(start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved != MAP_FAILED) hak_counter_add_shared(&hak_os_counters.mapped_bytes, bytes);
    if (moved != MAP_FAILED && known == KERNEL_UNKNOWN) look_at_first_move(start, bytes);
    errno = saved_errno;
    return moved != MAP_FAILED ? moved : NULL;
}

/* Such advice is refused for what is locked, and changes no contents. A kernel that doesn't know it doesn't move pages
 * as hak_os_move_pages does, either. */
bool hak_os_is_locked(void *page) {
    int saved_errno = errno;
    count_call();
    bool is_locked = DIRECTLY(madvise, page, hak_os_page_bytes(), MADV_COLD) != 0 && errno == EINVAL;
    errno = saved_errno;
    return is_locked;
}

bool hak_os_purge_lazily(void *start, size_t bytes) {
    int saved_errno = errno;
    count_call();
    bool done = madvise(start, bytes, MADV_FREE) == 0;
    if (done) hak_counter_add_shared(&hak_os_counters.purged_bytes, bytes);
    errno = saved_errno;
    return done;
}

/* Advice that leaves what is in the pages. Returns 0, or the kernel's error. */
static int advise_error(void *start, size_t bytes, int advice) {
    int saved_errno = errno;
    count_call();
    int error = DIRECTLY(madvise, start, bytes, advice) == 0 ? 0 : errno;
    errno = saved_errno;
    return error;
}

static bool advise(void *start, size_t bytes, int advice) { return advise_error(start, bytes, advice) == 0; }

bool hak_os_populate(void *start, size_t bytes) { return advise(start, bytes, MADV_POPULATE_WRITE); }
bool hak_os_ask_for_huge_pages(void *start, size_t bytes) { return advise(start, bytes, MADV_HUGEPAGE); }
/* Where something isn't mapped, the kernel has told the rest of it, and says ENOMEM. */
bool hak_os_refuse_huge_pages(void *start, size_t bytes) {
    int error = advise_error(start, bytes, MADV_NOHUGEPAGE);
    return error == 0 || error == ENOMEM;
}

bool hak_os_may_guard(void) { return hak_atomic_load(&guards, relaxed) != KERNEL_DOES_NOT; }

static bool install_guards(void *start, size_t bytes) {
    bool done = advise(start, bytes, MADV_GUARD_INSTALL);
    if (!done) advise(start, bytes, MADV_GUARD_REMOVE); /* a part may have some */
    return done;
}

/* Where there were guards, the memory has gone back. Whoever doesn't take them away has put them there. */
static HAK_COLD bool install_first_guards(void *start, size_t bytes) {
    volatile uint64_t *word = start;
    uint64_t before = *word;
    *word = 1;
    if (install_guards(start, bytes)) {
        if (!advise(start, bytes, MADV_GUARD_REMOVE)) return true;
        if (*word == 0) return install_guards(start, bytes);
    }
    *word = before;
    return false;
}

bool hak_os_guard(void *start, size_t bytes) {
    uint32_t unknown = KERNEL_UNKNOWN, known = hak_atomic_load(&guards, relaxed);
    if (known == KERNEL_DOES_NOT) return false;
    bool done = known == KERNEL_DOES_IT ? install_guards(start, bytes) : install_first_guards(start, bytes);
    /* Where there are some, they are known to be: whatever another thread has found. */
    if (done) hak_atomic_store(&guards, KERNEL_DOES_IT, relaxed);
    else hak_atomic_cas(&guards, &unknown, KERNEL_DOES_NOT, relaxed, relaxed);
    return done;
}

bool hak_os_unguard(void *start, size_t bytes) {
    return hak_atomic_load(&guards, relaxed) != KERNEL_DOES_IT || advise(start, bytes, MADV_GUARD_REMOVE);
}

uint64_t hak_os_touch(void *page) {
    uint64_t start_ms = hak_os_clock_ms();
    uint8_t none = 0;
    HAK_IN_REGISTER(none); /* a compiler that knows it would only read */
    hak_atomic_fetch_or((HAK_ATOMIC(uint8_t) *)page, none, relaxed);
    return hak_os_clock_ms() - start_ms;
}

/* To free a part of a huge page lazily the kernel has to break it, while MADV_DONTNEED leaves the memory of the part
 * with the rest until there is none elsewhere. */
void hak_os_break_huge_page(void *page) {
    int saved_errno = errno;
    count_call();
    madvise(page, hak_os_page_bytes(), MADV_FREE);
    errno = saved_errno;
}

/* The beginning of a small file, as text. False when it can't be read. */
static bool read_file(const char *path, char *text, size_t capacity) {
    int saved_errno = errno, descriptor = hak_os_open_file(path);
    size_t length = descriptor < 0 ? 0 : hak_os_read(descriptor, text, capacity - 1);
    if (descriptor >= 0) hak_os_close(descriptor);
    errno = saved_errno;
    text[length] = '\0';
    return length > 0;
}

/* What the kernel tells of this process in one file, which opens as those do that the dynamic linker opens: where a
 * sandbox is there from the first instruction, that much is allowed. Read once, by the first that asks, before main. */
enum { FACTS_BYTES = 4096 }; /* with some 250 groups */
enum process_facts {
    PROCESSORS = (1 << 16) - 1, /* that its first thread may run on */
    MAY_HAVE_HUGE_PAGES = 1 << 16,
    IS_FILTERED = 1 << 17, /* its system calls */
    ARE_KNOWN = 1 << 18,
};

/* What follows `name` at the start of a line, or NULL. */
static const char *line_of(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at == NULL ? NULL : at + strlen(name);
}

/* Set bits of a mask in hexadecimal digits and commas. */
static uint32_t count_in_mask(const char *mask) {
    uint32_t count = 0;
    for (; *mask == ',' || (*mask >= '0' && *mask <= '9') || (*mask >= 'a' && *mask <= 'f'); mask++)
        if (*mask != ',') count += hak_bit_count((uint64_t)(*mask <= '9' ? *mask - '0' : *mask - 'a' + 10));
    return count;
}

static uint32_t process_facts(void) {
    enum { UNKNOWN_PROCESSORS = 1024 };
    static HAK_ATOMIC(uint32_t) facts;
    uint32_t known = hak_atomic_load(&facts, relaxed);
    if (known != 0) return known;
    char text[FACTS_BYTES];
    read_file("/proc/self/status", text, sizeof text);
    const char *mask = line_of(text, "\nCpus_allowed:\t"), *huge = line_of(text, "\nTHP_enabled:\t"),
               *filters = line_of(text, "\nSeccomp:\t");
    uint32_t processors = mask == NULL ? 0 : count_in_mask(mask);
    known = ARE_KNOWN | (processors == 0 ? UNKNOWN_PROCESSORS : processors);
    if (huge == NULL || *huge != '0') known |= MAY_HAVE_HUGE_PAGES;
    /* Who can't tell takes them for filtered. A kernel without filters tells of processors, which come later. */
    if (filters == NULL ? mask == NULL : *filters != '0') known |= IS_FILTERED;
    hak_atomic_store(&facts, known, relaxed);
    return known;
}

uint32_t hak_os_processor_count(void) { return process_facts() & PROCESSORS; }

bool hak_os_has_huge_pages(void) {
    enum { UNKNOWN, NO, YES };
    static HAK_ATOMIC(uint32_t) answer;
    uint32_t known = hak_atomic_load(&answer, relaxed);
    if (HAK_LIKELY(known != UNKNOWN)) return known == YES;
    char text[64];
    /* A huge page is what one page full of page-table entries maps. */
    size_t huge_bytes = hak_os_page_bytes() / sizeof(uint64_t) * hak_os_page_bytes();
    bool has = huge_bytes == 2 * HAK_MIB &&
               read_file("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) &&
               strstr(text, "[never]") == NULL && (process_facts() & MAY_HAVE_HUGE_PAGES) != 0;
    hak_atomic_store(&answer, has ? YES : NO, relaxed);
    return has;
}

/* libc's own: a wrapper of the program's, or of a tool in LD_PRELOAD, may hold a lock when it allocates and frees, and
 * its time be another (os/libc.h). Other libraries may allocate before it is found. */
typedef int clock_function(clockid_t, struct timespec *);
static int ask_kernel_for_time(clockid_t clock, struct timespec *time) {
    return (int)HAK_SYSTEM_CALL(SYS_clock_gettime, clock, time);
}
static clock_function *read_clock = ask_kernel_for_time;

static uint64_t read_clock_ns(clockid_t clock) {
    struct timespec now;
    int saved_errno = errno;
    if (read_clock(clock, &now) != 0) now.tv_sec = now.tv_nsec = 0;
    errno = saved_errno;
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t hak_os_clock_ms(void) { return read_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000; }
uint64_t hak_os_clock_ns(void) { return read_clock_ns(CLOCK_MONOTONIC); }

static uint64_t ns_of(struct timeval time) {
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_usec * 1000;
}

struct hak_os_usage hak_os_usage(bool may_ask) {
    enum { CALL_NS = 1000, PAGE_NS = 500 };
    struct rusage usage;
    int saved_errno = errno;
    bool is_known = may_ask && HAK_SYSTEM_CALL(SYS_getrusage, RUSAGE_SELF, &usage) == 0;
    errno = saved_errno;
    if (is_known) {
        uint64_t kernel_ns = ns_of(usage.ru_stime);
        return (struct hak_os_usage){.cpu_ns = kernel_ns + ns_of(usage.ru_utime), .kernel_ns = kernel_ns};
    }
    uint64_t calls = hak_atomic_load(&hak_os_counters.system_calls, relaxed),
             pages = hak_atomic_load(&hak_os_counters.purged_bytes, relaxed) / hak_os_page_bytes();
    return (struct hak_os_usage){.cpu_ns = hak_os_clock_ms() * 1000000, .kernel_ns = calls * CALL_NS + pages * PAGE_NS};
}

size_t hak_os_build_id(unsigned char *id, size_t capacity) {
    const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
    size_t count = getauxval(AT_PHNUM), bytes = 0;
    uintptr_t loaded_at = 0;
    for (size_t i = 0; headers != NULL && i < count; i++)
        if (headers[i].p_type == PT_PHDR) loaded_at = (uintptr_t)headers - headers[i].p_vaddr;
    for (size_t i = 0; headers != NULL && i < count && bytes == 0; i++)
        if (headers[i].p_type == PT_NOTE)
            bytes =
                hak_os_build_id_in((const void *)(loaded_at + headers[i].p_vaddr), headers[i].p_memsz, id, capacity);
    return bytes;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer does not see what time orders, and would report every drained block. */
bool hak_fence_threads(void) { return false; }
#else
/* By time: a processor holds an instruction that it has begun, or a store that is not seen yet, for microseconds, and
 * an interrupt, or another thread in its place, ends both. The kernel's own fence, membarrier, is not asked: sandboxes
 * kill for it (docs/decisions/0070-a-fence-by-time.md). */
bool hak_fence_threads(void) {
    enum { FENCE_US = 1000, LONGEST_TICK_MS = 10 };
    static HAK_ATOMIC(uint32_t) nobody_wakes;
    int saved_errno = errno, error;
    /* Pairs with the signal fences of those who are fenced, now and at the end. */
    hak_atomic_fence(seq_cst);
    uint64_t start_ms = hak_os_clock_ms();
    bool is_over;
    do {
        struct timespec time = {.tv_sec = 0, .tv_nsec = FENCE_US * 1000L};
        error = HAK_SYSTEM_CALL(SYS_futex, &nobody_wakes, WAIT_PRIVATE, 0, &time, NULL, 0) == 0 ? EINTR : errno;
        is_over = error == ETIMEDOUT || hak_os_clock_ms() - start_ms > FENCE_US / 1000 + LONGEST_TICK_MS;
    } while (!is_over && error == EINTR);
    /* Pairs with them as well. */
    hak_atomic_fence(seq_cst);
    errno = saved_errno;
    return is_over;
}
#endif

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int join_function(pthread_t, void **);

/* libc's own: who starts a thread, or joins one, is in the middle of a malloc or at a thread's end, which is no place
 * for a wrapper (os/libc.h). */
static create_function *create = pthread_create;
static join_function *join = pthread_join, *try_join = pthread_tryjoin_np;

/* Not before it was found: sanitizers put one before libc's that calls a function they have yet to look for, and
 * allocate while they look. */
typedef int thread_clock_function(pthread_t, clockid_t *);
static thread_clock_function *thread_clock;

#if defined(HAK_NO_OVERRIDE) /* sanitizers, which want to see all threads, are built without malloc's names */
__attribute__((constructor(101))) static void find_functions(void) {
    read_clock = clock_gettime;
    thread_clock = pthread_getcpuclockid;
}
#else
/* `function` points to a pointer to a function, which stays as it is where libc has none of that name. */
static void find_function(const char *name, void *function) {
    void *found = hak_os_find_in_libc(name);
    if (found != NULL) memcpy(function, &found, sizeof found);
}

__attribute__((constructor(101))) static void find_functions(void) {
    clock_function *clock = clock_gettime;
    find_function("clock_gettime", &clock);
    read_clock = clock;
    find_function("pthread_create", &create);
    find_function("pthread_join", &join);
    find_function("pthread_tryjoin_np", &try_join);
    thread_clock_function *found = pthread_getcpuclockid;
    find_function("pthread_getcpuclockid", &found);
    thread_clock = found;
}
#endif

/* A new thread has the scheduling of the one that created it: of any worker, which may be a real-time one, or bound
 * to a processor. It takes the main thread's, but never is a real-time one. */
static void schedule_as_main(void) {
    enum { PROCESSOR_BYTES = 1024, MOST_NICE = 20 };
    unsigned char processors[PROCESSOR_BYTES] __attribute__((aligned(8)));
    struct sched_param none = {0};
    int main_thread = hak_os_process_id();
    long bytes = HAK_SYSTEM_CALL(SYS_sched_getaffinity, main_thread, sizeof processors, processors),
         policy = HAK_SYSTEM_CALL(SYS_sched_getscheduler, main_thread),
         priority = HAK_SYSTEM_CALL(SYS_getpriority, PRIO_PROCESS, main_thread); /* 20 - nice */
    if (bytes > 0) HAK_SYSTEM_CALL(SYS_sched_setaffinity, 0, bytes, processors);
    HAK_SYSTEM_CALL(SYS_sched_setscheduler, 0, policy == SCHED_BATCH || policy == SCHED_IDLE ? policy : SCHED_OTHER,
                    &none);
    if (priority > 0) HAK_SYSTEM_CALL(SYS_setpriority, PRIO_PROCESS, 0, MOST_NICE - priority);
}

bool hak_os_began_filtered(void) { return (process_facts() & IS_FILTERED) != 0; }

/* The question may be fatal, too: it is not asked where the process began under a filter. Who refuses to answer is one,
 * but for a kernel that has no filters. */
static bool is_filtered(void) {
    int answer = prctl(PR_GET_SECCOMP);
    return answer > 0 || (answer < 0 && errno != EINVAL);
}

/* False where they have this line both, and it isn't the same. */
static bool is_line_alike(const char *text, const char *other, const char *name) {
    const char *line = line_of(text, name), *others = line_of(other, name);
    return line == NULL || others == NULL || strncmp(line, others, strcspn(line, "\n") + 1) == 0;
}

/* /proc/self is the process's first thread. */
static bool are_rights_alike(void) {
    static const char *const names[] = {
        "\nUid:",    "\nGid:",    "\nGroups:",     "\nCapInh:",  "\nCapPrm:",         "\nCapEff:",
        "\nCapBnd:", "\nCapAmb:", "\nNoNewPrivs:", "\nSeccomp:", "\nSeccomp_filters:"};
    char own[FACTS_BYTES], firsts[FACTS_BYTES];
    if (!read_file("/proc/thread-self/status", own, sizeof own) ||
        !read_file("/proc/self/status", firsts, sizeof firsts) || strlen(own) == sizeof own - 1 ||
        strlen(firsts) == sizeof firsts - 1)
        return true; /* not known to the end */
    bool are_alike = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        are_alike = are_alike && is_line_alike(own, firsts, names[i]);
    return are_alike;
}

/* False where it can't be read. */
static bool read_link(const char *path, char *text, size_t capacity) {
    long length = HAK_SYSTEM_CALL(SYS_readlinkat, AT_FDCWD, path, text, capacity - 1);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static bool are_namespaces_alike(void) {
    static const char *const names[] = {"cgroup", "ipc", "mnt", "net", "user", "uts"};
    char path[64], own[64], firsts[64];
    bool are_alike = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && are_alike; i++) {
        struct hak_text owns = hak_text_in(path, sizeof path);
        hak_text_add(&owns, "/proc/thread-self/ns/%s", names[i]);
        if (!read_link(path, own, sizeof own)) continue;
        struct hak_text first = hak_text_in(path, sizeof path);
        hak_text_add(&first, "/proc/self/ns/%s", names[i]);
        are_alike = !read_link(path, firsts, sizeof firsts) || strcmp(own, firsts) == 0;
    }
    return are_alike;
}

/* True where both have one current folder and root, so that what either changes is changed for both. A thread that
 * has taken its own (unshare of CLONE_FS) may leave that folder, or enter a mount namespace, only if it is alone with
 * it. */
static bool is_folder_shared(void) {
    enum { KCMP_OF_FOLDERS = 3, DIFFERENT = 1 };
    return HAK_SYSTEM_CALL(SYS_kcmp, getpid(), (pid_t)hak_os_thread_id(), KCMP_OF_FOLDERS, 0, 0) < DIFFERENT;
}

/* It has no folders any more. */
static bool has_first_thread_ended(void) {
    char text[FACTS_BYTES];
    const char *state = read_file("/proc/self/status", text, sizeof text) ? line_of(text, "\nState:\t") : NULL;
    return state != NULL && (*state == 'Z' || *state == 'X');
}

/* A new thread has what the one that created it has, which may have changed its own: rights, namespaces, folders. Files
 * are read in a table of descriptors that is not the program's, or not at all. What can't be read counts as alike. */
static bool is_like_first_thread(void) {
    return !hak_descriptors_take(hak_os_thread_id()) ||
           (are_rights_alike() && are_namespaces_alike() && (has_first_thread_ended() || is_folder_shared()));
}

enum hak_os_settled hak_os_settle_thread(void) {
    int saved_errno = errno;
    enum hak_os_settled settled = hak_os_began_filtered()  ? HAK_OS_BEGAN_FILTERED
                                  : is_filtered()          ? HAK_OS_FILTERED
                                  : is_like_first_thread() ? HAK_OS_SETTLED
                                                           : HAK_OS_FOREIGN;
    if (settled == HAK_OS_SETTLED) {
        prctl(PR_SET_NAME, "hakmem");
        schedule_as_main();
    }
    errno = saved_errno;
    return settled;
}

static void *run_thread(void *run) {
    union {
        void *pointer;
        void (*function)(void);
    } start = {.pointer = run};
    start.function();
    /* Signals stay blocked to the end: one that the program keeps pending would be delivered here. Nor would exit()
     * be wanted here: whoever started the thread sees to it that it is not the last one. */
    return NULL;
}

/* Its size is always given: for what libc would choose, pthread_create takes a lock. */
static int create_thread(pthread_t *thread, size_t stack_bytes, void *run) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (error == 0) error = create(thread, &attributes, run_thread, run);
    pthread_attr_destroy(&attributes);
    return error;
}

bool hak_os_start_thread(void (*run)(void), uintptr_t *thread) {
    enum { STACK_BYTES = 256 << 10, MOST_STACK_BYTES = 1 << 30 }; /* touched as used: some 8 KiB */
    int saved_errno = errno;
    pthread_t created;
    sigset_t all, mask;
    union {
        void (*function)(void);
        void *pointer;
    } start = {.function = run};
    sigfillset(&all);
    /* Of a filter that leaves the answer to the program's handler: blocked, it kills. But a program may wait for it. */
    if (pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && sigismember(&mask, SIGSYS) == 0) sigdelset(&all, SIGSYS);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    size_t stack_bytes = STACK_BYTES;
    int error = create_thread(&created, stack_bytes, start.pointer);
    /* What a program has in thread-local variables is on each thread's stack, and can be more. */
    while (error == EINVAL && stack_bytes < MOST_STACK_BYTES)
        error = create_thread(&created, stack_bytes *= 4, start.pointer);
    bool started = error == 0;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (started && thread != NULL) *thread = (uintptr_t)created;
    errno = saved_errno;
    return started;
}

uintptr_t hak_os_this_thread(void) { return (uintptr_t)pthread_self(); }

/* The C library has what it knows of a thread above its stack, also where the program gave the stack; the kernel has
 * random bytes above the first thread's. */
uintptr_t hak_os_stack_end(uintptr_t place) {
    static const uintptr_t most_bytes = (uintptr_t)1 << 30;
    uintptr_t ends[] = {hak_os_this_thread(), getauxval(AT_RANDOM)};
    for (int i = 0; i < 2; i++)
        if (place < ends[i] && ends[i] - place <= most_bytes) return ends[i];
    return 0;
}

bool hak_os_try_join_thread(uintptr_t thread) { return try_join((pthread_t)thread, NULL) == 0; }

static HAK_ATOMIC(bool) waits_are_refused;

/* glibc ends the process when a sandbox refuses that it waits. */
void hak_os_join_thread(uintptr_t thread) {
    int cancellable;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable); /* who calls may not be where a thread can be ended */
    if (!hak_os_may_wait()) {
        while (!hak_os_try_join_thread(thread)) hak_cpu_relax();
    } else {
        join((pthread_t)thread, NULL);
    }
    pthread_setcancelstate(cancellable, NULL);
}

void hak_os_wait_until_gone(uint32_t thread) {
    enum { MOST_GONE_MS = 1000 };
    int saved_errno = errno;
    uint64_t start_ms = hak_os_clock_ms();
    while (HAK_SYSTEM_CALL(SYS_tgkill, hak_os_process_id(), thread, 0) == 0 &&
           hak_os_clock_ms() - start_ms < MOST_GONE_MS)
        hak_os_yield();
    errno = saved_errno;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

void hak_os_wait(HAK_ATOMIC(uint32_t) *word, uint32_t expected, uint64_t most_us) {
    int saved_errno = errno;
    struct timespec time = {.tv_sec = (time_t)(most_us / 1000000), .tv_nsec = (long)(most_us % 1000000) * 1000};
    if (HAK_SYSTEM_CALL(SYS_futex, word, WAIT_PRIVATE, expected, most_us == 0 ? NULL : &time, NULL, 0) != 0 &&
        errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
        hak_atomic_store(&waits_are_refused, true, relaxed);
    errno = saved_errno;
}

bool hak_os_may_wait(void) { return !hak_atomic_load(&waits_are_refused, relaxed); }

void hak_os_wake(HAK_ATOMIC(uint32_t) *word) {
    int saved_errno = errno;
    HAK_SYSTEM_CALL(SYS_futex, word, WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    errno = saved_errno;
}

/* By a call that hakmem makes anyway: sandboxes may kill for another. */
void hak_os_yield(void) {
    enum { SHORT_US = 50 };
    static HAK_ATOMIC(uint32_t) nobody_wakes;
    hak_os_wait(&nobody_wakes, 0, SHORT_US);
}

static bool write_all(int descriptor, const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = HAK_SYSTEM_CALL(SYS_write, descriptor, text, length); /* no cancellation point */
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written;
        length -= (size_t)written;
    }
    return true;
}

void hak_os_write(int descriptor, const char *text, size_t length) {
    int saved_errno = errno;
    if (!write_all(descriptor, text, length) && descriptor == STDERR_FILENO && errno == EBADF) {
        int borrowed = hak_descriptors_borrow_stderr(hak_os_thread_id());
        if (borrowed >= 0) {
            write_all(borrowed, text, length);
            hak_os_close(borrowed);
        }
    }
    errno = saved_errno;
}

bool hak_os_write_quietly(int descriptor, const char *text, size_t length) {
    enum { SET_BYTES = 8 };
    static const struct timespec at_once;
    int saved_errno = errno;
    sigset_t before, pending, sent;
    sigemptyset(&sent);
    sigaddset(&sent, SIGPIPE);
    sigaddset(&sent, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &sent, &before);
    bool done = write_all(descriptor, text, length);
    if (!done) {
        if (errno != EPIPE || sigismember(&pending, SIGPIPE)) sigdelset(&sent, SIGPIPE);
        if (errno != EFBIG || sigismember(&pending, SIGXFSZ)) sigdelset(&sent, SIGXFSZ);
        if (errno == EPIPE || errno == EFBIG)
            HAK_SYSTEM_CALL(SYS_rt_sigtimedwait, &sent, NULL, &at_once, SET_BYTES); /* no cancellation point */
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = saved_errno;
    return done;
}

/* Nothing, or a file like any other: no device, pipe or link, which whoever named it meant to be written to. */
static bool may_be_replaced(const char *path) {
    struct stat there;
    return lstat(path, &there) == 0 ? S_ISREG(there.st_mode) : errno == ENOENT;
}

bool hak_os_replace_file(const char *path, const char *text, size_t length) {
    int saved_errno = errno;
    if (!may_be_replaced(path)) {
        errno = saved_errno;
        return false;
    }
    char buffer[4096];
    struct hak_text beside = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&beside, "%s.%d.part", path, hak_os_process_id());
    unlink(beside.start); /* of a process that had this number before, and was killed */
    int descriptor = beside.truncated ? -1 : open(beside.start, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool done = descriptor >= 0 && write_all(descriptor, text, length);
    if (descriptor >= 0 && close(descriptor) != 0) done = false;
    done = done && rename(beside.start, path) == 0;
    if (!done && descriptor >= 0) unlink(beside.start);
    errno = saved_errno;
    return done;
}

/* No cancellation point, as libc's functions are: these are called in the middle of a malloc, and at the end of the
 * process. */
int hak_os_create_file(const char *path) {
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK,
        descriptor = (int)HAK_SYSTEM_CALL(SYS_openat, AT_FDCWD, path, flags, 0666);
    if (descriptor >= 0) HAK_SYSTEM_CALL(SYS_fcntl, descriptor, F_SETFL, 0); /* writing may wait */
    return descriptor;
}

int hak_os_open_file(const char *path) {
    return (int)HAK_SYSTEM_CALL(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
}

int hak_os_open_own(const char *name) {
    enum { PATH_BYTES = 64 };
    char path_bytes[PATH_BYTES];
    static const char *const folders[] = {"/proc/thread-self", "/proc/self"};
    int descriptor = -1, saved_errno = errno;
    for (uint32_t i = 0; i < 2 && descriptor < 0; i++) {
        struct hak_text path = hak_text_in(path_bytes, sizeof path_bytes);
        hak_text_add(&path, "%s/%s", folders[i], name);
        descriptor = hak_os_open_file(path.start);
    }
    errno = saved_errno;
    return descriptor;
}

int hak_os_open_regular_file(const char *path, size_t most_bytes, bool is_own, const char **problem) {
    struct stat file;
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
        descriptor = (int)HAK_SYSTEM_CALL(SYS_openat, AT_FDCWD, path, flags, 0);
    bool is_absent =
        descriptor < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ENAMETOOLONG);
    *problem = NULL;
    if (is_absent) return -1;
    if (descriptor < 0 || fstat(descriptor, &file) != 0) *problem = "can't be read";
    else if (!S_ISREG(file.st_mode)) *problem = "not a regular file";
    else if (is_own && file.st_uid != 0 && file.st_uid != getauxval(AT_EUID)) *problem = "it belongs to another user";
    else if (file.st_size == 0) *problem = "empty"; /* or a file of the kernel's, which may wait */
    else if ((uint64_t)file.st_size > most_bytes) *problem = "too large";
    if (*problem == NULL) return descriptor;
    if (descriptor >= 0) hak_os_close(descriptor);
    return -1;
}

size_t hak_os_read(int descriptor, void *buffer, size_t bytes) {
    ssize_t length;
    do length = (ssize_t)HAK_SYSTEM_CALL(SYS_read, descriptor, buffer, bytes);
    while (length < 0 && errno == EINTR);
    return length < 0 ? 0 : (size_t)length;
}

bool hak_os_copy_file(int from, int to) {
    char part[4096];
    int saved_errno = errno;
    size_t length;
    bool written = true;
    while (from >= 0 && written && (length = hak_os_read(from, part, sizeof part)) > 0)
        written = hak_os_write_quietly(to, part, length);
    if (from >= 0) hak_os_close(from);
    errno = saved_errno;
    return written;
}

void hak_os_close(int descriptor) { HAK_SYSTEM_CALL(SYS_close, descriptor); }

static int kept_stderr = -1;
static bool had_stderr; /* when the process began */
static struct stat kept_file;

void hak_os_keep_stderr(void) {
    enum { HIGH = 100, LEAST = 3 };
    int saved_errno = errno;
    kept_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, HIGH);
    if (kept_stderr < 0) kept_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, LEAST); /* a low limit of descriptors */
    had_stderr = fstat(STDERR_FILENO, &kept_file) == 0;
    errno = saved_errno;
}

/* A program may close what it doesn't know, and standard error, and get the number for a file of its own. */
static bool is_still_stderr(int descriptor) {
    struct stat file;
    return had_stderr && descriptor >= 0 && fstat(descriptor, &file) == 0 && file.st_dev == kept_file.st_dev &&
           file.st_ino == kept_file.st_ino;
}

static bool has_kept_stderr(void) { return is_still_stderr(kept_stderr); }

int hak_os_kept_stderr(void) {
    int saved_errno = errno, descriptor = kept_stderr;
    if (!has_kept_stderr()) descriptor = is_still_stderr(STDERR_FILENO) ? STDERR_FILENO : -1;
    errno = saved_errno;
    return descriptor;
}

void hak_os_write_line(const char *text, size_t length) {
    enum { SURE_BYTES = 256 };
    static const struct timespec at_once;
    int saved_errno = errno;
    struct pollfd out = {.fd = kept_stderr, .events = POLLOUT};
    char line[SURE_BYTES];
    if (length > sizeof line) { /* there may be no room for more, though some */
        memcpy(line, text, sizeof line - 1);
        line[sizeof line - 1] = '\n';
        text = line;
        length = sizeof line;
    }
    bool may_write =
        has_kept_stderr() && HAK_SYSTEM_CALL(SYS_ppoll, &out, 1, &at_once, NULL, 0) == 1 && out.revents == POLLOUT;
    if (may_write) hak_os_write_quietly(kept_stderr, text, length);
    errno = saved_errno;
}

bool hak_os_may_replace(const char *path) {
    char folder[4096] = ".";
    int saved_errno = errno;
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    if (length >= sizeof folder) return false;
    if (slash != NULL) memcpy(folder, path, length);
    folder[length] = '\0';
    bool may = may_be_replaced(path) && access(folder, W_OK | X_OK) == 0;
    errno = saved_errno;
    return may;
}

void hak_os_drop_stderr(void) {
    int saved_errno = errno;
    if (has_kept_stderr()) hak_os_close(kept_stderr);
    kept_stderr = -1;
    errno = saved_errno;
}

bool hak_os_is_privileged(void) { return getauxval(AT_SECURE) != 0; }

int hak_os_process_id(void) { return (int)getpid(); }

bool hak_os_host_name(char name[HAK_OS_HOST_NAME_BYTES]) {
    struct utsname names;
    if (HAK_SYSTEM_CALL(SYS_uname, &names) != 0 || names.nodename[0] == '\0') return false;
    _Static_assert(sizeof names.nodename == HAK_OS_HOST_NAME_BYTES, "as the kernel has it");
    memcpy(name, names.nodename, sizeof names.nodename);
    return true;
}

/* The C library knows, and makes the number of a thread's clock of it, as linux/posix-timers.h has it
 * (CPUCLOCK_PERTHREAD_MASK). So nobody asks the kernel. */
uint32_t hak_os_thread_id(void) {
    clockid_t clock;
    return thread_clock != NULL && thread_clock(pthread_self(), &clock) == 0 ? (uint32_t) ~(clock >> 3) : 0;
}

bool hak_os_is_readable(const void *address) {
    enum { NO_SUCH_WAY = -1, SET_BYTES = 8 };
    int saved_errno = errno;
    /* The kernel reads the set before it looks at what is to be done with it. A sandbox that refuses the call says
     * something else. */
    bool readable = HAK_SYSTEM_CALL(SYS_rt_sigprocmask, NO_SUCH_WAY, address, NULL, SET_BYTES) != 0 && errno == EINVAL;
    errno = saved_errno;
    return readable;
}

bool hak_os_has_thread_pointer(void) {
    uintptr_t pointer = 1;
#if defined(__x86_64__) && !defined(__ILP32__)
    enum { ARCH_GET_FS = 0x1003 };
    if (hak_kernel_answer(SYS_arch_prctl, ARCH_GET_FS, (long)&pointer, 0, 0, 0, 0) != 0)
        return false; /* no errno yet */
#elif defined(__aarch64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return pointer != 0;
}

/* ---- base/check.h ----------------------------------------------------------------------------------------------- */

static _Noreturn void die(struct hak_text *message) {
    hak_os_write(STDERR_FILENO, message->start, message->length);
    abort();
}

static HAK_ATOMIC(uintptr_t) complaint;
static HAK_ATOMIC(uint32_t) complaint_kind;
static HAK_ATOMIC(uintptr_t) complaint_offset;

uintptr_t hak_os_complaint(void) { return hak_atomic_load(&complaint, relaxed); }
enum hak_misuse_kind hak_os_complaint_kind(void) {
    return (enum hak_misuse_kind)hak_atomic_load(&complaint_kind, relaxed);
}

ptrdiff_t hak_os_complaint_offset(void) { return (ptrdiff_t)hak_atomic_load(&complaint_offset, relaxed); }

static const char *const origins[] = {"nowhere", "malloc", "new", "new[]"}; /* as pool/canary.h numbers them */

static uintptr_t offset_of_write(enum hak_misuse_kind kind, size_t offset, size_t size) {
    switch (kind) {
    case HAK_MISUSE_OVERFLOW: return size + offset;
    case HAK_MISUSE_UNDERFLOW: return -offset;
    case HAK_MISUSE_FREED_WRITE: return offset;
    default: return 0;
    }
}

void hak_misuse(enum hak_misuse_kind kind, const char *function, const void *address, size_t offset, size_t size) {
    hak_atomic_store(&complaint, (uintptr_t)address, relaxed);
    hak_atomic_store(&complaint_offset, offset_of_write(kind, offset, size), relaxed);
    hak_atomic_store(&complaint_kind, kind, relaxed);
    char buffer[256];
    struct hak_text message = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&message, "hakmem: %s(%p): ", function, (void *)(uintptr_t)address);
    switch (kind) {
    case HAK_MISUSE_DOUBLE_FREE: hak_text_add(&message, "double free of a block of %zu bytes\n", size); break;
    case HAK_MISUSE_FOREIGN_POINTER: hak_text_add(&message, "invalid pointer: not a block of this heap\n"); break;
    case HAK_MISUSE_FREED_BLOCK: hak_text_add(&message, "invalid pointer: a freed block of %zu bytes\n", size); break;
    case HAK_MISUSE_INTERIOR_POINTER:
        hak_text_add(&message, "invalid pointer: %zu bytes into a block of %zu bytes\n", offset, size);
        break;
    case HAK_MISUSE_FREED_WRITE:
        hak_text_add(&message, "write after free: %zu bytes into a freed block of %zu bytes\n", offset, size);
        break;
    case HAK_MISUSE_WRONG_SIZE:
        hak_text_add(&message, "wrong size: %zu bytes for a block of %zu bytes\n", offset, size);
        break;
    case HAK_MISUSE_WRONG_ALIGNMENT:
        hak_text_add(&message, "wrong alignment: %zu for a block of %zu bytes\n", offset, size);
        break;
    case HAK_MISUSE_OVERFLOW:
        hak_text_add(&message, "overflow: %zu bytes behind the end of a block of %zu bytes were written\n", offset,
                     size);
        break;
    case HAK_MISUSE_UNDERFLOW:
        hak_text_add(&message, "underflow: %zu bytes before a block of %zu bytes were written\n", offset, size);
        break;
    case HAK_MISUSE_MISMATCH:
        hak_text_add(&message, "mismatch: a block of %zu bytes from %s", size, origins[offset % 4]);
        if (offset >= 4) hak_text_add(&message, ", aligned to %zu", (size_t)1 << offset / 4);
        hak_text_add(&message, "\n");
        break;
    }
    die(&message);
}

void hak_assertion_failed(const char *condition, const char *file, int line) {
    char buffer[256];
    struct hak_text message = hak_text_in(buffer, sizeof buffer);
    hak_text_add(&message, "hakmem: invariant broken: %s (%s:%d)\n", condition, file, line);
    die(&message);
}
