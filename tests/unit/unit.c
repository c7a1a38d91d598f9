#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool run_one(const struct CMUnitTest *test) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) exit(_cmocka_run_group_tests(test->name, test, 1, NULL, NULL));
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) fprintf(stderr, "%s failed: wait status %#x\n", test->name, (unsigned)status);
    return status == 0;
}

int unit_run(const struct CMUnitTest *tests, size_t count, const char *only) {
    int failed = 0, run = 0;
    for (size_t i = 0; i < count; i++) {
        if (only != NULL && strcmp(only, tests[i].name) != 0) continue;
        run++;
        failed += !run_one(&tests[i]);
    }
    return run == 0 ? 1 : failed;
}

void unit_read_all(int descriptor, char *text, size_t bytes) {
    for (size_t length = 0; length < bytes - 1;) {
        ssize_t got = read(descriptor, text + length, bytes - 1 - length);
        if (got <= 0) break;
        length += (size_t)got;
    }
    close(descriptor);
}

bool unit_is_accessible(const void *address) {
    static int ends[2];
    char byte;
    if (ends[1] == 0) assert_int_equal(pipe(ends), 0);
    if (write(ends[1], address, 1) != 1) return false;
    assert_int_equal(read(ends[0], &byte, 1), 1);
    return true;
}
