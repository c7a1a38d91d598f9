/* guard: preloaded after an allocator, ends a program before its main unless its malloc is that allocator's.
 *
 * ALLOCATOR_REQUIRED is PID:LIBRARY:PROGRAM. The process PID, and every program that it becomes by exec, must resolve the
 * malloc family to LIBRARY; else one line on standard error, and exit status 2. Once it has become PROGRAM (may be empty:
 * never), the guard and the allocator are taken out of its environment, and what it starts runs without both. Other
 * processes that inherit the variable are held to nothing: the guard takes itself out of their environment.
 *
 * LD_PRELOAD must begin with LIBRARY:GUARD; what follows is the caller's and stays. */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_of.h"

#define REQUIRED "ALLOCATOR_REQUIRED"
#define PRELOAD "LD_PRELOAD"

static _Noreturn void refuse(const char *symbol, const char *file, const char *library) {
    dprintf(STDERR_FILENO, "hakmem: %s: not started: its %s is that of %s, not of %s\n", program_invocation_name,
            symbol, file, library);
    _exit(2);
}

static void require(const char *library) {
    static const char *const family[] = {"malloc", "calloc", "realloc", "free"};
    for (size_t i = 0; i < sizeof family / sizeof family[0]; i++) {
        const char *file = file_of(family[i]);
        if (strcmp(file, library) != 0) {
            refuse(family[i], file, library);
        }
    }
}

/* Takes `words` from the front of LD_PRELOAD and puts `instead` there. What doesn't begin so is not ours to change. */
static void replace_in_preload(const char *words, const char *instead) {
    const char *value = getenv(PRELOAD);
    size_t length = strlen(words);
    if (!value || strncmp(value, words, length) != 0 || (value[length] && value[length] != ':')) {
        return;
    }
    const char *rest = value + length + (value[length] == ':');
    char *changed;
    if (asprintf(&changed, "%s%s%s", instead, *instead && *rest ? ":" : "", rest) < 0) {
        return;
    }
    if (*changed) {
        setenv(PRELOAD, changed, 1);
    } else {
        unsetenv(PRELOAD);
    }
    free(changed);
}

static bool is_running(const char *program) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return strcmp(path, program) == 0;
}

__attribute__((constructor)) static void guard(void) {
    const char *value = getenv(REQUIRED);
    char *required = value ? strdup(value) : NULL;
    if (!required) {
        return;
    }
    Dl_info self;
    char *rest = required;
    const char *pid = strsep(&rest, ":"), *library = strsep(&rest, ":"), *program = rest;
    char *ours;
    if (program && dladdr((void *)(size_t)guard, &self) && asprintf(&ours, "%s:%s", library, self.dli_fname) >= 0) {
        if (strtol(pid, NULL, 10) != getpid()) {
            replace_in_preload(ours, library);
            unsetenv(REQUIRED);
        } else {
            require(library);
            if (*program && is_running(program)) {
                replace_in_preload(ours, "");
                unsetenv(REQUIRED);
            }
        }
        free(ours);
    }
    free(required);
}
