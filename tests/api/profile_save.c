/* hak_profile_save: what it needs of the thread that calls it, and what of the program it touches. */
#include "expect.h"
#include "in_stack.h"

#include <pthread.h>
#include <sys/stat.h>

static int (*profile_save)(const char *path);

static void begin(void) {
    int (*profile_start)(size_t interval) = (int (*)(size_t))dlsym(RTLD_DEFAULT, "hak_profile_start");
    profile_save = (int (*)(const char *))dlsym(RTLD_DEFAULT, "hak_profile_save");
    EXPECT(profile_start != NULL && profile_save != NULL && profile_start(1) == 0, "no profile");
    free(malloc(1000));
}

static void save(void) { EXPECT(profile_save("/dev/null") == 0, "no profile"); }

/* Also where the dynamic linker looks functions up at their first call, on the caller's stack. */
static void small_stack(void) {
    begin();
    run_in_stack(save, 8192);
}

static void *save_cancelled(void *saved) {
    pthread_cancel(pthread_self());
    save();
    *(int *)saved = 1;
    return NULL;
}

/* No thread ends within it, with files open and a profile cut off. */
static void cancelled(void) {
    pthread_t thread;
    int saved = 0;
    begin();
    EXPECT(pthread_create(&thread, NULL, save_cancelled, &saved) == 0, "no thread");
    EXPECT(pthread_join(thread, NULL) == 0 && saved == 1, "the thread ended before");
}

/* It looks into files of programs, not into memory that is shared: that may be a device, or not be there yet. */
static void touches_nothing(void) {
    enum { BYTES = 1 << 20 };
    struct stat status;
    int file = memfd_create("shared", MFD_CLOEXEC);
    EXPECT(file >= 0 && ftruncate(file, BYTES) == 0, "no file");
    EXPECT(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED, "no mapping");
    begin();
    save();
    EXPECT(fstat(file, &status) == 0 && status.st_blocks == 0, "%ld blocks were touched", (long)status.st_blocks);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"small_stack", small_stack},
        {"cancelled", cancelled},
        {"touches_nothing", touches_nothing},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
