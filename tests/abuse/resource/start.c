/* Starts a program in a poor place: under limits, without files, with system calls refused from its first instruction.
 *
 *     start [RESTRICTION...] -- PROGRAM [ARGUMENT...]
 *
 *     --preload LIBRARY            LD_PRELOAD of the program
 *     --address-space KIB          as `ulimit -v`
 *     --data KIB                   as `ulimit -d`
 *     --descriptors COUNT          so many file descriptors are free
 *     --hide PATH                  an empty folder in the path's place (a mount namespace; skipped where it may not)
 *     --refuse CALLS ERRNO         these calls ("madvise,mbind") fail
 *
 * Is run without LD_PRELOAD itself, and shares the exit code of the program. */
#include "process.h"

#include <sched.h>
#include <sys/mount.h>

static void limit(__rlimit_resource_t resource, rlim_t value) {
    struct rlimit both = {value, value};
    if (setrlimit(resource, &both)) {
        SKIP("setrlimit: errno %d", errno);
    }
}

/* Closes what is open above stderr, and leaves room for count more. */
static void leave_descriptors(rlim_t count) {
    for (int file = 3; file < 1024; file++) {
        close(file);
    }
    limit(RLIMIT_NOFILE, 3 + count);
}

static void hide(const char *path) {
    static int separated;
    if (!separated && (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))) {
        SKIP("no mount namespace: errno %d", errno);
    }
    separated = 1;
    if (mount("empty", path, "tmpfs", MS_RDONLY, "size=4k")) {
        SKIP("mount over %s: errno %d", path, errno);
    }
}

int main(int argc, char **argv) {
    const char *preload = NULL;
    const char *refused = NULL;
    int code = 0;
    rlim_t address_space = RLIM_INFINITY;
    rlim_t data = RLIM_INFINITY;
    int at = 1;
    for (; at + 1 < argc && strcmp(argv[at], "--") != 0; at += 2) {
        const char *value = argv[at + 1];
        if (!strcmp(argv[at], "--preload")) {
            preload = value;
        } else if (!strcmp(argv[at], "--address-space")) {
            address_space = strtoull(value, NULL, 10) * KIB;
        } else if (!strcmp(argv[at], "--data")) {
            data = strtoull(value, NULL, 10) * KIB;
        } else if (!strcmp(argv[at], "--descriptors")) {
            leave_descriptors(strtoull(value, NULL, 10));
        } else if (!strcmp(argv[at], "--hide")) {
            hide(value);
        } else if (!strcmp(argv[at], "--refuse") && at + 2 < argc) {
            refused = value;
            code = errno_by_name(argv[++at + 1]);
        } else {
            break;
        }
    }
    if (at + 1 >= argc || strcmp(argv[at], "--") != 0) {
        say("usage: %s [RESTRICTION...] -- PROGRAM [ARGUMENT...]\n", argv[0]);
        return EXIT_USE;
    }
    alarm(400);
    if (preload) {
        setenv("LD_PRELOAD", preload, 1);
    }
    if (refused) {
        refuse_calls(refused, code);
    }
    limit(RLIMIT_AS, address_space);
    limit(RLIMIT_DATA, data);
    execv(argv[at + 1], argv + at + 1);
    say("cannot run %s: errno %d\n", argv[at + 1], errno);
    return EXIT_USE;
}
