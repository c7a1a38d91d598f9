/* AFL++ in persistent mode: one process runs many programs, which it finds in shared memory. */
#include <unistd.h>

#include "execute.h"

__AFL_FUZZ_INIT();

enum { PROGRAMS_PER_PROCESS = 1000 };

int main(int argc, char **argv) {
    static struct program program;
    (void)argc;
    execute_begin(argv);
    __AFL_INIT();
    const unsigned char *bytes = __AFL_FUZZ_TESTCASE_BUF;
    while (__AFL_LOOP(PROGRAMS_PER_PROCESS)) {
        program_decode(&program, bytes, (size_t)__AFL_FUZZ_TESTCASE_LEN);
        execute(&program);
    }
    return 0;
}
