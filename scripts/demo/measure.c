/* measure: runs one command and writes down what it cost.
 *
 *     measure RESULT PRELOAD COMMAND [ARGUMENT...]
 *
 * RESULT receives one line: pid, wait status, wall time (ns), CPU time (us), peak RSS (KiB), page faults. CPU time and
 * faults are those of the command and of every descendant that was waited for; the peak is that of the largest one
 * process. PRELOAD becomes LD_PRELOAD of the command alone; empty for none.
 *
 * A program of its own because Linux counts the memory of whoever calls exec in the peak of the program that starts:
 * run straight from Python, `true` would seem to need what Python needs. This process is smaller than anything it runs.
 * The command dies with it, and it dies with its parent: nothing outlives a test that is killed. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Writable memory a command may have: a run-away program fails instead of taking the machine with it. */
static const rlim_t memory_limit_bytes = (rlim_t)8 << 30;

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long microseconds(struct timeval time) { return time.tv_sec * 1000000LL + time.tv_usec; }

static int run(const char *preload, char **command) {
    struct rlimit limit = {memory_limit_bytes, memory_limit_bytes};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_DATA, &limit);
    if (*preload) {
        setenv("LD_PRELOAD", preload, 1);
    }
    execvp(command[0], command);
    fprintf(stderr, "measure: %s: %s\n", command[0], strerror(errno));
    return 127;
}

int main(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "usage: measure RESULT PRELOAD COMMAND [ARGUMENT...]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsetenv("LD_PRELOAD");
    long long start_ns = now_ns();
    pid_t child = fork();
    if (child == 0) {
        _exit(run(arguments[2], arguments + 3));
    }
    int status;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child) {
        perror("measure");
        return 2;
    }
    long long wall_ns = now_ns() - start_ns;
    FILE *result = fopen(arguments[1], "w");
    if (!result) {
        perror(arguments[1]);
        return 2;
    }
    fprintf(result, "%d %d %lld %lld %ld %ld\n", (int)child, status, wall_ns,
            microseconds(usage.ru_utime) + microseconds(usage.ru_stime), usage.ru_maxrss,
            usage.ru_minflt + usage.ru_majflt);
    return fclose(result) ? 2 : 0;
}
