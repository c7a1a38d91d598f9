/* launch: runs one command and writes down what it cost.
 *
 *     launch RESULT PRELOAD COMMAND [ARGUMENT...]
 *
 * RESULT receives one line: pid, wait status, wall time (ns), CPU time in user mode and in the kernel (us), peak RSS
 * (KiB), minor faults, major faults. CPU time and faults are those of the command and of every descendant that was
 * waited for; the peak is that of the largest one process. PRELOAD becomes LD_PRELOAD of the command alone; empty for
 * none. Exit status: 0 when RESULT was written, 2 for a usage error, 127 when the command could not be started (RESULT
 * is then empty and standard error says why).
 *
 * A program of its own because Linux counts the memory of whoever calls exec in the peak of the program that starts:
 * run straight from Python, `true` would seem to need what Python needs. This process is smaller than anything it runs.
 * The command dies with it, and it dies with its parent: no run outlives the laboratory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec.h"

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long microseconds(struct timeval time) { return time.tv_sec * 1000000LL + time.tv_usec; }

static _Noreturn void start(const char *preload, char **command, int failure) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    exec_or_report(preload, command[0], command, failure);
}

int main(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "usage: launch RESULT PRELOAD COMMAND [ARGUMENT...]\n");
        return 2;
    }
    FILE *result = fopen(arguments[1], "we");
    int failure[2];
    if (!result || pipe2(failure, O_CLOEXEC) != 0) {
        perror("launch");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsetenv("LD_PRELOAD");
    long long start_ns = now_ns();
    pid_t child = fork();
    if (child == 0) {
        start(arguments[2], arguments + 3, failure[1]);
    }
    close(failure[1]);
    int status;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child) {
        perror("launch");
        return 2;
    }
    long long wall_ns = now_ns() - start_ns;
    int reason;
    if (read(failure[0], &reason, sizeof reason) == sizeof reason) {
        fprintf(stderr, "%s: %s\n", arguments[3], strerror(reason));
        return 127;
    }
    fprintf(result, "%d %d %lld %lld %lld %ld %ld %ld\n", (int)child, status, wall_ns, microseconds(usage.ru_utime),
            microseconds(usage.ru_stime), usage.ru_maxrss, usage.ru_minflt, usage.ru_majflt);
    return fclose(result) == 0 ? 0 : 2;
}
