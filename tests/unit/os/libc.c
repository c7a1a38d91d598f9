/* os/libc.h against the dynamic linker's own answer. */
#include "unit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/libc.h"

/* The program's own, which hide libc's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    (void)thread, (void)attributes, (void)run, (void)argument;
    abort();
}

static void as_the_linker_says(void **state) {
    (void)state;
    static const char *const names[] = {"pthread_create", "malloc", "pthread_join", "fork", "regexec", "nanosleep"};
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc == NULL) skip();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_non_null(hak_os_find_in_libc(names[i]));
        assert_ptr_equal(hak_os_find_in_libc(names[i]), dlsym(libc, names[i]));
    }
    assert_ptr_not_equal(hak_os_find_in_libc("pthread_create"), (void *)(uintptr_t)pthread_create);
}

static void in_any_library(void **state) {
    (void)state;
    assert_ptr_equal(hak_os_find_in_libraries("lfind"), hak_os_find_in_libc("lfind"));
    assert_ptr_equal(hak_os_find_any("in6addr_any"), dlsym(RTLD_DEFAULT, "in6addr_any"));
    assert_null(hak_os_find_in_libraries("in6addr_any")); /* is no function */
    assert_null(hak_os_find_any("hakmem"));
    bool has_runtime = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD) != NULL; /* a sanitizer's */
    if (!has_runtime) assert_null(hak_os_find_in_libraries("_ZSt17__throw_bad_allocv"));
    void *runtime = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
    if (runtime == NULL) skip();
    assert_ptr_equal(hak_os_find_in_libraries("_ZSt17__throw_bad_allocv"), dlsym(runtime, "_ZSt17__throw_bad_allocv"));
}

static void what_is_not_there(void **state) {
    (void)state;
    assert_null(hak_os_find_in_libc("hakmem"));
    assert_null(hak_os_find_in_libc(""));
    assert_null(hak_os_find_in_libc("main"));
    assert_null(hak_os_find_in_libc("stdout")); /* no function */
}

static const void *caller;

__attribute__((noinline)) static int note_caller(const void *a, const void *b) {
    (void)a, (void)b;
    caller = __builtin_return_address(0);
    return 0;
}

static void whose_code(void **state) {
    (void)state;
    int numbers[2] = {0};
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc == NULL) skip();
    hak_os_find_library_code();
    note_caller(NULL, NULL);
    assert_false(hak_os_is_library_code(caller));
    size_t count = 2;
    lfind(numbers, numbers, &count, sizeof numbers[0], note_caller); /* libc calls back; sanitizers don't see it */
    assert_true(hak_os_is_library_code(caller));
    assert_true(hak_os_is_library_code(dlsym(libc, "pthread_getattr_default_np")));
    assert_true(hak_os_is_library_code(dlsym(RTLD_DEFAULT, "_dl_debug_state"))); /* the dynamic linker's */
    assert_false(hak_os_is_library_code((void *)(uintptr_t)whose_code));
    assert_false(hak_os_is_library_code(NULL));
    assert_false(hak_os_is_library_code(numbers));
}

/* The same when the dynamic linker was called with the program's name. */
static void whose_code_by_linker(void **state) {
    (void)state;
    Dl_info linker;
    int status = -1;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their libraries want to be loaded another way */
#endif
    if (getauxval(AT_BASE) == 0 || dladdr(dlsym(RTLD_DEFAULT, "_dl_debug_state"), &linker) == 0) skip();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char path[4096] = "";
        if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) _exit(1);
        execl(linker.dli_fname, linker.dli_fname, path, NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

enum { HAKMEM_NOTE = 0x68616b31 }; /* observe/landmarks.h */

/* Wrapped: tests/abuse/guest/wrapped_malloc.c. Where libc comes first, or a sanitizer's that libc calls, is none. */
static void whose_malloc(void **state) {
    (void)state;
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc == NULL) skip();
    hak_os_find_library_code();
    assert_false(hak_os_is_malloc_wrapped(&libc));                      /* beside no code */
    if (dlsym(RTLD_DEFAULT, "malloc") != dlsym(libc, "malloc")) skip(); /* a sanitizer's */
    assert_false(hak_os_is_malloc_wrapped(dlsym(libc, "fork")));
#ifdef LATE_MALLOC
    void *late = dlopen(LATE_MALLOC, RTLD_LAZY | RTLD_LOCAL);
    assert_non_null(late);
    assert_ptr_not_equal(dlsym(late, "malloc"), dlsym(libc, "malloc"));
    assert_false(hak_os_is_malloc_wrapped(dlsym(late, "malloc")));
    /* Of two that are opened, none is asked but by who has opened it. */
    void *later = dlopen(LATER_MALLOC, RTLD_LAZY | RTLD_LOCAL);
    assert_non_null(later);
    assert_false(hak_os_is_behind(dlsym(late, "malloc"), "hakmem", HAKMEM_NOTE));
    assert_false(hak_os_is_behind(dlsym(later, "malloc"), "hakmem", HAKMEM_NOTE));
#endif
}

/* Of two that are preloaded the second one is behind the first, whatever without a malloc comes before them. cmocka's
 * library, which comes after both, has none that anybody could call instead. */
static void whose_malloc_is_first(void **state) {
    (void)state;
#ifndef LATE_MALLOC
    skip();
#else
    static const char preloaded[] = "libpthread.so.0:" LATE_MALLOC ":" LATER_MALLOC;
    const char *given = getenv("LD_PRELOAD");
    int status = -1;
    if (dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD) == NULL || getauxval(AT_BASE) == 0) skip();
    if (given == NULL || strcmp(given, preloaded) != 0) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            setenv("LD_PRELOAD", preloaded, 1);
            execl("/proc/self/exe", "libc", "whose_malloc_is_first", NULL);
            _exit(127);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        return;
    }
    void *first = dlopen(LATE_MALLOC, RTLD_LAZY | RTLD_NOLOAD), *second = dlopen(LATER_MALLOC, RTLD_LAZY | RTLD_NOLOAD);
    const void *cmocka = dlsym(RTLD_DEFAULT, "_cmocka_run_group_tests");
    assert_non_null(first);
    assert_non_null(second);
    assert_non_null(cmocka);
    assert_false(hak_os_is_behind(dlsym(first, "malloc"), "hakmem", HAKMEM_NOTE));
    assert_true(hak_os_is_behind(dlsym(second, "malloc"), "hakmem", HAKMEM_NOTE));
    assert_false(hak_os_is_behind(dlsym(second, "malloc"), "hakmem", HAKMEM_NOTE + 1));
    assert_false(hak_os_is_behind(cmocka, "hakmem", HAKMEM_NOTE));
#endif
}

UNIT_MAIN(cmocka_unit_test(whose_malloc), cmocka_unit_test(whose_malloc_is_first), cmocka_unit_test(whose_code),
          cmocka_unit_test(whose_code_by_linker), cmocka_unit_test(as_the_linker_says),
          cmocka_unit_test(in_any_library), cmocka_unit_test(what_is_not_there))
