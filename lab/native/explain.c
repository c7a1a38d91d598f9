/* explain: what the resident memory of a process on hakmem is there for, seen from outside, as JSON.
 *
 *     explain [--pins] PID
 *     explain [--pins] --at-end RESULT COMPLAINT PRELOAD FILE COMMAND [ARGUMENT...]
 *     explain --version
 *
 * The first form writes to standard output. The second runs FILE as COMMAND with PRELOAD as its LD_PRELOAD, waits for its end, and
 * writes RESULT when the process is about to go, with all its memory still there. Exit status: 0 when it is written; 2 with one
 * line on standard error, or in the second form in COMPLAINT, when it can't be; 127 when the command could not be started.
 *
 * Its output has what was measured and no more: resident bytes by cause, by class of blocks, by heap; threads with names and
 * stack pointers; and the mappings, each with those of its resident bytes that are not hakmem's. lab/hakmem/explain.py puts
 * it into words. With --pins, also the samples of the heap profile, and the pages on which they lie: lab/hakmem/pins.py. The sum is not made to fit: what is missing in it was not found. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/version.h"
#include "exec.h"
#include "explain_heap.h"
#include "explain_profile.h"

static const char version[] = HAK_VERSION_TEXT;
static bool with_pins;

/* ---- JSON --------------------------------------------------------------------------------------------------------- */

static void write_text(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\') {
            fprintf(out, "\\u%04x", (unsigned char)*text);
        } else {
            fputc(*text, out);
        }
    }
    fputc('"', out);
}

/* The first line of a file of /proc/PID. */
static void read_line(pid_t id, const char *name, char *line, int capacity) {
    char path[320];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)id, name);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(line, capacity, file) == NULL) {
        line[0] = '\0';
    }
    line[strcspn(line, "\n")] = '\0';
    if (file != NULL) {
        fclose(file);
    }
}

/* The stack pointer stands before the last word, if the thread is in the kernel. */
static uint64_t stack_pointer(const char *line) {
    const char *last = strrchr(line, ' ');
    while (last != NULL && last > line && *--last != ' ') {
    }
    return last == NULL ? 0 : strtoull(last, NULL, 16);
}

/* The number that a thread has in its own namespace, as its heap knows it: that comes last. Where the kernel doesn't
 * tell, the one that it has here. */
static unsigned long own_number(pid_t id, const char *thread) {
    char path[320], line[256];
    unsigned long number = strtoul(thread, NULL, 10);
    snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)id, thread);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *last = strncmp(line, "NSpid:", 6) == 0 ? strrchr(line, '\t') : NULL;
        if (last != NULL) {
            number = strtoul(last, NULL, 10);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return number;
}

static void write_threads(FILE *out, const struct process *process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)process->id);
    DIR *folder = opendir(path);
    const char *separator = "";
    fprintf(out, ",\n \"threads\": [");
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char name[300], line[256];
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(name, sizeof name, "task/%s/syscall", entry->d_name);
        read_line(process->id, name, line, sizeof line);
        uint64_t pointer = stack_pointer(line);
        snprintf(name, sizeof name, "task/%s/comm", entry->d_name);
        read_line(process->id, name, line, sizeof line);
        fprintf(out, "%s\n  {\"id\": %lu, \"stack_pointer\": %" PRIu64 ", \"name\": ", separator,
                own_number(process->id, entry->d_name), pointer);
        write_text(out, line);
        fputc('}', out);
        separator = ",";
    }
    fprintf(out, "]");
    if (folder != NULL) {
        closedir(folder);
    }
}

/* Resident bytes of a mapping that are not hakmem's. `first` is where in hakmem's address space to begin; moved on. */
static uint64_t foreign_bytes(const struct heap_view *view, const struct mapping *mapping, size_t *first) {
    const struct process *process = view->process;
    while (*first < view->owned_count && view->owned[*first].end <= mapping->start) {
        (*first)++;
    }
    bool is_shared = *first < view->owned_count && view->owned[*first].start < mapping->end;
    if (mapping->page_bytes > process->page_bytes || (!is_shared && !process->sees_huge_pages)) {
        return mapping->resident_bytes;
    }
    uint64_t bytes = 0, at = mapping->start;
    for (size_t i = *first; i < view->owned_count && view->owned[i].start < mapping->end; i++) {
        bytes += process_resident(process, at, view->owned[i].start);
        at = view->owned[i].end > at ? view->owned[i].end : at;
    }
    return bytes + process_resident(process, at, mapping->end);
}

static void write_build_id(FILE *out, const struct process *process, const struct mapping *mapping) {
    unsigned char id[32];
    size_t bytes = heap_build_id(process, mapping, id, sizeof id);
    fprintf(out, ", \"build_id\": \"");
    for (size_t i = 0; i < bytes; i++) {
        fprintf(out, "%02x", id[i]);
    }
    fputc('"', out);
}

static void write_mappings(FILE *out, const struct heap_view *view) {
    const char *separator = "";
    size_t first = 0;
    fprintf(out, ",\n \"mappings\": [");
    for (size_t i = 0; i < view->process->mapping_count; i++) {
        const struct mapping *mapping = &view->process->mappings[i];
        uint64_t foreign = foreign_bytes(view, mapping, &first);
        fprintf(out,
                "%s\n  {\"start\": %" PRIu64 ", \"end\": %" PRIu64 ", \"offset\": %" PRIu64
                ", \"permissions\": \"%s\", \"inode\": %" PRIu64 ", \"resident\": %" PRIu64 ", \"foreign\": %" PRIu64
                ", \"name\": ",
                separator, mapping->start, mapping->end, mapping->offset, mapping->permissions, mapping->inode,
                mapping->resident_bytes, foreign);
        write_text(out, mapping->name);
        if (with_pins) {
            write_build_id(out, view->process, mapping);
        }
        fputc('}', out);
        separator = ",";
    }
    fprintf(out, "]");
}

static void write_heaps(FILE *out, const struct heap_view *view) {
    const char *separator = "";
    fprintf(out, ",\n \"heaps\": [");
    for (size_t i = 0; i < view->heap_count; i++) {
        const struct heap_tally *heap = &view->heaps[i];
        fprintf(out,
                "%s\n  {\"number\": %" PRIu32 ", \"thread\": %" PRIu32
                ", \"has_thread\": %s, \"cached_blocks\": %" PRIu64 ", \"cached\": %" PRIu64
                ", \"kept_units\": %" PRIu64 "}",
                separator, heap->number, heap->thread_id, heap->in_use == HAK_HEAP_IN_USE ? "true" : "false",
                heap->cached_blocks, heap->cached, heap->kept_units);
        separator = ",";
    }
    fprintf(out, "]");
}

static void write_classes(FILE *out, const struct heap_view *view) {
    const char *separator = "";
    fprintf(out, ",\n \"classes\": [");
    for (uint32_t i = 1; i < HAK_CLASS_LIMIT; i++) {
        const struct class_tally *tally = &view->classes[i];
        if (tally->slabs == 0) {
            continue;
        }
        fprintf(out,
                "%s\n  {\"block_bytes\": %" PRIu32 ", \"slabs\": %" PRIu64 ", \"live_blocks\": %" PRIu64
                ", \"live\": %" PRIu64 ", \"free\": %" PRIu64 ", \"cached\": %" PRIu64 ", \"held\": %" PRIu64 "}",
                separator, hak_size_classes[i].block_bytes, tally->slabs, tally->live_blocks, tally->live, tally->free,
                tally->cached, tally->held);
        separator = ",";
    }
    fprintf(out, "]");
}

static void write_held(FILE *out, const struct heap_view *view) {
    const char *separator = "";
    fprintf(out, ",\n \"held\": [");
    for (size_t i = 0; i < view->held_count; i++) {
        const struct held_page *page = &view->held[i];
        fprintf(out, "%s\n  {\"address\": %" PRIu64 ", \"block_bytes\": %" PRIu64 ", \"live_blocks\": %" PRIu64 "}",
                separator, page->address, page->block_bytes, page->live_blocks);
        separator = ",";
    }
    fprintf(out, "]");
}

static void write_causes(FILE *out, const struct causes *causes) {
    const struct {
        const char *name;
        uint64_t bytes;
    } all[] = {{"live_small", causes->live_small},       {"live_runs", causes->live_runs},
               {"live_mappings", causes->live_mappings}, {"remainders", causes->remainders},
               {"free_blocks", causes->free_blocks},     {"cached", causes->cached},
               {"kept_units", causes->kept_units},       {"dirty_units", causes->dirty_units},
               {"lazily_freed", causes->lazily_freed},   {"huge_bloat", causes->huge_bloat},
               {"given_back", causes->given_back},       {"in_hand", causes->in_hand},
               {"large_cache", causes->large_cache},     {"metadata", causes->metadata}};
    fprintf(out, ",\n \"causes\": {");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        fprintf(out, "%s\"%s\": %" PRIu64, i == 0 ? "" : ", ", all[i].name, all[i].bytes);
    }
    fprintf(out, "}");
}

/* `ending`: how the process is about to end, as of wait, or NULL. */
static void explain(pid_t id, const unsigned long *ending, FILE *out) {
    struct process process;
    static struct heap_view view;
    char name[64];
    process_look(&process, id);
    heap_explain(&view, &process, version);
    read_line(id, "comm", name, sizeof name);
    fprintf(out, "{\"pid\": %d, \"name\": ", (int)id);
    write_text(out, name);
    fprintf(out,
            ", \"hakmem\": \"%s\", \"copies\": %" PRIu32 ", \"resident\": %" PRIu64 ", \"page_bytes\": %" PRIu64
            ", \"sees_huge_pages\": %s,\n \"live_runs\": %" PRIu64 ", \"live_mappings\": %" PRIu64
            ", \"rounding_most\": %" PRIu64,
            view.version, view.copies, process.resident_bytes, process.page_bytes,
            process.sees_huge_pages ? "true" : "false", view.live_runs_count, view.live_mappings_count,
            view.rounding_most);
    if (ending != NULL) {
        int status = (int)*ending;
        fprintf(out, ",\n \"ended\": %d", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    }
    write_causes(out, &view.causes);
    write_classes(out, &view);
    write_heaps(out, &view);
    write_threads(out, &process);
    write_mappings(out, &view);
    if (with_pins) {
        write_held(out, &view);
        profile_write(out, &view);
    }
    fprintf(out, "}\n");
    if (fflush(out) != 0 || ferror(out)) {
        process_fail("the result can't be written: %s", strerror(errno));
    }
}

/* ---- A command, at its end ---------------------------------------------------------------------------------------- */

/* What comes through `ready` says that somebody watches. */
static _Noreturn void start(const char *preload, const char *file, char **command, int ready, int failure) {
    char go;
    if (read(ready, &go, 1) != 1) {
        _exit(126);
    }
    exec_or_report(preload, file, command, failure);
}

static bool is_stopping(int signal) {
    return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

static pid_t watched;

/* Who asks this process to end asks the command. */
static void pass_on(int signal) {
    int saved_errno = errno;
    kill(watched, signal);
    errno = saved_errno;
}

static void pass_on_unless_ignored(int signal) {
    struct sigaction before, action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    if (sigaction(signal, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        sigaction(signal, &action, NULL);
    }
}

/* Lets the process go on after each stop, explains it at the one before its end. True when it was explained. */
static bool watch(pid_t child, int failure, const char *result, const char *program) {
    bool explained = false;
    int status;
    while (waitpid(child, &status, __WALL) == child && WIFSTOPPED(status)) {
        int event = status >> 16, signal = WSTOPSIG(status);
        if (event == PTRACE_EVENT_EXIT && !explained) {
            int reason;
            if (read(failure, &reason, sizeof reason) == sizeof reason) {
                fprintf(stderr, "%s: %s\n", program, strerror(reason));
                exit(127);
            }
            FILE *out = fopen(result, "we");
            if (out == NULL) {
                process_fail("%s: %s", result, strerror(errno));
            }
            unsigned long ending = 0;
            ptrace(PTRACE_GETEVENTMSG, child, NULL, &ending);
            explain(child, &ending, out);
            fclose(out);
            explained = true;
        }
        if (event == PTRACE_EVENT_STOP && is_stopping(signal)) {
            ptrace(PTRACE_LISTEN, child, NULL, NULL);
        } else {
            ptrace(PTRACE_CONT, child, NULL, (void *)(intptr_t)(event == 0 ? signal : 0));
        }
    }
    return explained;
}

/* Above the standard three, whichever of them are closed: a command inherits just what the caller had. */
static void open_pipe(int ends[2]) {
    int low[2];
    if (pipe2(low, O_CLOEXEC) != 0) {
        process_fail("no pipe: %s", strerror(errno));
    }
    for (int i = 0; i < 2; i++) {
        ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (ends[i] < 0) {
            process_fail("no pipe: %s", strerror(errno));
        }
    }
    close(low[0]);
    close(low[1]);
}

static int explain_at_end(const char *result, const char *complaint, const char *preload, const char *file,
                          char **command) {
    int ready[2], failure[2];
    unsetenv("LD_PRELOAD");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the command goes with it */
    open_pipe(ready);
    open_pipe(failure);
    pid_t child = fork();
    if (child == 0) {
        close(ready[1]);
        start(preload, file, command, ready[0], failure[1]);
    }
    close(failure[1]);
    if (freopen(complaint, "we", stderr) == NULL) { /* standard error is the command's */
        exit(2);
    }
    if (child < 0 ||
        ptrace(PTRACE_SEIZE, child, NULL, (void *)(intptr_t)(PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL)) != 0) {
        process_fail("a process can't be watched here: %s; give the number of a running one", strerror(errno));
    }
    /* A terminal's Ctrl-C is for the command: it ends, and is explained. */
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    watched = child;
    pass_on_unless_ignored(SIGTERM);
    pass_on_unless_ignored(SIGHUP);
    if (write(ready[1], "", 1) != 1 || !watch(child, failure[0], result, command[0])) {
        process_fail("%s ended without a moment to look at it", command[0]);
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count >= 2 && strcmp(arguments[1], "--pins") == 0) {
        with_pins = true;
        count--;
        arguments++;
    }
    if (count >= 7 && strcmp(arguments[1], "--at-end") == 0) {
        return explain_at_end(arguments[2], arguments[3], arguments[4], arguments[5], arguments + 6);
    }
    if (count == 2 && strcmp(arguments[1], "--version") == 0) {
        puts(version);
        return 0;
    }
    char *end;
    long id = count == 2 ? strtol(arguments[1], &end, 10) : 0;
    if (count != 2 || *end != '\0') {
        process_fail("usage: explain [--pins] PID | explain [--pins] --at-end RESULT COMPLAINT PRELOAD FILE COMMAND "
                     "[ARGUMENT...]");
    }
    if (id <= 0 || id > INT32_MAX) {
        process_fail("there is no process %s", arguments[1]);
    }
    explain((pid_t)id, NULL, stdout);
    return 0;
}
