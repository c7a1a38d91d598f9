/* The driver that needs no fuzzer.
 *
 *     fuzz run [--seconds N] [--seed S] [--findings FOLDER] PATH...
 *                                   programs of these files and folders, then random changes of them
 *     fuzz replay PATH...           runs them one after the other in this process
 *     fuzz print PATH...            shows them as text
 *     fuzz minimise FILE RESULT     a shorter program that fails in the same way
 *
 * Each program runs in a child of its own: it begins with an empty heap, and what it breaks ends with it. `run` starts
 * itself anew every few seconds, with other settings of hakmem. What fails is written to the folder of findings and
 * shown as text; the exit status is 1 then. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "execute.h"

enum {
    PROGRAM_SECONDS = 300,
    SLICE_SECONDS = 5,
    MOST_FILES = 4096,
    MOST_WORDS = 64,
    LINE_BYTES = 512,
    TRIES_OF_THREADS = 20
};

struct input {
    size_t length;
    uint8_t bytes[PROGRAM_BYTES];
};

static struct input inputs[MOST_FILES + 1];
static unsigned input_count;

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void read_input(struct input *input, const char *path) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? -1 : read(descriptor, input->bytes, sizeof input->bytes);
    if (length < 0) die(path);
    close(descriptor);
    input->length = (size_t)length;
}

static void write_input(const struct input *input, const char *path) {
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0 || write(descriptor, input->bytes, input->length) != (ssize_t)input->length) die(path);
    close(descriptor);
}

static void read_paths(char **paths);

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void read_folder(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, is_visible, alphasort);
    if (count < 0) die(folder);
    for (int i = 0; i < count; i++) {
        char path[4096], *one[] = {path, NULL};
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        read_paths(one);
        free(entries[i]);
    }
    free(entries);
}

static void read_paths(char **paths) {
    for (struct stat status; *paths != NULL; paths++) {
        if (stat(*paths, &status) != 0) die(*paths);
        if (S_ISDIR(status.st_mode)) read_folder(*paths);
        else if (input_count < MOST_FILES) read_input(&inputs[input_count++], *paths);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- One program in a child ------------------------------------------------------------------------------------- */

static void limit_child(int log) {
    signal(SIGALRM, SIG_DFL);
    alarm(PROGRAM_SECONDS);
    if (log >= 0) dup2(log, STDERR_FILENO);
}

/* Returns 0 when it passed. Else `line` says how it failed: the first line it said, or its signal. */
static int run_apart(const struct input *input, int twice, char line[LINE_BYTES]) {
    static int log = -1;
    static struct program program;
    if (log < 0) log = memfd_create("log", MFD_CLOEXEC);
    if (log >= 0 && (ftruncate(log, 0) != 0 || lseek(log, 0, SEEK_SET) != 0)) die("log");
    program_decode(&program, input->bytes, input->length);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        limit_child(log);
        if (twice) execute_twice(&program);
        else execute(&program);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    ssize_t length = log < 0 ? 0 : pread(log, line, LINE_BYTES - 1, 0);
    line[length > 0 ? length : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == '\0') snprintf(line, LINE_BYTES, "wait status %#x", (unsigned)status);
    return 1;
}

/* ---- run -------------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static void report(const struct input *input, const char *folder, const char *line) {
    char path[4096];
    static struct program program;
    snprintf(path, sizeof path, "%s/finding-%d-%llx", folder, (int)getpid(), (unsigned long long)next_random());
    write_input(input, path);
    program_decode(&program, input->bytes, input->length);
    program_print(&program, "    ");
    printf("%s: %s\n", path, line);
    fflush(stdout);
}

static void change(struct input *input) {
    const struct input *other = &inputs[next_random() % input_count];
    if (next_random() % 8 == 0) input->length = 0;
    for (unsigned i = input->length == 0 ? 12 : 1 + next_random() % 3; i > 0; i--)
        input->length =
            program_mutate(input->bytes, input->length, PROGRAM_BYTES, other->bytes, other->length, next_random());
}

/* What hakmem is told from outside, by slices; the first is what programs repeat with. */
static const char *const settings[][3] = {
    {"HAKMEM_BACKGROUND=0"},
    {"HAKMEM_BACKGROUND=1", "HAKMEM_ACE_FAST_MS=10", "HAKMEM_KNOBS=decay_ms=10"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_HEAP_PROFILE=1:/dev/null", "HAKMEM_HEAP_PROFILE_INTERVAL=1000"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_PROFILE=lean"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_THP=on", "HAKMEM_KNOBS=growth_floor_bytes=0"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_LAZY_PURGE=1"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_PROFILE=hardened"},
    {"HAKMEM_BACKGROUND=1", "HAKMEM_HEAP_PROFILE=1:/dev/null", "HAKMEM_HEAP_PROFILE_INTERVAL=4096"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_PROFILE=mid-heavy"},
    {"HAKMEM_BACKGROUND=0", "HAKMEM_THP=off", "HAKMEM_PROFILE=speed"},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

static int slice(const char *folder, double seconds, uint64_t seed, int with_files) {
    char line[LINE_BYTES];
    unsigned long count = 0;
    unsigned findings = 0;
    double end = now() + seconds;
    random_state = seed * 0x9E3779B97F4A7C15u | 1;
    for (unsigned i = 0; with_files && i < input_count; i++, count++)
        if (run_apart(&inputs[i], 1, line)) {
            report(&inputs[i], folder, line);
            findings++;
        }
    while (now() < end && findings < 5) {
        struct input input = inputs[next_random() % input_count];
        change(&input);
        count++;
        if (!run_apart(&input, 0, line)) continue;
        report(&input, folder, line);
        findings++;
    }
    printf("%lu programs, seed %llu, %s\n", count, (unsigned long long)seed, getenv("HAKMEM_BACKGROUND"));
    fflush(stdout);
    return findings != 0;
}

static int run_slice(char *name, const char *folder, char **paths, unsigned number, double seconds, uint64_t seed) {
    char words[2][32], *new_arguments[MOST_WORDS + 8];
    snprintf(words[0], sizeof words[0], "%.3f", seconds);
    snprintf(words[1], sizeof words[1], "%llu", (unsigned long long)seed);
    unsigned count = 0;
    new_arguments[count++] = name;
    new_arguments[count++] = (char *)(uintptr_t)(number == 0 ? "first-slice" : "slice");
    new_arguments[count++] = words[0];
    new_arguments[count++] = words[1];
    new_arguments[count++] = (char *)(uintptr_t)folder;
    for (; *paths != NULL && count < MOST_WORDS; paths++) new_arguments[count++] = *paths;
    new_arguments[count] = NULL;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        for (unsigned i = 0; i < 3 && settings[number % SETTINGS][i] != NULL; i++)
            putenv((char *)(uintptr_t)settings[number % SETTINGS][i]);
        execv("/proc/self/exe", new_arguments);
        die("/proc/self/exe");
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* run: the words after the first are settings, then paths. */
static int run(char **arguments) {
    double seconds = 10, end;
    uint64_t seed = (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
    const char *folder = ".";
    char **rest = arguments + 2;
    for (; *rest != NULL && strncmp(*rest, "--", 2) == 0 && rest[1] != NULL; rest += 2) {
        if (strcmp(*rest, "--seconds") == 0) seconds = strtod(rest[1], NULL);
        else if (strcmp(*rest, "--seed") == 0) seed = strtoull(rest[1], NULL, 10);
        else if (strcmp(*rest, "--findings") == 0) folder = rest[1];
        else return 2;
    }
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) die(folder);
    end = now() + seconds;
    int failed = 0;
    for (unsigned number = 0; number == 0 || now() < end; number++) {
        double left = end - now(), length = left < SLICE_SECONDS ? left : SLICE_SECONDS;
        failed |= run_slice(arguments[0], folder, rest, number, length, seed + number);
    }
    return failed;
}

/* ---- minimise --------------------------------------------------------------------------------------------------- */

/* What two failures must have in common: the line without what is a number. */
static void signature(const char *line, char result[LINE_BYTES]) {
    const char *at = strstr(line, "step ") == line + 6 ? strchr(line + 6, ':') : line;
    size_t length = 0;
    for (; at != NULL && *at != '\0' && length < LINE_BYTES - 1; at++) {
        if ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f' && at > line && (at[-1] == 'x'))) continue;
        result[length++] = *at;
    }
    for (size_t i = 0; i < length; i++)
        if (strncmp(result + i, ": ", 2) == 0 && i > 1) length = i + 40 < length ? i + 40 : length;
    result[length] = '\0';
}

static int fails_alike(const struct input *input, const char *wanted) {
    char line[LINE_BYTES], found[LINE_BYTES];
    static struct program program;
    program_decode(&program, input->bytes, input->length);
    for (int i = program.is_free_running ? TRIES_OF_THREADS : 1; i > 0; i--) {
        if (!run_apart(input, 0, line) && !run_apart(input, 1, line)) continue;
        signature(line, found);
        if (strncmp(found, wanted, 24) == 0) return 1;
    }
    return 0;
}

static void drop_steps(struct input *input, const char *wanted) {
    for (size_t count = PROGRAM_STEPS / 2; count > 0; count /= 2)
        for (size_t at = HEADER_BYTES; at + count * STEP_BYTES <= input->length;) {
            struct input shorter = *input;
            size_t bytes = count * STEP_BYTES;
            memmove(shorter.bytes + at, shorter.bytes + at + bytes, shorter.length - at - bytes);
            shorter.length -= bytes;
            if (fails_alike(&shorter, wanted)) *input = shorter;
            else at += bytes;
        }
}

/* Fields become the plainest values with which it still fails. */
static void make_plain(struct input *input, const char *wanted) {
    for (size_t at = 0; at < input->length; at++) {
        static const uint8_t masks[] = {0x00, 0x3f, 0x1f, 0xc0, 0xe0};
        for (size_t i = 0; i < sizeof masks; i++) {
            struct input plainer = *input;
            plainer.bytes[at] &= masks[i];
            if (plainer.bytes[at] == input->bytes[at] || !fails_alike(&plainer, wanted)) continue;
            *input = plainer;
            break;
        }
    }
}

static int minimise(const char *path, const char *result) {
    struct input input;
    char line[LINE_BYTES], wanted[LINE_BYTES];
    static struct program program;
    read_input(&input, path);
    int fails = 0;
    for (int i = 0; i < TRIES_OF_THREADS && !fails; i++)
        fails = run_apart(&input, 0, line) || run_apart(&input, 1, line);
    if (!fails) {
        fprintf(stderr, "%s: does not fail\n", path);
        return 2;
    }
    signature(line, wanted);
    size_t length;
    do {
        length = input.length;
        drop_steps(&input, wanted);
    } while (input.length < length);
    make_plain(&input, wanted);
    drop_steps(&input, wanted);
    write_input(&input, result);
    program_decode(&program, input.bytes, input.length);
    program_print(&program, "");
    printf("%s\n", line);
    return 0;
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static int for_each_input(char **paths, void (*act)(const struct program *program)) {
    static struct program program;
    read_paths(paths);
    for (unsigned i = 0; i < input_count; i++) {
        program_decode(&program, inputs[i].bytes, inputs[i].length);
        act(&program);
    }
    return 0;
}

static void print(const struct program *program) { program_print(program, ""); }

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (strcmp(word, "run") == 0 && argc > 2) return run(argv);
    execute_begin(argv);
    if (strstr(word, "slice") != NULL && argc > 4) {
        read_paths(argv + 5);
        if (input_count == 0) input_count = 1; /* the empty one */
        return slice(argv[4], strtod(argv[2], NULL), strtoull(argv[3], NULL, 10), word[0] == 'f');
    }
    if (strcmp(word, "replay") == 0) return for_each_input(argv + 2, execute_twice);
    if (strcmp(word, "print") == 0) return for_each_input(argv + 2, print);
    if (strcmp(word, "minimise") == 0 && argc == 4) return minimise(argv[2], argv[3]);
    fprintf(stderr, "fuzz run|replay|print|minimise: see driver.c\n");
    return 2;
}
