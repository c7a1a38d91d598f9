/* exec: how a helper becomes the command it was asked for. */
#ifndef LAB_EXEC_H
#define LAB_EXEC_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* Becomes `command` by way of `file`, found as a shell finds it, with LD_PRELOAD set unless `preload` is empty. Where that fails
 * errno is written to `failure`, the end of a pipe that exec closes, so that a command that ends with 127 by itself is told
 * apart. */
static inline _Noreturn void exec_or_report(const char *preload, const char *file, char **command, int failure) {
    if (*preload) {
        setenv("LD_PRELOAD", preload, 1);
    }
    execvp(file, command);
    int reason = errno;
    ssize_t written = write(failure, &reason, sizeof reason);
    _exit(written == sizeof reason ? 127 : 126);
}

#endif
