/* witness: preloaded after an allocator, says in each process of a run whose malloc it is and what it came to.
 *
 * ALLOCATOR_WITNESS names a folder that exists. Each program that starts writes two files there, named by its process id and its
 * start (a counter in the name tells apart programs that one process ran one after another by exec):
 *
 *     PID.N.start    lines `malloc PATH`, `calloc PATH`, `realloc PATH`, `free PATH`: the file that the dynamic linker
 *                    resolves each to; `owned yes|no` where hak_owns exists: whether it knows a block of this malloc;
 *                    `program PATH`
 *     PID.N.end      `peak N KiB`, `rss N KiB` (resident at the end): written when the process exits in an orderly way
 *
 * A file that is missing is no proof: the laboratory then refuses the run. Nothing is printed, no descriptor stays
 * open, and the program's malloc is asked for one block and given it back. Needs Linux and a dynamic linker. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_of.h"

static char base[4000]; /* FOLDER/PID.N, empty: not asked */
static pid_t owner;

static int create(const char *suffix) {
    char path[sizeof base + 16];
    snprintf(path, sizeof path, "%s.%s", base, suffix);
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

/* Whether hakmem says that it owns a block which this process's malloc returned; "" where there is no hakmem. */
static const char *owned(void) {
    bool (*owns)(const void *);
    *(void **)&owns = dlsym(RTLD_DEFAULT, "hak_owns");
    if (!owns) {
        return "";
    }
    void *(*volatile allocate)(size_t) = malloc;
    void *block = allocate(1);
    bool is_owned = block && owns(block);
    free(block);
    return is_owned ? "owned yes\n" : "owned no\n";
}

static unsigned long status_kib(const char *status, const char *name) {
    const char *line = strstr(status, name);
    return line ? strtoul(line + strlen(name), NULL, 10) : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("ALLOCATOR_WITNESS");
    if (!folder || !*folder) {
        return;
    }
    owner = getpid();
    int file = -1;
    for (unsigned n = 0; file < 0 && n < 1000; n++) {
        if (snprintf(base, sizeof base, "%s/%d.%u", folder, (int)owner, n) >= (int)sizeof base) {
            break;
        }
        file = create("start");
    }
    if (file < 0) {
        base[0] = '\0';
        return;
    }
    char program[1024];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    dprintf(file, "malloc %s\ncalloc %s\nrealloc %s\nfree %s\n%sprogram %s\n", file_of("malloc"), file_of("calloc"),
            file_of("realloc"), file_of("free"), owned(), program);
    close(file);
}

__attribute__((destructor)) static void end(void) {
    if (!base[0] || getpid() != owner) { /* a child that forked is no program of its own */
        return;
    }
    char status[4096];
    int source = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = source < 0 ? 0 : read(source, status, sizeof status - 1);
    if (source >= 0) {
        close(source);
    }
    status[length > 0 ? length : 0] = '\0';
    int file = create("end");
    if (file >= 0) {
        dprintf(file, "peak %lu KiB\nrss %lu KiB\n", status_kib(status, "VmHWM:"), status_kib(status, "VmRSS:"));
        close(file);
    }
}
