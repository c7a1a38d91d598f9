/* witness: preloaded after an allocator, says in each process of a run whose malloc it is and what it came to.
 *
 * ALLOCATOR_WITNESS names a folder that exists. Each program that starts writes two files there, named by its process id and its
 * start (a counter in the name tells apart programs that one process ran one after another by exec):
 *
 *     PID.N.start    lines `malloc PATH`, `calloc PATH`, `realloc PATH`, `free PATH`: the file that the dynamic linker
 *                    resolves each to; `behind PATH` where a library that is searched after what is preloaded has a malloc;
 *                    `pools yes` where the process has Python's own beside malloc;
 *                    `owned yes|no` where hak_owns exists: whether it knows a block of this malloc;
 *                    `program PATH`, `file DEVICE INODE` of that program;
 *                    `stack ADDRESS`: where its stack began. A fork keeps that, exec draws another one where
 *                    addresses are random
 *     PID.N.end      `peak N KiB`, `rss N KiB` (resident at the end), `threads N` (alive then): written when the process
 *                    exits in an orderly way. With ALLOCATOR_WITNESS_TRIM in the environment also `trimmed N KiB`:
 *                    resident after the allocator was asked to give back what is free, where it can be asked
 *
 * A file that is missing is no proof: the laboratory then refuses the run. Nothing is printed, no descriptor stays
 * open, and the program's malloc is asked for one block and given it back. Needs Linux and a dynamic linker. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_of.h"
#include "proc.h"

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

/* The file of the malloc that is searched after what is preloaded; NULL where there is none. */
static const char *behind(void) {
    Dl_info info;
    void *found = dlsym(RTLD_NEXT, "malloc");
    return found && dladdr(found, &info) ? info.dli_fname : NULL;
}

/* Small objects of Python are from pools of its own, unless it was told otherwise. */
static bool has_pools(void) {
    const char *set = getenv("PYTHONMALLOC");
    return dlsym(RTLD_DEFAULT, "PyObject_Malloc") && (!set || strncmp(set, "malloc", 6) != 0);
}

/* The number behind a name in a text as /proc/PID/status. */
static unsigned long number_of(const char *status, const char *name) {
    const char *line = strstr(status, name);
    return line ? strtoul(line + strlen(name), NULL, 10) : 0;
}

/* A function of the allocator's own; NULL where the name is another library's, as malloc_trim is glibc's under most. */
static void *own_function(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    return found && strcmp(file_of(name), file_of("malloc")) == 0 ? found : NULL;
}

/* Has the allocator give back what is free: by malloc_trim of hakmem and glibc, mi_collect of mimalloc, mallctl of jemalloc, or
 * the extensions of both tcmallocs. False when it has none of these. */
static bool trim(void) {
    int (*trim_all)(size_t);
    void (*collect)(bool);
    int (*control)(const char *, void *, size_t *, void *, size_t);
    void (*release)(void), (*release_bytes)(size_t);
    if ((*(void **)&trim_all = own_function("malloc_trim"))) {
        trim_all(0);
    } else if ((*(void **)&collect = own_function("mi_collect"))) {
        collect(true);
    } else if ((*(void **)&control = own_function("mallctl"))) {
        control("thread.tcache.flush", NULL, NULL, NULL, 0);
        return control("arena.4096.purge", NULL, NULL, NULL, 0) == 0; /* MALLCTL_ARENAS_ALL */
    } else if ((*(void **)&release = own_function("MallocExtension_ReleaseFreeMemory"))) {
        release();
    } else if ((*(void **)&release_bytes = own_function("MallocExtension_Internal_ReleaseMemoryToSystem"))) {
        release_bytes((size_t)-1);
    } else {
        return false;
    }
    return true;
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
    char program[1024], own[1024];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    struct stat of_program = {0};
    stat("/proc/self/exe", &of_program);
    read_text("/proc/self/stat", own, sizeof own);
    dprintf(file, "malloc %s\ncalloc %s\nrealloc %s\nfree %s\n%sprogram %s\nfile %llu %llu\nstack %llu\n",
            file_of("malloc"), file_of("calloc"), file_of("realloc"), file_of("free"), owned(), program,
            (unsigned long long)of_program.st_dev, (unsigned long long)of_program.st_ino,
            number_of_field(own, FIELD_STACK));
    const char *next = behind();
    if (next) {
        dprintf(file, "behind %s\n", next);
    }
    if (has_pools()) {
        dprintf(file, "pools yes\n");
    }
    close(file);
}

__attribute__((destructor)) static void end(void) {
    if (!base[0] || getpid() != owner) { /* a child that forked is no program of its own */
        return;
    }
    char status[4096];
    read_text("/proc/self/status", status, sizeof status);
    int file = create("end");
    if (file < 0) {
        return;
    }
    dprintf(file, "peak %lu KiB\nrss %lu KiB\nthreads %lu\n", number_of(status, "VmHWM:"), number_of(status, "VmRSS:"),
            number_of(status, "\nThreads:"));
    if (getenv("ALLOCATOR_WITNESS_TRIM") && trim()) {
        read_text("/proc/self/status", status, sizeof status);
        dprintf(file, "trimmed %lu KiB\n", number_of(status, "VmRSS:"));
    }
    close(file);
}
