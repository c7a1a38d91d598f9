/* os/libc.h against the dynamic linker's own answer. */
#include "unit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

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
    qsort(numbers, 2, sizeof numbers[0], note_caller); /* libc calls back */
    assert_true(hak_os_is_library_code(caller));
    assert_true(hak_os_is_library_code(dlsym(libc, "pthread_getattr_default_np")));
    assert_true(hak_os_is_library_code(dlsym(RTLD_DEFAULT, "__tls_get_addr"))); /* the dynamic linker's */
    assert_false(hak_os_is_library_code((void *)(uintptr_t)whose_code)); /* hakmem's, but linked into the program */
    assert_false(hak_os_is_library_code(NULL));
    assert_false(hak_os_is_library_code(numbers));
}

UNIT_MAIN(cmocka_unit_test(whose_code), cmocka_unit_test(as_the_linker_says), cmocka_unit_test(what_is_not_there))
