/* What the benchmark programs share: arguments, random numbers, a clock, payloads, what the kernel says of this
 * process, and the closing lines.
 *
 * Header only and free of hakmem, so that each program compiles alone (cc -O2 -fno-builtin-malloc FILE -pthread) and
 * measures whatever allocator its malloc resolves to. A program's own tables come from bench_map, never from the
 * allocator it measures. Include this header first: it sets _GNU_SOURCE.
 *
 * Every program ends with these lines; a program with more to say has more figures, before them:
 *
 *     figure tables N bytes          the program's own tables: part of its peak RSS, but not the allocator's
 *     allocator PATH                 the file that malloc and free were resolved to, asked of the dynamic linker
 *     peak N KiB                     this program's own peak RSS; wait4's figure is never below that of its parent
 *     checksum 0xHEX                 a function of the arguments alone, unless the allocator damaged a payload
 *     Throughput = N operations per second, relative time: S s.
 *
 * A figure is one line: figure NAME VALUE UNIT, and nothing but figures is printed before the closing lines. Units are
 * bytes, s, ns, ops/s, faults, count, % and x (a ratio). Wrong arguments end a program with status 2 and one line that
 * says what was expected; a failure with status 1.
 */
#ifndef BENCH_H
#define BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- Failure and arguments ------------------------------------------------------------------------------------- */

enum { BENCH_BAD_ARGUMENTS = 2 };

static inline _Noreturn void bench_fail(const char *message) {
    fprintf(stderr, "bench: %s\n", message);
    exit(EXIT_FAILURE);
}

__attribute__((format(printf, 1, 2))) static inline _Noreturn void bench_refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(BENCH_BAD_ARGUMENTS);
}

/* Ends the program with its usage unless it got between min_count and max_count arguments. */
static inline void bench_expect_arguments(int argc, int min_count, int max_count, const char *usage) {
    if (argc - 1 < min_count || argc - 1 > max_count) {
        fprintf(stderr, "usage: %s\n", usage);
        exit(BENCH_BAD_ARGUMENTS);
    }
}

static inline uint64_t bench_number_between(const char *text, uint64_t min, uint64_t max) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || value < min || value > max) {
        bench_refuse("'%s' is not a number from %" PRIu64 " to %" PRIu64, text, min, max);
    }
    return value;
}

static inline uint64_t bench_number(const char *text, uint64_t min) {
    return bench_number_between(text, min, UINT64_MAX);
}

static inline double bench_seconds(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= 3600)) {
        bench_refuse("'%s' is not a duration in seconds, above 0 and at most 3600", text);
    }
    return value;
}

/* The index of the text among the words, which end with NULL. */
static inline size_t bench_choice(const char *text, const char *const *words) {
    char expected[256] = "";
    for (size_t i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) {
            return i;
        }
        size_t length = strlen(expected);
        snprintf(expected + length, sizeof expected - length, " %s", words[i]);
    }
    bench_refuse("'%s' is none of%s", text, expected);
}

/* Sizes from min_bytes to max_bytes, both included. */
struct bench_sizes {
    size_t min_bytes;
    size_t span;
};

/* A range given the wrong way round is turned. */
static inline struct bench_sizes bench_sizes(size_t min_bytes, size_t max_bytes) {
    size_t low = min_bytes < max_bytes ? min_bytes : max_bytes;
    size_t high = min_bytes < max_bytes ? max_bytes : min_bytes;
    if (low == 0 || high > UINT32_MAX) {
        bench_refuse("sizes are from 1 to %" PRIu32 " bytes, not %zu to %zu", UINT32_MAX, low, high);
    }
    return (struct bench_sizes){.min_bytes = low, .span = high - low + 1};
}

/* ---- Random numbers -------------------------------------------------------------------------------------------- */

/* splitmix64: the state is a plain counter, so one number does not wait for the one before. */
struct bench_random {
    uint64_t state;
};

static inline uint64_t bench_mix(uint64_t value) {
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static inline struct bench_random bench_random_seeded(uint64_t seed, uint64_t stream) {
    return (struct bench_random){.state = bench_mix(seed) + bench_mix(~stream)};
}

static inline uint64_t bench_random_next(struct bench_random *random) {
    return bench_mix(random->state += UINT64_C(0x9e3779b97f4a7c15));
}

/* One draw serves twice: an index below count (at most 2^32) from its low half, a size from its high half. */
static inline size_t bench_pick_index(uint64_t draw, uint64_t count) {
    return (size_t)(((draw & UINT32_MAX) * count) >> 32);
}

static inline size_t bench_pick_size(uint64_t draw, struct bench_sizes sizes) {
    return sizes.min_bytes + (size_t)(((draw >> 32) * sizes.span) >> 32);
}

/* 16 bytes .. 64 KiB, log-uniform to 0.3 percent: 2^f is taken as 1 + 0.66 f + 0.34 f^2. */
static inline size_t bench_pick_log_uniform(uint64_t draw) {
    unsigned exponent = 4 + (unsigned)bench_pick_index(draw, 12);
    uint64_t f = draw >> 32; /* in units of 2^-32 */
    uint64_t above_one = (66 * f + 34 * (f * f >> 32)) / 100;
    return ((size_t)1 << exponent) + (size_t)(above_one << exponent >> 32);
}

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

static inline void *bench_allocate(size_t bytes) {
    void *block = malloc(bytes);
    if (!block) {
        bench_fail("out of memory");
    }
    return block;
}

/* Writes the first and the last byte, as the least a program does with what it asked for. */
static inline void bench_touch(void *block, size_t bytes, uint8_t tag) {
    volatile uint8_t *payload = block;
    payload[0] = tag;
    payload[bytes - 1] = tag;
}

static inline int bench_holds(const void *block, size_t bytes, uint8_t tag) {
    const volatile uint8_t *payload = block;
    return payload[0] == tag && payload[bytes - 1] == tag;
}

static inline uint64_t bench_fold(uint64_t checksum, uint64_t value) {
    return bench_mix(checksum ^ value) + UINT64_C(0x9e3779b97f4a7c15);
}

/* Folds in a block's size and the two bytes found in it. */
static inline uint64_t bench_fold_block(uint64_t checksum, const void *block, size_t bytes) {
    const volatile uint8_t *payload = block;
    return bench_fold(checksum, (uint64_t)bytes << 16 | (uint64_t)payload[0] << 8 | payload[bytes - 1]);
}

enum { BENCH_PAGE_STEP = 4096 }; /* no page is smaller */

/* Writes a byte in every page of the block, and its last one. */
static inline void bench_touch_pages(void *block, size_t bytes, uint8_t tag) {
    volatile uint8_t *payload = block;
    for (size_t offset = 0; offset < bytes; offset += BENCH_PAGE_STEP) {
        payload[offset] = tag;
    }
    payload[bytes - 1] = tag;
}

/* Folds in a block's size and what bench_touch_pages wrote. */
static inline uint64_t bench_fold_pages(uint64_t checksum, const void *block, size_t bytes) {
    const volatile uint8_t *payload = block;
    for (size_t offset = 0; offset < bytes; offset += BENCH_PAGE_STEP) {
        checksum = bench_fold(checksum, payload[offset]);
    }
    return bench_fold_block(checksum, block, bytes);
}

/* ---- The program's own tables ---------------------------------------------------------------------------------- */

static size_t bench_table_bytes; /* resident; belongs to the main thread, as bench_map and bench_unmap do */

static inline size_t bench_round_to_pages(size_t bytes) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page_bytes - 1) & ~(page_bytes - 1);
}

/* Zeroed memory straight from the kernel, resident at once: its page faults are not among those that are measured. */
static inline void *bench_map(size_t count, size_t bytes_each) {
    size_t bytes;
    if (__builtin_mul_overflow(count, bytes_each, &bytes)) {
        bench_fail("too much");
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        bench_fail("no memory for the program's own tables");
    }
    bench_table_bytes += bench_round_to_pages(bytes);
    return memory;
}

static inline void bench_unmap(void *memory, size_t count, size_t bytes_each) {
    munmap(memory, count * bytes_each);
    bench_table_bytes -= bench_round_to_pages(count * bytes_each);
}

/* ---- Time ------------------------------------------------------------------------------------------------------ */

static inline double bench_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void bench_sleep(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* ---- What the kernel says -------------------------------------------------------------------------------------- */

/* The figure in KiB that stands after `name` in a file of /proc; 0 where it is missing. Allocates nothing. */
static inline uint64_t bench_kernel_kib(const char *path, const char *name) {
    char text[4096];
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0) {
        close(descriptor);
    }
    text[length > 0 ? length : 0] = '\0';
    const char *line = strstr(text, name);
    return line ? strtoull(line + strlen(name), NULL, 10) : 0;
}

/* Resident memory without the program's own tables. The first file is exact, the second may lag by some pages. */
static inline uint64_t bench_resident_bytes(void) {
    uint64_t kib = bench_kernel_kib("/proc/self/smaps_rollup", "\nRss:");
    kib = kib ? kib : bench_kernel_kib("/proc/self/status", "\nVmRSS:");
    return kib << 10 > bench_table_bytes ? (kib << 10) - bench_table_bytes : 0;
}

/* Address space that is private and writable, without the program's own tables: not what is only reserved. */
static inline uint64_t bench_mapped_bytes(void) {
    return (bench_kernel_kib("/proc/self/status", "\nVmData:") << 10) - bench_table_bytes;
}

/* What the whole system could still give. */
static inline uint64_t bench_available_bytes(void) {
    return bench_kernel_kib("/proc/meminfo", "\nMemAvailable:") << 10;
}

static inline uint64_t bench_fault_count(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_minflt + (uint64_t)usage.ru_majflt;
}

/* ---- Figures and the closing lines ----------------------------------------------------------------------------- */

static inline void bench_end_figure(double value, const char *unit) {
    printf(" %.*f %s\n", value == (double)(int64_t)value ? 0 : 6, value, unit);
}

static inline void bench_figure(const char *name, double value, const char *unit) {
    printf("figure %s", name);
    bench_end_figure(value, unit);
}

/* One of a series: its name is NAME_WHICH. */
static inline void bench_figure_of(const char *name, const char *which, double value, const char *unit) {
    printf("figure %s_%s", name, which);
    bench_end_figure(value, unit);
}

static inline void bench_figure_at(const char *name, uint64_t number, double value, const char *unit) {
    printf("figure %s_%" PRIu64, name, number);
    bench_end_figure(value, unit);
}

static inline const char *bench_file_of(const char *symbol) {
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : "unknown";
}

static inline const char *bench_allocator(void) {
    const char *file = bench_file_of("malloc");
    return strcmp(file, bench_file_of("free")) == 0 ? file : "mixed";
}

static inline void bench_close(uint64_t operations, double seconds, uint64_t checksum) {
    bench_figure("tables", (double)bench_table_bytes, "bytes");
    printf("allocator %s\npeak %" PRIu64 " KiB\nchecksum 0x%016" PRIx64 "\n", bench_allocator(),
           bench_kernel_kib("/proc/self/status", "\nVmHWM:"), checksum);
    printf("Throughput = %.0f operations per second, relative time: %.3f s.\n", (double)operations / seconds, seconds);
}

#endif
