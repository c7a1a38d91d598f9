/* What an abuse case stands on: expectations, bounds of time and memory, the proof that hakmem serves this process, and
 * the means to watch another process end.
 *
 * A program holds a table of cases and calls case_main; its first argument names the case to run, a case a process.
 * A case that must kill its process has a victim: `program CASE ARGUMENT` runs the victim, and the case itself watches
 * it through case_watch(ARGUMENT). The victim is executed anew, so its heap is a fresh one.
 *
 * Exit status: 0 passed, 1 an expectation failed, 3 the heap is not hakmem's, 77 skipped, 124 out of time.
 * With HAK_TEST_ALLOW_ANY=1 any heap is accepted: for finding out what other allocators do.
 *
 * Nothing in this header allocates, except case_prove: the state of the heap belongs to the case.
 */
#ifndef HAK_TEST_CASE_H
#define HAK_TEST_CASE_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hakmem/hakmem.h"

enum { CASE_FAILED = 1, CASE_FOREIGN_HEAP = 3, CASE_SKIPPED = 77, CASE_OUT_OF_TIME = 124 };

struct hak_case {
    const char *name;
    void (*run)(void);
    unsigned seconds;    /* bound of the whole case; its victims have the same */
    unsigned memory_mib; /* bound of writable memory on top of what the process starts with */
    void (*victim)(const char *argument);
    bool without_preload; /* the case brings hakmem into the process by itself */
};

static const struct hak_case *case_current;
static char **case_arguments; /* what follows the name of the case; NULL-terminated */
static int (*case_hak_owns)(const void *);

/* ---- Expectations ---------------------------------------------------------------------------------------------- */

static inline void case_write(int descriptor, const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(descriptor, text, length);
        if (written <= 0) return;
        text += written;
        length -= (size_t)written;
    }
}

/* One line to a descriptor, through a buffer on the stack. */
__attribute__((format(printf, 2, 3))) static inline void case_print(int descriptor, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    case_write(descriptor, line, (size_t)length + 1);
}

#define expect(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            case_print(2, "%s:%d: expected %s", __FILE__, __LINE__, #condition);                                       \
            case_print(2, "    " __VA_ARGS__);                                                                         \
            _exit(CASE_FAILED);                                                                                        \
        }                                                                                                              \
    } while (0)

#define skip(...)                                                                                                      \
    do {                                                                                                               \
        case_print(2, "skipped: " __VA_ARGS__);                                                                        \
        _exit(CASE_SKIPPED);                                                                                           \
    } while (0)

/* The same pointer, of which the compiler no longer knows where it came from. */
static inline void *hidden(const volatile void *pointer) {
    void *same = (void *)pointer;
    __asm__ volatile("" : "+r"(same));
    return same;
}

/* ---- Threads --------------------------------------------------------------------------------------------------- */

/* Two threads come here, and go on at the same moment. `here` counts them. */
static inline void case_meet(atomic_int *here) {
    atomic_fetch_add(here, 1);
    while (atomic_load(here) < 2) continue;
}

/* ---- Figures --------------------------------------------------------------------------------------------------- */

/* Field of /proc/self/statm, in bytes: 1 resident, 5 data and stacks. */
static inline size_t case_statm_bytes(int field) {
    char text[256] = "";
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    expect(file >= 0, "/proc is needed");
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    expect(length > 0, "/proc/self/statm is empty");
    char *cursor = text;
    unsigned long pages = 0;
    for (int i = 0; i <= field; i++) pages = strtoul(cursor, &cursor, 10);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static inline size_t case_rss_bytes(void) { return case_statm_bytes(1); }

/* How much b is more than a, in KiB; 0 when it is less. */
static inline size_t case_growth_kib(size_t a, size_t b) { return b > a ? (b - a) >> 10 : 0; }

static inline uint64_t case_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void case_sleep_us(unsigned us) {
    struct timespec rest = {us / 1000000, (long)(us % 1000000) * 1000};
    nanosleep(&rest, NULL);
}

/* hak_stats of the running library; false where there is none. */
static inline bool case_stats(struct hak_statistics *stats) {
    static int (*fill)(struct hak_statistics *, size_t);
    if (!fill) *(void **)&fill = dlsym(RTLD_DEFAULT, "hak_stats");
    return fill && fill(stats, sizeof *stats) == 0;
}

/* ---- Takeover and bounds --------------------------------------------------------------------------------------- */

static inline bool case_owns(const void *address) { return !case_hak_owns || case_hak_owns(address) == 1; }

/* A pointer that malloc may return. Other allocators align less. */
static inline bool case_is_block(const void *address) {
    return case_owns(address) && (uintptr_t)address % (case_hak_owns ? 16 : 8) == 0;
}

static inline void case_prove(void) {
    const char *any = getenv("HAK_TEST_ALLOW_ANY");
    *(void **)&case_hak_owns = dlsym(RTLD_DEFAULT, "hak_owns");
    if (!case_hak_owns && any && *any == '1') return;
    void *block = malloc(1);
    if (!case_hak_owns || case_hak_owns(block) != 1) {
        case_print(2, "this process does not run on hakmem: hak_owns %s",
                   case_hak_owns ? "does not know a block of malloc" : "is missing");
        _exit(CASE_FOREIGN_HEAP);
    }
    free(block);
}

static inline void case_out_of_time(int signal) {
    (void)signal;
    static const char text[] = "out of time\n";
    case_write(2, text, sizeof text - 1);
    _exit(CASE_OUT_OF_TIME);
}

/* A busy machine takes so many times as long as a quiet one. */
enum { CASE_BUSY = 10 };

/* Ends the process after so many seconds of a quiet machine. To be called again after fork: a child has no alarm. */
static inline void case_bound_time(unsigned seconds) {
    struct sigaction action = {.sa_handler = case_out_of_time};
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds * CASE_BUSY);
}

static inline void case_bound_memory(unsigned memory_mib) {
    size_t bytes = case_statm_bytes(5) + ((size_t)memory_mib << 20);
    struct rlimit data = {bytes, bytes};
    struct rlimit core = {0, 0};
    setrlimit(RLIMIT_DATA, &data);
    setrlimit(RLIMIT_CORE, &core);
}

static inline int case_main(int argc, char **argv, const struct hak_case *cases, size_t count) {
    for (size_t i = 0; argc > 1 && i < count; i++) {
        if (strcmp(argv[1], cases[i].name) == 0) case_current = &cases[i];
    }
    if (!case_current) {
        case_print(2, "usage: %s CASE, one of:", argv[0]);
        for (size_t i = 0; i < count; i++) case_print(2, "    %s", cases[i].name);
        return CASE_FAILED;
    }
    case_arguments = argv + 2;
    case_bound_time(case_current->seconds);
    case_bound_memory(case_current->memory_mib);
    if (!case_current->without_preload) case_prove();
    if (case_current->victim && case_arguments[0]) {
        case_current->victim(case_arguments[0]);
    } else {
        case_current->run();
    }
    return 0;
}

#define CASE_MAIN(cases)                                                                                               \
    int main(int argc, char **argv) { return case_main(argc, argv, cases, sizeof(cases) / sizeof *(cases)); }

/* ---- Other processes ------------------------------------------------------------------------------------------- */

/* Waits for a child; one that takes longer is killed. Returns its wait status, or -1 when it was killed here. */
static inline int case_await(pid_t child, unsigned seconds) {
    uint64_t end_ns = case_now_ns() + (uint64_t)seconds * CASE_BUSY * 1000000000u;
    for (;;) {
        int status;
        pid_t done = waitpid(child, &status, WNOHANG);
        if (done == child) return status;
        expect(done == 0 || errno == EINTR, "waitpid(%d): errno %d", (int)child, errno);
        if (done == 0 && case_now_ns() > end_ns) {
            kill(child, SIGKILL);
            while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
            }
            return -1;
        }
        case_sleep_us(100);
    }
}

/* The child must end by itself, with status 0. */
static inline void case_expect_success(pid_t child, unsigned seconds) {
    expect(child > 0, "no child: errno %d", errno);
    int status = case_await(child, seconds);
    expect(status != -1, "the child hung and was killed after %u s", seconds * CASE_BUSY);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's wait status is %#x", (unsigned)status);
}

/* How a victim ended, and the first bytes of what it said. */
struct case_end {
    int status; /* as from waitpid; -1 when it had to be killed */
    char output[512];
    char error[16384];
};

static inline struct case_end case_watch(const char *argument) {
    struct case_end end = {.status = -1};
    int pipes[2][2];
    expect(pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0, "no pipes");
    pid_t child = fork();
    expect(child >= 0, "no child: errno %d", errno);
    if (child == 0) {
        dup2(pipes[0][1], 1);
        dup2(pipes[1][1], 2);
        execl("/proc/self/exe", case_current->name, case_current->name, argument, (char *)NULL);
        _exit(127);
    }
    close(pipes[0][1]);
    close(pipes[1][1]);
    char *texts[2] = {end.output, end.error};
    size_t sizes[2] = {sizeof end.output - 1, sizeof end.error - 1};
    struct pollfd polled[2] = {{.fd = pipes[0][0], .events = POLLIN}, {.fd = pipes[1][0], .events = POLLIN}};
    unsigned open_count = 2;
    uint64_t end_ns = case_now_ns() + (uint64_t)(case_current->seconds * CASE_BUSY + 5) * 1000000000u;
    while (open_count > 0 && case_now_ns() < end_ns) {
        if (poll(polled, 2, 100) <= 0) continue;
        for (int i = 0; i < 2; i++) {
            if (polled[i].fd < 0 || !polled[i].revents) continue;
            char scrap[256];
            bool keep = sizes[i] > 0;
            ssize_t length = read(polled[i].fd, keep ? texts[i] : scrap, keep ? sizes[i] : sizeof scrap);
            if (length <= 0) {
                polled[i].fd = -1; /* poll skips it from now on */
                open_count--;
            } else if (keep) {
                texts[i] += length;
                sizes[i] -= (size_t)length;
            }
        }
    }
    close(pipes[0][0]);
    close(pipes[1][0]);
    end.status = case_await(child, open_count ? 0 : 5);
    return end;
}

#endif
