/* launch: runs one command and writes down what it cost.
 *
 *     launch RESULT PRELOAD COMMAND [ARGUMENT...]
 *
 * RESULT receives a line: pid, wait status, wall time (ns), CPU time in user mode and in the kernel (us), peak RSS
 * (KiB), minor faults, major faults, mean RSS (KiB), and the file of the program that was seen last in it (device and
 * inode; 0 0: none was). CPU time and faults are those of the command and of every descendant that was waited for; the
 * peak is that of the largest one process, the mean over time that of the command alone. Lines `seen NS STACK PROGRAM`
 * follow, one for each time that a descendant was seen: the time since the look before, where its stack began, which a
 * fork keeps and exec draws anew where addresses are random, and the path of its program. STACK is 0 and PROGRAM a name
 * where a setuid program has made it somebody else's.
 *
 * PRELOAD becomes LD_PRELOAD of the command alone; empty for none. Exit status: 0 when RESULT was written, 2 for a
 * usage error, 127 when the command could not be started (RESULT is then empty and standard error says why).
 *
 * A program of its own because Linux counts the memory of whoever calls exec in the peak of the program that starts:
 * run straight from Python, `true` would seem to need what Python needs. This process is smaller than anything it runs.
 * The command dies with it, and it dies with its parent: no run outlives the laboratory. */
#include <dirent.h>
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
#include "proc.h"

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
    FILE *seen;    /* writes to `lines` on what it has started; NULL: there is no memory for it */
    char *lines;
    size_t lines_bytes;
    long long looked_ns, around_ns; /* of the last and the next look at what it has started */
};

enum { SHORTEST_NS = 1000000, LONGEST_NS = 20000000, STEPS_OF_TIME = 32, LEAST_LOOKS = 5 };
enum { FIRST_AROUND_NS = 10000000, STEPS_AROUND = 4, TIMES_ITS_COST = 100 };

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
        watch->start_ns = watch->last_ns = watch->looked_ns = now_ns();
        watch->around_ns = watch->start_ns + FIRST_AROUND_NS;
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

/* ---- Looking at what the command has started -------------------------------------------------------------------- */

/* Whether a setuid program has made it somebody else's. What root starts may become so by itself. */
static bool is_anothers(int process) {
    char path[32], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", process);
    const char *line = read_text(path, text, sizeof text) ? strstr(text, "\nUid:") : NULL;
    unsigned effective;
    return geteuid() != 0 && line && sscanf(line, "\nUid: %*u %u", &effective) == 1 && effective != geteuid();
}

static void see(int process, long long elapsed_ns, FILE *seen) {
    char path[32], text[1024], program[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    if (!read_text(path, text, sizeof text) || number_of_field(text, FIELD_CODE) == 0) return;
    unsigned long long stack = number_of_field(text, FIELD_STACK);
    if (stack == 0 && !is_anothers(process)) return;
    snprintf(path, sizeof path, "/proc/%d/exe", process);
    ssize_t length = readlink(path, program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    const char *name = strchr(text, '(') + 1;
    fprintf(seen, "seen %lld %llu ", elapsed_ns, stack);
    if (length > 0) fprintf(seen, "%s\n", program);
    else fprintf(seen, "%.*s\n", (int)(strrchr(text, ')') - name), name);
}

static void see_below(int process, long long elapsed_ns, FILE *seen) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *threads = opendir(path);
    for (struct dirent *thread; threads && (thread = readdir(threads));) {
        snprintf(path, sizeof path, "/proc/%d/task/%ld/children", process, strtol(thread->d_name, NULL, 10));
        FILE *children = fopen(path, "re");
        for (int child; children && fscanf(children, "%d", &child) == 1;) {
            see(child, elapsed_ns, seen);
            see_below(child, elapsed_ns, seen);
        }
        if (children) fclose(children);
    }
    if (threads) closedir(threads);
}

/* In steps of a fourth of the time so far: what a look finds counts for the time since the one before. A large tree is
 * looked at less often. */
static void look_around(struct watch *watch, pid_t command) {
    long long now = now_ns();
    if (!watch->seen || watch->starting >= 0 || now < watch->around_ns) return;
    see_below(command, now - watch->looked_ns, watch->seen);
    watch->looked_ns = now;
    long long step = (now - watch->start_ns) / STEPS_AROUND, cost = TIMES_ITS_COST * (now_ns() - now);
    watch->around_ns = now + (step > cost ? step : cost);
}

/* ---- One command --------------------------------------------------------------------------------------------------- */

/* Until it ends. */
static pid_t watch_to_end(pid_t child, const sigset_t *its_end, struct watch *watch, int *status,
                          struct rusage *usage) {
    pid_t ended;
    while ((ended = wait4(child, status, WNOHANG, usage)) == 0) {
        struct timespec step = step_of(watch);
        if (sigtimedwait(its_end, NULL, &step) < 0) {
            look(watch);
            look_around(watch, child);
        }
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
        _exit(2); /* a library that is preloaded here, to be asked of its settings, writes no files */
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
    if (child > 0) {
        watch = watch_begun(child, failure[0]);
        watch.seen = open_memstream(&watch.lines, &watch.lines_bytes);
    }
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
    if (watch.seen && fclose(watch.seen) == 0) fwrite(watch.lines, 1, watch.lines_bytes, result);
    return fclose(result) == 0 ? 0 : 2;
}
