/* Libraries that come and go: plugins of others, and hakmem itself opened at run time.
 * Arguments: the plugin's path, libhakmem's path; or those of two plugins, as plugin_interpreter.c has them. */
#include "plugin.h"

#include "churn.h"

static const char *plugin_path(void) {
    expect(case_arguments[0], "the plugin's path is missing");
    return case_arguments[0];
}

static void work_and_close(void *library, unsigned seed, bool same_heap) {
    expect(library, "%s", dlerror());
    plugin_work *work;
    *(void **)&work = dlsym(library, "plugin_run");
    expect(work, "%s", dlerror());
    unsigned char *kept = work(seed);
    expect(kept, "the plugin's blocks were wrong");
    dlclose(library);
    if (!same_heap) return;
    expect(case_owns(kept), "the plugin does not allocate from hakmem");
    expect(churn_is_filled(kept, PLUGIN_KEPT_BYTES, PLUGIN_KEPT_TAG), "a block of the plugin has changed");
    free(kept);
}

/* ---- Opened and closed by four threads ------------------------------------------------------------------------- */

static void *open_and_close(void *seed) {
    for (unsigned i = 0; i < 150; i++) {
        work_and_close(dlopen(plugin_path(), RTLD_NOW | RTLD_LOCAL), (unsigned)(uintptr_t)seed + i, true);
    }
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[4];
    struct churners churners = {0};
    churners_start(&churners, 2);
    for (uintptr_t i = 0; i < 4; i++) {
        expect(pthread_create(&threads[i], NULL, open_and_close, (void *)(i * 1000)) == 0, "no thread");
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    churners_stop(&churners);
}

/* ---- Name spaces ----------------------------------------------------------------------------------------------- */

/* The plugin gets a libc of its own there, with that libc's malloc: two heaps side by side. */
static void run_namespace(void) {
    for (unsigned i = 0; i < 10; i++) {
        work_and_close(dlmopen(LM_ID_NEWLM, plugin_path(), RTLD_NOW), i, false);
        churn_once(i, 1000, 64 << 10);
    }
}

/* ---- hakmem opened at run time, in a process that does not use it ------------------------------------------------ */

struct opened {
    void *library;
    void *(*allocate)(size_t);
    void (*release)(void *);
    int (*owns)(const void *);
};

static const char *hakmem_path(void) {
    expect(case_arguments[0] && case_arguments[1], "libhakmem's path is missing");
    return case_arguments[1];
}

static struct opened open_hakmem(void *library) {
    expect(library, "%s", dlerror());
    struct opened opened = {.library = library};
    *(void **)&opened.allocate = dlsym(library, "hak_malloc");
    *(void **)&opened.release = dlsym(library, "hak_free");
    *(void **)&opened.owns = dlsym(library, "hak_owns");
    expect(opened.allocate && opened.release && opened.owns, "%s", dlerror());
    return opened;
}

static void *use_opened(void *argument) {
    const struct opened *opened = argument;
    void *blocks[1000];
    for (int i = 0; i < 1000; i++) {
        size_t size = (size_t)1 << i % 20;
        blocks[i] = opened->allocate(size);
        expect(blocks[i] && opened->owns(blocks[i]) == 1, "no block of hakmem's");
        memset(blocks[i], i, size);
    }
    for (int i = 0; i < 1000; i++) opened->release(blocks[i]);
    return NULL;
}

static void use_opened_in_threads(struct opened *opened) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) expect(pthread_create(&threads[i], NULL, use_opened, opened) == 0, "no thread");
    use_opened(opened);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* The copy of hakmem in another name space lives beside the one in this. */
static void run_hakmem_namespace(void) {
    struct opened opened = open_hakmem(dlmopen(LM_ID_NEWLM, hakmem_path(), RTLD_NOW));
    use_opened(&opened);
    churn_once(1, 2000, 64 << 10);
    dlclose(opened.library);
    churn_once(2, 2000, 64 << 10);
}

static void run_opened(void) {
    struct opened opened = open_hakmem(dlopen(hakmem_path(), RTLD_NOW | RTLD_LOCAL));
    void *foreign = malloc(10);
    expect(opened.owns(foreign) == 0, "RTLD_LOCAL must not take malloc over");
    free(foreign);
    use_opened_in_threads(&opened);
}

static pthread_barrier_t closed_barrier;

static void *use_after_close(void *argument) {
    use_opened(argument);
    pthread_barrier_wait(&closed_barrier);
    pthread_barrier_wait(&closed_barrier);
    use_opened(argument);
    return NULL;
}

/* Threads that have a cache, and blocks, outlive dlclose: the library must stay. */
static void run_never_unloaded(void) {
    struct opened opened = open_hakmem(dlopen(hakmem_path(), RTLD_NOW | RTLD_LOCAL));
    pthread_t thread;
    pthread_barrier_init(&closed_barrier, NULL, 2);
    expect(pthread_create(&thread, NULL, use_after_close, &opened) == 0, "no thread");
    pthread_barrier_wait(&closed_barrier);
    dlclose(opened.library);
    expect(dlopen(hakmem_path(), RTLD_NOW | RTLD_NOLOAD), "dlclose has unloaded hakmem");
    pthread_barrier_wait(&closed_barrier);
    pthread_join(thread, NULL);
}

/* ---- An interpreter's place ---------------------------------------------------------------------------------------- */

/* How often the function was called, of a library that is loaded. */
static int *calls_in(void *library) {
    expect(library, "%s", dlerror());
    int *calls = dlsym(library, "plugin_calls");
    expect(calls, "%s", dlerror());
    return calls;
}

static void allocate_sampled(void) {
    for (int i = 0; i < 1000; i++) free(malloc(60000));
}

/* The heap profile has found an interpreter, which goes, and another library gets its addresses: nothing in that one
 * may be called. */
static void run_in_place(void) {
    int (*start)(size_t);
    *(void **)&start = dlsym(RTLD_DEFAULT, "hak_profile_start");
    expect(start && case_arguments[0] && case_arguments[1], "no hakmem, or a path is missing");
    void *library = dlopen(case_arguments[0], RTLD_NOW | RTLD_LOCAL);
    int *calls = calls_in(library), *place = NULL;
    expect(start(1000) == 0, "no profile");
    allocate_sampled();
    expect(*calls > 0, "the interpreter isn't asked");
    for (int i = 0; i < 100 && place != calls; i++) {
        dlclose(library);
        library = dlopen(case_arguments[1], RTLD_NOW | RTLD_LOCAL);
        place = calls_in(library);
    }
    if (place != calls) skip("no library gets the place of another");
    allocate_sampled();
    expect(*place == 0, "a library that is no interpreter was called %d times", *place);
}

static const struct hak_case cases[] = {
    {.name = "threads", .run = run_threads, .seconds = 120, .memory_mib = 1024},
    {.name = "namespace", .run = run_namespace, .seconds = 120, .memory_mib = 1024},
    {.name = "hakmem-namespace", .run = run_hakmem_namespace, .seconds = 120, .memory_mib = 1024},
    {.name = "in-place", .run = run_in_place, .seconds = 120, .memory_mib = 1024},
    {.name = "opened", .run = run_opened, .seconds = 120, .memory_mib = 1024, .without_preload = true},
    {.name = "never-unloaded", .run = run_never_unloaded, .seconds = 120, .memory_mib = 1024, .without_preload = true},
};

CASE_MAIN(cases)
