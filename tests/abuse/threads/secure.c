/* A program that runs with the rights of another user takes no settings from its environment, and answers nobody.
 *
 * hakmem is linked into this program, because LD_PRELOAD is ignored there. As root it copies itself, gives the copy to
 * another user and sets its set-user-ID bit, and runs it as a third one, with settings that would leave traces. */
#include <dirent.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#include "churn.h"

enum { OWNER = 65533, CALLER = 65534 };

static bool has_service(void) {
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    expect(tasks != NULL, "no /proc");
    for (struct dirent *entry; !found && (entry = readdir(tasks)) != NULL;) {
        char path[64], name[16] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        found = file >= 0 && read(file, name, sizeof name) > 0 && strncmp(name, "hakmem-ctl\n", 11) == 0;
        if (file >= 0) close(file);
    }
    closedir(tasks);
    return found;
}

static void *allocate_and_wait(void *unused) {
    free(hidden(malloc(100)));
    pause();
    return unused;
}

/* Has all that makes a process answer: two threads that allocate, and a large heap. One that must answer waits for minutes until
 * it does; one that must not waits for a while. */
static void victim_report(const char *path) {
    enum { GROWTH = 100, SOON = 60000 };
    pthread_t thread;
    (void)path;
    expect(pthread_create(&thread, NULL, allocate_and_wait, NULL) == 0, "no thread");
    bool answers = false;
    for (int i = 0; i < (getauxval(AT_SECURE) ? GROWTH : SOON) && !answers; i++) {
        for (int k = 0; k < 100 && i < GROWTH; k++) memset(hidden(malloc(2000)), 1, 2000);
        usleep(5000);
        answers = has_service();
    }
    if (answers) case_print(1, "answers");
    churn_once(1, 1000, 64 << 10);
    case_print(1, getauxval(AT_SECURE) ? "secure" : "plain");
    exit(0);
}

static void copy_program(const char *target, mode_t mode) {
    char bytes[4096];
    ssize_t length;
    int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int out = open(target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    expect(in >= 0 && out >= 0, "cannot copy to %s: errno %d", target, errno);
    while ((length = read(in, bytes, sizeof bytes)) > 0) case_write(out, bytes, (size_t)length);
    expect(fchown(out, OWNER, OWNER) == 0 && fchmod(out, mode) == 0, "cannot give %s away: errno %d", target, errno);
    close(in);
    close(out);
}

/* Runs the copy as CALLER, in the folder, its stdout and stderr in the file "said" there. Returns whether it ran with
 * AT_SECURE. */
static bool run_copy(const char *program, const char *folder, char *said, size_t said_size) {
    pid_t child = fork();
    if (child == 0) {
        char setting[128];
        if (chdir(folder) != 0) _exit(99);
        int out = open("said", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(out, 1);
        dup2(out, 2);
        snprintf(setting, sizeof setting, "json:%s/statistics", folder);
        setenv("HAKMEM_STATS", setting, 1);
        setenv("HAKMEM_HELP", "1", 1);
        setenv("HAKMEM_CTL", "1", 1);
        setenv("HAKMEM_NO_SUCH_SETTING", "1", 1);
        if (setgid(CALLER) != 0 || setuid(CALLER) != 0) _exit(98);
        execl(program, program, "settings", "report", (char *)NULL);
        _exit(97);
    }
    case_expect_success(child, 60);
    char path[128];
    snprintf(path, sizeof path, "%s/said", folder);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, said, said_size - 1);
    close(file);
    unlink(path);
    said[length > 0 ? length : 0] = '\0';
    return strstr(said, "secure\n") != NULL;
}

static void run_settings(void) {
    if (getuid() != 0) skip("only root can give a program away");
    char folder[] = "/tmp/hakmem-secure-XXXXXX", plain[64], secure[64], statistics[64];
    static char said[1 << 16];
    expect(mkdtemp(folder) && chmod(folder, 0777) == 0, "no folder");
    snprintf(plain, sizeof plain, "%s/plain", folder);
    snprintf(secure, sizeof secure, "%s/secure", folder);
    snprintf(statistics, sizeof statistics, "%s/statistics", folder);
    copy_program(plain, 0755);
    copy_program(secure, 04755);

    /* First proof that the settings leave traces at all. */
    bool plain_is_secure = run_copy(plain, folder, said, sizeof said);
    bool plain_wrote = unlink(statistics) == 0;
    bool plain_spoke = strstr(said, "hakmem") != NULL, plain_answers = strstr(said, "answers\n") != NULL;
    bool secure_is_secure = run_copy(secure, folder, said, sizeof said);
    bool secure_wrote = unlink(statistics) == 0;
    unlink(plain);
    unlink(secure);
    rmdir(folder);

    if (!secure_is_secure) skip("set-user-ID bits have no effect here");
    expect(!plain_is_secure, "the plain copy is AT_SECURE too");
    expect(!case_hak_owns || (plain_wrote && plain_spoke && plain_answers),
           "without AT_SECURE the settings are not heard either");
    expect(!secure_wrote, "HAKMEM_STATS wrote a file with the rights of another user");
    expect(strcmp(said, "secure\n") == 0, "with AT_SECURE it said: %s", said);
}

static const struct hak_case cases[] = {
    {.name = "settings", .run = run_settings, .seconds = 120, .memory_mib = 512, .victim = victim_report},
};

CASE_MAIN(cases)
