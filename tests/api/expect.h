/* What every test program of tests/api and tests/abuse shares: EXPECT, cases chosen by argv[1], the proof that hakmem
 * serves this process, bounds, and a few readings of the process itself.
 *
 * Nothing here allocates: an expectation may fail while no memory is left. Exit codes: 0 passed, 1 an expectation
 * failed, 2 wrong use, 3 not on hakmem, 77 skipped. */
#ifndef HAKMEM_TESTS_EXPECT_H
#define HAKMEM_TESTS_EXPECT_H

#include "names.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { EXIT_EXPECTATION = 1, EXIT_USE = 2, EXIT_NOT_HAKMEM = 3, EXIT_SKIPPED = 77 };

/* ---- Messages and ends ---- */

__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (length > (int)sizeof(line) - 1) {
        length = (int)sizeof(line) - 1;
    }
    ssize_t written = write(STDERR_FILENO, line, length > 0 ? (size_t)length : 0);
    (void)written;
}

/* EXPECT(condition, format, values...): ends the program when the condition is false. */
#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            int expect_errno = errno;                                                                                  \
            say("%s:%d: expected %s; ", __FILE__, __LINE__, #condition);                                               \
            say(__VA_ARGS__);                                                                                          \
            say(" (errno %d)\n", expect_errno);                                                                        \
            _exit(EXIT_EXPECTATION);                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call must give NULL and set errno to the given code. */
#define EXPECT_REFUSED(code, call)                                                                                     \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        void *refused = (call);                                                                                        \
        EXPECT(!refused && errno == (code), "%s gave %p, wanted NULL and errno %d", #call, refused, (code));           \
    } while (0)

#define SKIP(...)                                                                                                      \
    do {                                                                                                               \
        say("skipped: ");                                                                                              \
        say(__VA_ARGS__);                                                                                              \
        say("\n");                                                                                                     \
        _exit(EXIT_SKIPPED);                                                                                           \
    } while (0)

/* ---- Takeover ---- */

typedef int owns_function(const void *address);

/* hak_owns of this process, or NULL when hakmem is not in it. */
__attribute__((unused)) static owns_function *find_owns(void) {
#if defined(API_HAK) || defined(API_LINKED)
    return hak_owns;
#else
    return (owns_function *)dlsym(RTLD_DEFAULT, "hak_owns");
#endif
}

__attribute__((unused)) static int any_allocator_allowed(void) {
    const char *allow = getenv("HAK_TEST_ALLOW_ANY");
    return allow && *allow == '1';
}

/* Whether hakmem owns the address; always true where HAK_TEST_ALLOW_ANY lets the test run on another allocator. */
__attribute__((unused)) static int owned(const void *address) {
    static owns_function *found; /* by any thread */
    owns_function *owns = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!owns) {
        owns = find_owns();
        __atomic_store_n(&found, owns, __ATOMIC_RELAXED);
    }
    return owns ? owns(address) == 1 : any_allocator_allowed();
}

__attribute__((unused)) static void prove_takeover(void) {
    if (any_allocator_allowed()) {
        return;
    }
    owns_function *owns = find_owns();
    void *block = M(malloc)(1);
    int owner = owns ? owns(block) : -1;
    M(free)(block);
    if (owner != 1) {
        say("not on hakmem: %s\n", owns ? "hak_owns(malloc(1)) is not 1" : "no hak_owns in this process");
        _exit(EXIT_NOT_HAKMEM);
    }
}

/* ---- Cases ---- */

struct test_case {
    const char *name;
    void (*run)(void);
};

/* Runs the case named by argv[1] on hakmem, within the given time. */
__attribute__((unused)) static int run_case(int argc, char **argv, const struct test_case *cases, size_t count,
                                            unsigned seconds) {
    int adjust = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); /* a test that runs away is killed first */
    if (adjust >= 0) {
        ssize_t written = write(adjust, "1000", 4);
        (void)written;
        close(adjust);
    }
    alarm(seconds * 10); /* a busy machine takes as many times as long */
    for (size_t i = 0; argc >= 2 && i < count; i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            prove_takeover();
            cases[i].run();
            return 0;
        }
    }
    say("usage: %s CASE; cases:", argv[0]);
    for (size_t i = 0; i < count; i++) {
        say(" %s", cases[i].name);
    }
    say("\n");
    return EXIT_USE;
}

/* ---- Small tools ---- */

/* The value, behind the compiler's back: sizes it would warn about, blocks it would remove. */
__attribute__((unused)) static size_t opaque(size_t value) {
    __asm__ volatile("" : "+r"(value));
    return value;
}

__attribute__((unused)) static void *opaque_pointer(void *pointer) {
    __asm__ volatile("" : "+r"(pointer) : : "memory");
    return pointer;
}

__attribute__((unused)) static int is_aligned(const void *pointer, size_t alignment) {
    return ((uintptr_t)pointer & (alignment - 1)) == 0;
}

__attribute__((unused)) static uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* A size between low, at least 1, and high, every order of magnitude as likely as the next. */
__attribute__((unused)) static size_t random_size(uint64_t *state, size_t low, size_t high) {
    int low_bits = 63 - __builtin_clzll(low);
    int high_bits = 63 - __builtin_clzll(high);
    size_t base = (size_t)1 << (low_bits + (int)(random_next(state) % (uint64_t)(high_bits - low_bits + 1)));
    size_t size = base + random_next(state) % base;
    return size < low ? low : size > high ? high : size;
}

__attribute__((unused)) static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* A field of /proc/PID/statm in bytes: 0 is the address space, 1 the resident memory. 0 when it cannot be read. */
__attribute__((unused)) static size_t statm_bytes(const char *path, int field) {
    char text[256];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
    if (file >= 0) {
        close(file);
    }
    if (length <= 0) {
        return 0;
    }
    text[length] = 0;
    char *at = text;
    size_t pages = 0;
    for (int i = 0; i <= field; i++) {
        pages = strtoul(at, &at, 10);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A field of /proc/self/status in KiB, whatever pages are to the program: under an emulator they may be larger than those
 * that statm counts. */
__attribute__((unused)) static size_t status_kib(const char *field) {
    char text[4096], line[32];
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
    if (file >= 0) {
        close(file);
    }
    if (length <= 0) {
        SKIP("no /proc");
    }
    text[length] = 0;
    snprintf(line, sizeof(line), "\n%s:", field);
    const char *found = strstr(text, line);
    EXPECT(found != NULL, "no %s in /proc/self/status", field);
    return strtoul(found + strlen(line), NULL, 10);
}

__attribute__((unused)) static size_t resident_bytes(void) { return statm_bytes("/proc/self/statm", 1); }

#endif
