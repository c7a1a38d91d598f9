/* The form that a run is in: the default one, the hardened profile or the secure build, by what only it does. The run is
 * told by HAK_TEST_FORM which it is to be; tests/CMakeLists.txt sets that beside what chooses the form. */
#include "expect.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Whether a look at all blocks can be had. */
static int looks_at_blocks(void) {
#if defined(API_HAK) || defined(API_LINKED)
    return hak_heap_check() == 0;
#else
    int (*check)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "hak_heap_check");
    EXPECT(check, "there is no hak_heap_check");
    return check() == 0;
#endif
}

/* Whether a second free of a block, with another one in between, ends the program. */
static int ends_at_second_free(void) {
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        void *first = M(malloc)(48), *other = M(malloc)(48);
        M(free)(first);
        M(free)(opaque_pointer(other));
        M(free)(opaque_pointer(first));
        _exit(0);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child, "no child");
    EXPECT(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT), "wait status %#x", (unsigned)status);
    return status != 0;
}

static void as_told(void) {
    const char *told = getenv("HAK_TEST_FORM");
    int looks = looks_at_blocks(), ends = ends_at_second_free();
    const char *found = looks ? "secure" : ends ? "hardened" : "default";
    EXPECT(ends || !looks, "a secure build that misses a second free");
    EXPECT(strcmp(found, told ? told : "default") == 0, "told %s, but it is %s", told ? told : "nothing", found);
}

static const struct test_case cases[] = {{"as_told", as_told}};

int main(int argc, char **argv) { return run_case(argc, argv, cases, COUNT_OF(cases), 60); }
