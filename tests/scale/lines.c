#include "lines.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "turns.h"

__thread int lines_core = -1;

enum { LINE_SHIFT = 6, TABLE_SIZE = 1 << 22, READER_WORDS = LINES_MOST_CORES / 64, SITES = 1 << 12 };

/* A line, and who has it. */
struct line {
    uint64_t number; /* address >> LINE_SHIFT; 0 if the place is free */
    uint32_t writer; /* the core that wrote it last, plus 1; 0 if none has */
    uint32_t transfers;
    uint64_t readers[READER_WORDS]; /* cores that have it and are not the writer */
};

struct site {
    uintptr_t code;
    uint64_t transfers;
};

static struct line *lines; /* a hash table with open addresses */
static uint64_t line_count;
static struct site sites[SITES];
static struct lines_counts now;
static bool is_known, is_counting;
static uintptr_t stacks_start, stacks_end;
static uint64_t clock_ns;

void lines_initialize(uintptr_t stacks, uint64_t stacks_bytes) {
    lines = mmap(NULL, TABLE_SIZE * sizeof *lines, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (lines == MAP_FAILED) abort();
    stacks_start = stacks;
    stacks_end = stacks + stacks_bytes;
    is_known = true;
}

void lines_set_clock_ns(uint64_t now_ns) { clock_ns = now_ns; }

static struct line *find_line(uint64_t number) {
    uint64_t place = (number * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    for (;; place++) {
        struct line *line = &lines[place % TABLE_SIZE];
        if (line->number == number) return line;
        if (line->number != 0) continue;
        if (++line_count > TABLE_SIZE / 2) abort();
        line->number = number;
        return line;
    }
}

static bool has_readers_but(const struct line *line, uint32_t core) {
    for (uint32_t i = 0; i < READER_WORDS; i++)
        if ((line->readers[i] & ~(i == core / 64 ? UINT64_C(1) << core % 64 : 0)) != 0) return true;
    return false;
}

/* True when the line has to move. */
static bool touch(struct line *line, uint32_t core, bool writes) {
    uint64_t bit = UINT64_C(1) << core % 64, *word = &line->readers[core / 64];
    bool is_writer = line->writer == core + 1;
    if (!writes) {
        if (is_writer || (*word & bit) != 0) return false;
        *word |= bit;
        return line->writer != 0;
    }
    bool moves = (line->writer != 0 && !is_writer) || has_readers_but(line, core);
    line->writer = core + 1;
    memset(line->readers, 0, sizeof line->readers);
    return moves;
}

static void count_at(uintptr_t code) {
    for (uintptr_t place = code;; place++) {
        struct site *site = &sites[place % SITES];
        if (site->code != code && site->code != 0) continue;
        site->code = code;
        site->transfers++;
        return;
    }
}

static void access_bytes(const void *start, size_t bytes, bool writes, void *code) {
    uintptr_t address = (uintptr_t)start;
    if (!is_known || lines_core < 0 || bytes == 0 || (address >= stacks_start && address < stacks_end)) return;
    now.accesses += is_counting;
    for (uint64_t number = address >> LINE_SHIFT; number <= (address + bytes - 1) >> LINE_SHIFT; number++) {
        struct line *line = find_line(number);
        if (!touch(line, (uint32_t)lines_core, writes) || !is_counting) continue;
        now.transfers++;
        line->transfers++;
        count_at((uintptr_t)code);
    }
}

/* Before an atomic operation: its turn may end here. */
static void begin_atomic(bool writes) {
    if (!is_known || lines_core < 0) return;
    now.atomic_writes += writes && is_counting;
    turns_before_atomic(writes);
}

static void count_swap(bool swapped) { now.failed_swaps += !swapped && is_counting && lines_core >= 0; }

void lines_program_writes(void *block) {
    if (touch(find_line((uintptr_t)block >> LINE_SHIFT), (uint32_t)lines_core, true))
        now.program_transfers += is_counting;
}

void lines_begin(void) {
    memset(&now, 0, sizeof now);
    memset(sites, 0, sizeof sites);
    for (uint32_t i = 0; i < TABLE_SIZE; i++)
        if (lines[i].transfers != 0) lines[i].transfers = 0;
    is_counting = true;
}

void lines_end(struct lines_counts *counts) {
    is_counting = false;
    for (uint32_t i = 0; i < TABLE_SIZE; i++) {
        uint64_t count = lines[i].transfers;
        for (uint32_t at = 0; at < LINES_HOTTEST && count > 0; at++) {
            if (now.hottest[at] >= count) continue;
            uint64_t cooler = now.hottest[at];
            now.hottest[at] = count;
            count = cooler;
        }
    }
    *counts = now;
}

void lines_stop(void) { is_known = false; }

void lines_print_sites(void) {
    extern const char executable_start[] __asm__("__executable_start"); /* the linker's */
    for (int rank = 0; rank < 12; rank++) {
        struct site *most = &sites[0];
        for (uint32_t i = 1; i < SITES; i++)
            if (sites[i].transfers > most->transfers) most = &sites[i];
        if (most->transfers == 0) return;
        fprintf(stderr, "%10llu at %#llx\n", (unsigned long long)most->transfers,
                (unsigned long long)(most->code - (uintptr_t)executable_start));
        most->transfers = 0;
    }
}

/* ---- What -fsanitize=thread compiles accesses to ----------------------------------------------------------------- */

#define PLAIN(name, bytes, writes)                                                                                     \
    void name(void *address);                                                                                          \
    void name(void *address) { access_bytes(address, bytes, writes, __builtin_return_address(0)); }
#define PLAIN_SIZE(bytes)                                                                                              \
    PLAIN(__tsan_read##bytes, bytes, false)                                                                            \
    PLAIN(__tsan_write##bytes, bytes, true)                                                                            \
    PLAIN(__tsan_unaligned_read##bytes, bytes, false)                                                                  \
    PLAIN(__tsan_unaligned_write##bytes, bytes, true)                                                                  \
    PLAIN(__tsan_volatile_read##bytes, bytes, false)                                                                   \
    PLAIN(__tsan_volatile_write##bytes, bytes, true)

PLAIN_SIZE(1)
PLAIN_SIZE(2)
PLAIN_SIZE(4)
PLAIN_SIZE(8)
PLAIN_SIZE(16)

/* The orders don't matter: one thread runs at a time. */
#define MODIFY(name, type, builtin)                                                                                    \
    type name(type *address, type value, int order);                                                                   \
    type name(type *address, type value, int order) {                                                                  \
        (void)order;                                                                                                   \
        begin_atomic(true);                                                                                            \
        access_bytes(address, sizeof *address, true, __builtin_return_address(0));                                     \
        return builtin(address, value, __ATOMIC_SEQ_CST);                                                              \
    }
#define ATOMIC_SIZE(bits, type)                                                                                        \
    type __tsan_atomic##bits##_load(const type *address, int order);                                                   \
    type __tsan_atomic##bits##_load(const type *address, int order) {                                                  \
        (void)order;                                                                                                   \
        begin_atomic(false);                                                                                           \
        access_bytes(address, sizeof *address, false, __builtin_return_address(0));                                    \
        return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                             \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(type *address, type value, int order);                                            \
    void __tsan_atomic##bits##_store(type *address, type value, int order) {                                           \
        (void)order;                                                                                                   \
        access_bytes(address, sizeof *address, true, __builtin_return_address(0));                                     \
        __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_strong(type *address, type *expected, type desired, int success,        \
                                                      int failure);                                                    \
    int __tsan_atomic##bits##_compare_exchange_strong(type *address, type *expected, type desired, int success,        \
                                                      int failure) {                                                   \
        (void)success, (void)failure;                                                                                  \
        begin_atomic(true);                                                                                            \
        access_bytes(address, sizeof *address, true, __builtin_return_address(0));                                     \
        bool swapped =                                                                                                 \
            __atomic_compare_exchange_n(address, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
        count_swap(swapped);                                                                                           \
        return swapped;                                                                                                \
    }                                                                                                                  \
    /* clang's form of it: returns what was there */                                                                   \
    type __tsan_atomic##bits##_compare_exchange_val(type *address, type expected, type desired, int success,           \
                                                    int failure);                                                      \
    type __tsan_atomic##bits##_compare_exchange_val(type *address, type expected, type desired, int success,           \
                                                    int failure) {                                                     \
        (void)success, (void)failure;                                                                                  \
        begin_atomic(true);                                                                                            \
        access_bytes(address, sizeof *address, true, __builtin_return_address(0));                                     \
        count_swap(                                                                                                    \
            __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));      \
        return expected;                                                                                               \
    }                                                                                                                  \
    MODIFY(__tsan_atomic##bits##_exchange, type, __atomic_exchange_n)                                                  \
    MODIFY(__tsan_atomic##bits##_fetch_add, type, __atomic_fetch_add)                                                  \
    MODIFY(__tsan_atomic##bits##_fetch_sub, type, __atomic_fetch_sub)                                                  \
    MODIFY(__tsan_atomic##bits##_fetch_or, type, __atomic_fetch_or)                                                    \
    MODIFY(__tsan_atomic##bits##_fetch_and, type, __atomic_fetch_and)

ATOMIC_SIZE(8, uint8_t)
ATOMIC_SIZE(16, uint16_t)
ATOMIC_SIZE(32, uint32_t)
ATOMIC_SIZE(64, uint64_t)

void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_signal_fence(int order);
void __tsan_read_range(void *address, size_t bytes);
void __tsan_write_range(void *address, size_t bytes);

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_atomic_thread_fence(int order) { (void)order, __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int order) { (void)order, __atomic_signal_fence(__ATOMIC_SEQ_CST); }

void __tsan_read_range(void *address, size_t bytes) {
    access_bytes(address, bytes, false, __builtin_return_address(0));
}

void __tsan_write_range(void *address, size_t bytes) {
    access_bytes(address, bytes, true, __builtin_return_address(0));
}

/* ---- What the linker puts in place of libc's functions (--wrap in CMakeLists.txt) -------------------------------- */

#define WRAPPED(type, name, parameters)                                                                                \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters

WRAPPED(void *, memcpy, (void *to, const void *from, size_t bytes)) {
    access_bytes(from, bytes, false, __builtin_return_address(0));
    access_bytes(to, bytes, true, __builtin_return_address(0));
    return __real_memcpy(to, from, bytes);
}

WRAPPED(void *, memmove, (void *to, const void *from, size_t bytes)) {
    access_bytes(from, bytes, false, __builtin_return_address(0));
    access_bytes(to, bytes, true, __builtin_return_address(0));
    return __real_memmove(to, from, bytes);
}

WRAPPED(void *, memset, (void *to, int byte, size_t bytes)) {
    access_bytes(to, bytes, true, __builtin_return_address(0));
    return __real_memset(to, byte, bytes);
}

static void count_call(void) { now.system_calls += is_counting && lines_core >= 0; }

WRAPPED(void *, mmap, (void *start, size_t bytes, int protection, int flags, int descriptor, off_t offset)) {
    count_call();
    return __real_mmap(start, bytes, protection, flags, descriptor, offset);
}

WRAPPED(int, munmap, (void *start, size_t bytes)) {
    count_call();
    return __real_munmap(start, bytes);
}

WRAPPED(int, mprotect, (void *start, size_t bytes, int protection)) {
    count_call();
    return __real_mprotect(start, bytes, protection);
}

WRAPPED(int, madvise, (void *start, size_t bytes, int advice)) {
    count_call();
    return __real_madvise(start, bytes, advice);
}

WRAPPED(void *, mremap, (void *start, size_t old_bytes, size_t new_bytes, int flags, void *to)) {
    count_call();
    return __real_mremap(start, old_bytes, new_bytes, flags, to);
}

WRAPPED(long, syscall, (long number, long a, long b, long c, long d, long e, long f)) {
    count_call();
    return __real_syscall(number, a, b, c, d, e, f);
}

/* The others have their turn. */
WRAPPED(int, sched_yield, (void)) {
    count_call();
    if (is_known && lines_core >= 0) turns_end();
    return 0;
}

WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *time)) {
    (void)clock;
    *time = (struct timespec){(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};
    return 0;
}
