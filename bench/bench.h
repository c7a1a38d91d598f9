/* What the benchmark programs share: arguments, random numbers, a clock, payloads and the closing lines.
 *
 * Header only and free of hakmem, so that each program compiles alone (cc -O2 -fno-builtin-malloc FILE -pthread) and
 * measures whatever allocator its malloc resolves to. A program's own tables come from bench_map, never from the
 * allocator it measures. Include this header first: it sets _GNU_SOURCE.
 *
 * Every program ends with four lines:
 *
 *     allocator PATH                 the file that malloc and free were resolved to, asked of the dynamic linker
 *     peak N KiB                     this program's own peak RSS; wait4's figure is never below that of its parent
 *     checksum 0xHEX                 a function of the arguments alone, unless the allocator damaged a payload
 *     Throughput = N operations per second, relative time: S s.
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
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- Failure and arguments ------------------------------------------------------------------------------------- */

static inline _Noreturn void bench_fail(const char *message) {
    fprintf(stderr, "bench: %s\n", message);
    exit(EXIT_FAILURE);
}

/* Ends the program with its usage unless it got between min_count and max_count arguments. */
static inline void bench_expect_arguments(int argc, int min_count, int max_count, const char *usage) {
    if (argc - 1 < min_count || argc - 1 > max_count) {
        fprintf(stderr, "usage: %s\n", usage);
        exit(EXIT_FAILURE);
    }
}

static inline uint64_t bench_number(const char *text, uint64_t min) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value < min) {
        bench_fail("not a number, or too small");
    }
    return value;
}

static inline double bench_seconds(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= 3600)) {
        bench_fail("not a duration in seconds");
    }
    return value;
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
        bench_fail("sizes are 1 .. 2^32 - 1");
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

/* Zeroed memory of the program's own, straight from the kernel. */
static inline void *bench_map(size_t count, size_t bytes_each) {
    size_t bytes;
    if (__builtin_mul_overflow(count, bytes_each, &bytes)) {
        bench_fail("too much");
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        bench_fail("no memory for the program's own tables");
    }
    return memory;
}

/* ---- Time and the closing lines -------------------------------------------------------------------------------- */

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

static inline const char *bench_file_of(const char *symbol) {
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : "unknown";
}

static inline const char *bench_allocator(void) {
    const char *file = bench_file_of("malloc");
    return strcmp(file, bench_file_of("free")) == 0 ? file : "mixed";
}

/* 0 where /proc is missing. */
static inline unsigned long bench_peak_kib(void) {
    char status[4096];
    int descriptor = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? 0 : read(descriptor, status, sizeof status - 1);
    if (descriptor >= 0) {
        close(descriptor);
    }
    status[length > 0 ? length : 0] = '\0';
    const char *line = strstr(status, "VmHWM:");
    return line ? strtoul(line + strlen("VmHWM:"), NULL, 10) : 0;
}

static inline void bench_close(uint64_t operations, double seconds, uint64_t checksum) {
    printf("allocator %s\npeak %lu KiB\nchecksum 0x%016" PRIx64 "\n", bench_allocator(), bench_peak_kib(), checksum);
    printf("Throughput = %.0f operations per second, relative time: %.3f s.\n", (double)operations / seconds, seconds);
}

#endif
