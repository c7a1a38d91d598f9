/* launch: runs one command and writes down what it cost.
 *
 *     launch RESULT PRELOAD COMMAND [ARGUMENT...]
 *
 * RESULT receives one line: pid, wait status, wall time (ns), CPU time in user mode and in the kernel (us), peak RSS
 * (KiB), minor faults, major faults, mean RSS (KiB), and the file of the program that was seen last in it (device and
 * inode; 0 0: none was). CPU time and faults are those of the command and of every
 * descendant that was waited for; the peak is that of the largest one process, the mean over time that of the command
 * alone. PRELOAD becomes LD_PRELOAD of the command alone; empty for
 * none. Exit status: 0 when RESULT was written, 2 for a usage error, 127 when the command could not be started (RESULT
 * is then empty and standard error says why).
 *
 * A program of its own because Linux counts the memory of whoever calls exec in the peak of the program that starts:
 * run straight from Python, `true` would seem to need what Python needs. This process is smaller than anything it runs.
 * The command dies with it, and it dies with its parent: no run outlives the laboratory. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

/* ---- Looking at the command while it runs --------------------------------------------------------------------------- */

/* Looks at a process in ever longer steps, of a 32nd of its time so far: short programs are looked at often enough, and
 * long ones are not disturbed. What a look finds counts for the time since the one before. */
struct watch {
    char program[32]; /* of /proc: a link to its file */
    struct stat last; /* of that file */
    int statm;        /* of /proc; -1: none */
    int starting;     /* closed at its other end by exec; -1: that was seen */
    int looks;
    long long start_ns, last_ns;
    double kib_ns; /* the sum */
};

enum { SHORTEST_NS = 1000000, LONGEST_NS = 20000000, STEPS_OF_TIME = 32, LEAST_LOOKS = 5 };

static struct watch watch_begun(pid_t process, int starting) {
    struct watch watch = {.starting = starting, .start_ns = now_ns()};
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)process);
    snprintf(watch.program, sizeof watch.program, "/proc/%d/exe", (int)process);
    watch.statm = open(path, O_RDONLY | O_CLOEXEC);
    return watch;
}

/* Before exec, memory is that of this program. Time begins when it is seen to be over. */
static bool has_started(struct watch *watch) {
    struct pollfd end = {.fd = watch->starting, .events = POLLIN};
    if (watch->starting < 0) return true;
    if (poll(&end, 1, 0) == 1) {
        watch->starting = -1;
        watch->start_ns = watch->last_ns = now_ns();
    }
    return false;
}

static void look(struct watch *watch) {
    if (!has_started(watch)) return;
    char text[128];
    ssize_t length = watch->statm < 0 ? -1 : pread(watch->statm, text, sizeof text - 1, 0);
    long pages;
    if (length <= 0) return;
    text[length] = '\0';
    if (sscanf(text, "%*d %ld", &pages) != 1 || pages == 0) return; /* it has ended */
    long long now = now_ns();
    watch->kib_ns += (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024 * (double)(now - watch->last_ns);
    watch->last_ns = now;
    watch->looks++;
    struct stat file; /* can't be told of one that runs as somebody else */
    if (stat(watch->program, &file) == 0) watch->last = file;
}

static struct timespec step_of(const struct watch *watch) {
    long long step = (now_ns() - watch->start_ns) / STEPS_OF_TIME;
    step = step < SHORTEST_NS ? SHORTEST_NS : step > LONGEST_NS ? LONGEST_NS : step;
    return (struct timespec){.tv_nsec = step};
}

/* 0: it was over before anybody had looked often enough. */
static double mean_kib(const struct watch *watch) {
    return watch->looks < LEAST_LOOKS ? 0 : watch->kib_ns / (double)(watch->last_ns - watch->start_ns);
}

/* ---- One command --------------------------------------------------------------------------------------------------- */

/* Until it ends. */
static pid_t watch_to_end(pid_t child, const sigset_t *its_end, struct watch *watch, int *status,
                          struct rusage *usage) {
    pid_t ended;
    while ((ended = wait4(child, status, WNOHANG, usage)) == 0) {
        struct timespec step = step_of(watch);
        if (sigtimedwait(its_end, NULL, &step) < 0) look(watch);
    }
    return ended;
}

static _Noreturn void start(const char *preload, char **command, int failure, const sigset_t *signals) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, signals, NULL);
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
    sigset_t its_end, signals;
    sigemptyset(&its_end);
    sigaddset(&its_end, SIGCHLD);
    sigprocmask(SIG_BLOCK, &its_end, &signals);
    long long start_ns = now_ns();
    pid_t child = fork();
    if (child == 0) {
        start(arguments[2], arguments + 3, failure[1], &signals);
    }
    close(failure[1]);
    int status;
    struct rusage usage;
    struct watch watch = {0};
    if (child > 0) watch = watch_begun(child, failure[0]);
    if (child < 0 || watch_to_end(child, &its_end, &watch, &status, &usage) != child) {
        perror("launch");
        return 2;
    }
    long long wall_ns = now_ns() - start_ns;
    int reason;
    if (read(failure[0], &reason, sizeof reason) == sizeof reason) {
        fprintf(stderr, "%s: %s\n", arguments[3], strerror(reason));
        return 127;
    }
    fprintf(result, "%d %d %lld %lld %lld %ld %ld %ld %.0f %llu %llu\n", (int)child, status, wall_ns,
            microseconds(usage.ru_utime), microseconds(usage.ru_stime), usage.ru_maxrss, usage.ru_minflt,
            usage.ru_majflt, mean_kib(&watch), (unsigned long long)watch.last.st_dev,
            (unsigned long long)watch.last.st_ino);
    return fclose(result) == 0 ? 0 : 2;
}
