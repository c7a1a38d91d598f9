/* Runs a command on a machine whose free memory is in pieces, as that of one that has run for weeks: where the kernel
 * finds a huge page only by moving others about.
 *
 *     fragmenter [-m MIB] [-l MIB] COMMAND [ARGUMENT...]
 *
 * Fills free memory, at most MIB of it (-m), with pages of a file and anonymous ones, but leaves MIB (-l, 512) to others;
 * gives every other page back; and takes what huge pages are still to be had, before COMMAND begins. So the command has
 * about half of what was filled, page by page. Says on standard error how much of free memory lies in whole huge pages
 * before and after. All is given back when the command ends; the exit status is the command's, or 2 for wrong arguments,
 * 1 if memory could not be broken up. If memory runs out the kernel ends this program first. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define HUGE_BYTES (2 * MIB)
enum { FILE_SHARE = 8, LONGEST_LINE = 1024, WRONG_ARGUMENTS = 2, NOT_STARTED = 127 };

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "fragmenter: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

static size_t mib_of(const char *text) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && value <= SIZE_MAX / MIB) return value * MIB;
    fprintf(stderr, "fragmenter: '%s' is not a number of MiB\n", text);
    exit(WRONG_ARGUMENTS);
}

static size_t available_bytes(void) {
    char line[LONGEST_LINE];
    size_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) fail("/proc/meminfo");
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
    fclose(file);
    return kib << 10;
}

/* Free memory, and what of it lies in whole huge pages. */
struct free_memory {
    size_t bytes, huge_bytes;
};

/* /proc/buddyinfo: of each zone, how many blocks of 1, 2, 4, ... pages are free. */
static struct free_memory look(void) {
    char line[LONGEST_LINE];
    struct free_memory found = {0, 0};
    FILE *file = fopen("/proc/buddyinfo", "re");
    if (file == NULL) fail("/proc/buddyinfo");
    while (fgets(line, sizeof line, file) != NULL) {
        char *at = strstr(line, "zone"), *next;
        if (at == NULL) continue;
        at += strcspn(at, " ");
        at += strspn(at, " ");
        at += strcspn(at, " "); /* behind the zone's name */
        for (size_t bytes = (size_t)sysconf(_SC_PAGESIZE);; bytes *= 2, at = next) {
            size_t blocks = strtoul(at, &next, 10);
            if (next == at) break;
            found.bytes += blocks * bytes;
            if (bytes >= HUGE_BYTES) found.huge_bytes += blocks * bytes;
        }
    }
    fclose(file);
    return found;
}

static void tell(const char *when) {
    struct free_memory found = look();
    fprintf(stderr, "fragmenter: %s: %zu MiB free, %zu of them in huge pages\n", when, found.bytes / MIB,
            found.huge_bytes / MIB);
}

static void map_file(size_t bytes) {
    char path[] = "fragmenter-XXXXXX";
    int file = mkostemp(path, O_CLOEXEC);
    if (file < 0) fail("a file in the working directory");
    unlink(path);
    if (ftruncate(file, (off_t)bytes) != 0) fail("a file in the working directory");
    static char piece[1 << 16];
    for (size_t at = 0; at < bytes; at += sizeof piece)
        if (pwrite(file, piece, sizeof piece, (off_t)at) < 0) fail("a file in the working directory");
    /* It stays open: its pages are the kernel's to keep or to drop. */
}

static char *map_anonymous(size_t bytes, int advice) {
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) fail("mmap");
    madvise(start, bytes, advice);
    return start;
}

static void touch(char *start, size_t bytes, size_t step) {
    for (size_t at = 0; at < bytes; at += step) *(volatile char *)(start + at) = 1;
}

/* Breaks up so much. */
static void break_up(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), file_bytes = bytes / FILE_SHARE;
    map_file(file_bytes);
    char *start = map_anonymous(bytes - file_bytes, MADV_NOHUGEPAGE);
    touch(start, bytes - file_bytes, page);
    for (size_t at = 0; at + page < bytes - file_bytes; at += 2 * page) madvise(start + at, page, MADV_DONTNEED);
}

/* What the kernel has left as a whole. It gives these first: no more than there are. */
static void take_huge_pages(size_t most) {
    size_t bytes = look().huge_bytes;
    if (bytes > most) bytes = most;
    bytes = bytes / HUGE_BYTES * HUGE_BYTES;
    if (bytes == 0) return;
    char *start = map_anonymous(bytes + HUGE_BYTES, MADV_HUGEPAGE);
    start += HUGE_BYTES - (uintptr_t)start % HUGE_BYTES;
    touch(start, bytes, HUGE_BYTES);
}

/* The kernel ends this program first, and then the command as it would have been. */
static void set_first_to_go(bool is_first) {
    static char before[16] = "0";
    int file = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    if (is_first && read(file, before, sizeof before - 1) > 0) lseek(file, 0, SEEK_SET);
    const char *text = is_first ? "1000" : before;
    if (write(file, text, strlen(text)) < 0) fputs("fragmenter: this program may not be the first to go\n", stderr);
    close(file);
}

static int run(char **command) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        set_first_to_go(false);
        execvp(command[0], command);
        fprintf(stderr, "fragmenter: %s: %s\n", command[0], strerror(errno));
        _exit(NOT_STARTED);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    size_t most = SIZE_MAX, left = 512 * MIB;
    int option;
    while ((option = getopt(argc, argv, "+m:l:")) != -1) {
        if (option == 'm') most = mib_of(optarg);
        else if (option == 'l') left = mib_of(optarg);
        else optind = argc;
    }
    if (optind >= argc) {
        fputs("usage: fragmenter [-m MIB] [-l MIB] COMMAND [ARGUMENT...]\n", stderr);
        return WRONG_ARGUMENTS;
    }
    size_t available = available_bytes(), bytes = available > left ? available - left : 0;
    if (bytes > most) bytes = most;
    set_first_to_go(true);
    tell("before");
    break_up(bytes);
    take_huge_pages(most);
    tell("after");
    return run(argv + optind);
}
