/* A signal that the program keeps blocked, and pending, is nobody else's: hakmem's thread comes and ends beside it.
 *
 *     pending        with hakmem preloaded: has threads for a while, blocks SIGUSR1, sends itself the signal, waits until it is alone
 *                    again, and takes the signal itself.
 *     pending sys    the same with SIGSYS, which is blocked before there are threads. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "../resource/process.h"

#include <dirent.h>

static int count_tasks(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) count += task->d_name[0] != '.';
    if (tasks != NULL) closedir(tasks);
    return count;
}

static void *allocate(void *unused) {
    (void)unused;
    static char *blocks[40000];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = malloc(1000);
        EXPECT(blocks[i] != NULL, "malloc");
        blocks[i][0] = 1;
    }
    for (int i = 0; i < 30000 && count_tasks() < 3; i++) {
        free(malloc(100000));
        usleep(10000);
    }
    EXPECT(count_tasks() >= 3, "hakmem has no thread");
    for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
    return NULL;
}

int main(int argc, char **argv) {
    (void)argv;
    int signal = argc > 1 ? SIGSYS : SIGUSR1;
    pthread_t thread;
    sigset_t blocked;
    free(malloc(1));
    sigemptyset(&blocked);
    sigaddset(&blocked, signal);
    alarm(600);
    EXPECT(find_owns() != NULL, "not on hakmem");
    if (argc > 1) EXPECT(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0, "sigprocmask");
    EXPECT(pthread_create(&thread, NULL, allocate, NULL) == 0, "no thread"); /* which has all signals open */
    pthread_join(thread, NULL);
    EXPECT(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0, "sigprocmask");
    if (argc > 1) { /* while hakmem's threads are there */
        EXPECT(count_tasks() > 1, "hakmem's threads are gone");
        for (int i = 0; i < 20; i++) kill(getpid(), signal);
    }
    kill(getpid(), signal);
    for (int i = 0; i < 30000 && count_tasks() > 1; i++) usleep(10000);
    EXPECT(count_tasks() == 1, "hakmem's threads stay");
    int got = 0;
    EXPECT(sigwait(&blocked, &got) == 0 && got == signal, "signal %d", got);
    return 0;
}
