/* A library that wraps clock_gettime, and whose constructor works before hakmem's own has run: what hakmem does in a malloc
 * must not come back to it (wrapped.c). It is a library, and with WRAPPED_CLOCK_PROGRAM the program that needs it. */
#include "../../api/expect.h"

#include <dlfcn.h>
#include <time.h>

extern int wrapped_clock_calls;

#ifdef WRAPPED_CLOCK_PROGRAM

int main(void) {
    EXPECT(wrapped_clock_calls == 0, "before main the wrapper was called %d times", wrapped_clock_calls);
    for (int i = 0; i < 3000; i++) free(malloc((size_t)i * 100));
    EXPECT(wrapped_clock_calls == 0, "the wrapper was called %d times", wrapped_clock_calls);
    struct timespec now;
    EXPECT(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && wrapped_clock_calls == 1, "this is the wrapper");
    return 0;
}

#else

int wrapped_clock_calls;

int clock_gettime(clockid_t clock, struct timespec *time) {
    wrapped_clock_calls++;
    return ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, time);
}

/* The C library keeps a text for each error of dlsym's: it asks for memory within the call. */
__attribute__((constructor)) static void work(void) {
    static void *blocks[3000];
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < COUNT_OF(blocks); i++) EXPECT((blocks[i] = malloc(i + 1)) != NULL, "no memory");
        for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
        EXPECT(dlsym(RTLD_DEFAULT, "no_such_function_at_all") == NULL && dlerror() != NULL, "no error");
    }
}

#endif
