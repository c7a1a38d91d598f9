/* Plug-ins that a program loads with RTLD_DEEPBIND. `deepbind_which` of the program and of the plug-in tell by what they
 * return whose the plug-in calls. */
#include "../../api/expect.h"

#include <link.h>

#define ASKED "abuse_deepbind_plugin.so"

int deepbind_which(void);
int deepbind_which(void) { return 1; }

#ifdef OWN_MALLOC
/* The program's own malloc, which frees nothing: hakmem serves nobody. */
static _Alignas(16) char space[8 << 20];
static size_t used;

void *malloc(size_t size) {
    char *block = space + __atomic_fetch_add(&used, (size + 31) / 16 * 16, __ATOMIC_RELAXED) + 16;
    memcpy(block - 16, &size, sizeof size);
    return block;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }
void *realloc(void *block, size_t size) {
    void *moved = malloc(size);
    size_t before = 0;
    if (block != NULL) memcpy(&before, (char *)block - 16, sizeof before);
    if (block != NULL) memcpy(moved, block, before < size ? before : size);
    return moved;
}
#else
extern void *deepbind_early;
#endif

static void *function_of(void *plugin, const char *name) {
    EXPECT(plugin != NULL, "%s", dlerror());
    void *function = dlsym(plugin, name);
    EXPECT(function != NULL, "%s", dlerror());
    return function;
}

static int which(void *plugin) { return ((int (*)(void))(uintptr_t)function_of(plugin, "plugin_which"))(); }

#ifdef OWN_MALLOC
int main(void) {
    int found = which(dlopen(ASKED, RTLD_NOW | RTLD_DEEPBIND));
    EXPECT(found == 2, "the plug-in calls %d's", found);
    return 0;
}
#else

static void works_with(void *plugin) {
    EXPECT(((int (*)(void))(uintptr_t)function_of(plugin, "plugin_frees"))(), "it frees what libc has allocated");
    char *given = ((char *(*)(void))(uintptr_t)function_of(plugin, "plugin_gives"))();
    EXPECT(strcmp(given, "given") == 0, "%s", given);
    free(given);
    ((void (*)(char *))(uintptr_t)function_of(plugin, "plugin_takes"))(strcpy(malloc(100), "taken"));
}

/* By its name alone: the program's RUNPATH has its folder. */
static void opened(void) {
    void *plugin = dlopen(ASKED, RTLD_NOW | RTLD_DEEPBIND);
    works_with(plugin);
    EXPECT(which(plugin) == 1, "the flag was kept");
    EXPECT(dlclose(plugin) == 0, "%s", dlerror());
    EXPECT(dlopen("/no/such/file.so", RTLD_NOW | RTLD_DEEPBIND) == NULL && strstr(dlerror(), "/no/such/file.so"),
           "an error");
    EXPECT(dlopen(NULL, RTLD_NOW | RTLD_DEEPBIND) != NULL, "the program itself");
}

static void namespaces(void) {
    void *plugin = dlmopen(LM_ID_BASE, ASKED, RTLD_NOW | RTLD_DEEPBIND);
    works_with(plugin);
    EXPECT(which(plugin) == 1, "the flag was kept");
    void *apart = dlmopen(LM_ID_NEWLM, ASKED, RTLD_NOW | RTLD_DEEPBIND);
    EXPECT(((int (*)(void))(uintptr_t)function_of(apart, "plugin_frees"))(), "in a namespace of its own");
    EXPECT(which(apart) == 2, "in a namespace of its own");
}

static void early(void) {
    EXPECT(deepbind_early != NULL, "a library's constructor can't open it");
    works_with(deepbind_early);
    EXPECT(which(deepbind_early) == 1, "the flag was kept");
}

/* With HAKMEM_DEEPBIND=1. */
static void kept(void) {
    int found = which(dlopen(ASKED, RTLD_NOW | RTLD_DEEPBIND));
    EXPECT(found == 2, "the flag was dropped");
}

/* hakmem, whose path the environment has, is a plug-in itself, behind the C library. */
static void by_handle(void) {
    void *hakmem = dlopen(getenv("DEEPBIND_HAKMEM"), RTLD_NOW | RTLD_LOCAL);
    void *(*other)(const char *, int) = (void *(*)(const char *, int))(uintptr_t)function_of(hakmem, "dlopen");
    void *(*other_in)(Lmid_t, const char *, int) =
        (void *(*)(Lmid_t, const char *, int))(uintptr_t)function_of(hakmem, "dlmopen");
    EXPECT(other != dlopen, "it is libc's");
    EXPECT(other(ASKED, RTLD_NOW) != NULL && other_in(LM_ID_BASE, ASKED, RTLD_NOW) != NULL, "%s", dlerror());
}

/* Behind hakmem there is a library that has a dlopen, too. */
static void wrapped(void) {
    opened();
    const int *count = dlsym(RTLD_DEFAULT, "deepbind_wrapped");
    EXPECT(count != NULL && *count >= 3, "it was not called");
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "by_handle") == 0) return by_handle(), 0; /* not on hakmem */
    static const struct test_case cases[] = {
        {"opened", opened}, {"namespaces", namespaces}, {"early", early}, {"kept", kept}, {"wrapped", wrapped}};
    return run_case(argc, argv, cases, COUNT_OF(cases), 10);
}
#endif
