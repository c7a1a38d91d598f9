/* ending: preloaded beside hakmem, has a program that a signal is about to end write first what hakmem has gathered.
 *
 * Statistics and heap profiles are written at the end of a program, and a signal whose action is the default one leaves
 * it no end: Ctrl-C, kill, a terminal that is closed. Nor does _exit, at which statistics are written, too. In each process that inherits the preload, such a signal writes
 * the heap profile to the file of HAKMEM_HEAP_PROFILE, and has hakmem write statistics if HAKMEM_STATS_SIGNAL names a
 * signal; then the process ends by the signal, as it would have.
 *
 * The program is not to notice: what it is told of these signals, and what it sets, goes through here, and reads as if
 * the handler were none. Needs Linux and a dynamic linker. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef void (*handler)(int);

static int (*next_sigaction)(int, const struct sigaction *, struct sigaction *);
static handler (*next_signal)(int, handler);
static int (*save_profile)(const char *);
static const char *profile_name; /* NULL: none is wanted */
static int statistics_signal;    /* 0: none */
static void (*next_exit)(int);
static pid_t own_process;

static bool is_watched(int number) { return number == SIGINT || number == SIGTERM || number == SIGHUP; }

/* `name` with %p replaced by the process id, as hakmem does it; without what has no room. */
static void expand(const char *name, char *path, size_t size) {
    size_t length = 0;
    for (; *name && length + 12 < size; name++) {
        if (name[0] != '%' || name[1] != 'p') {
            path[length++] = *name;
            continue;
        }
        char digits[12];
        size_t count = 0;
        for (pid_t rest = getpid(); rest > 0 || count == 0; rest /= 10) {
            digits[count++] = (char)('0' + rest % 10);
        }
        while (count > 0) {
            path[length++] = digits[--count];
        }
        name++;
    }
    path[length] = '\0';
}

static void write_statistics(void) {
    struct sigaction current;
    if (statistics_signal && next_sigaction(statistics_signal, NULL, &current) == 0 && current.sa_handler != SIG_DFL &&
        current.sa_handler != SIG_IGN) {
        raise(statistics_signal);
    }
}

/* Calls only what hakmem and POSIX allow in a handler. The signal is blocked until it returns, and ends the process
 * then. */
static void at_end(int number) {
    int saved_errno = errno;
    if (profile_name && save_profile) {
        char path[4096];
        expand(profile_name, path, sizeof path);
        save_profile(path);
    }
    write_statistics();
    struct sigaction end = {.sa_handler = SIG_DFL};
    next_sigaction(number, &end, NULL);
    raise(number);
    errno = saved_errno;
}

static struct sigaction watching(void) {
    struct sigaction action = {.sa_handler = at_end, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGHUP);
    return action;
}

static void resolve(void) {
    if (!next_sigaction) {
        *(void **)&next_exit = dlsym(RTLD_NEXT, "_exit");
        *(void **)&next_signal = dlsym(RTLD_NEXT, "signal");
        *(void **)&next_sigaction = dlsym(RTLD_NEXT, "sigaction");
    }
}

__attribute__((constructor)) static void begin(void) {
    static const int watched[] = {SIGINT, SIGTERM, SIGHUP};
    const char *profile = getenv("HAKMEM_HEAP_PROFILE"), *number = getenv("HAKMEM_STATS_SIGNAL");
    resolve();
    *(void **)&save_profile = dlsym(RTLD_DEFAULT, "hak_profile_save");
    profile_name = profile && strncmp(profile, "1:", 2) == 0 ? strdup(profile + 2) : NULL;
    own_process = getpid();
    statistics_signal = number ? atoi(number) : 0;
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        struct sigaction action = watching(), before;
        if (next_sigaction(watched[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) {
            next_sigaction(watched[i], &action, NULL);
        }
    }
}

EXPORTED int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    struct sigaction ours = watching();
    resolve();
    bool is_default = action && is_watched(number) && action->sa_handler == SIG_DFL;
    int result = next_sigaction(number, is_default ? &ours : action, before);
    if (result == 0 && before && before->sa_handler == at_end) {
        memset(before, 0, sizeof *before);
    }
    return result;
}

/* A child that shares its parent's memory, or is a copy of it, has gathered nothing of its own. */
EXPORTED _Noreturn void _exit(int status) {
    resolve();
    if (getpid() == own_process) {
        write_statistics();
    }
    next_exit(status);
    abort();
}

EXPORTED _Noreturn void _Exit(int status) { _exit(status); }

EXPORTED handler signal(int number, handler wanted) {
    resolve();
    handler before = next_signal(number, is_watched(number) && wanted == SIG_DFL ? at_end : wanted);
    return before == at_end ? SIG_DFL : before;
}
