/* A few blocks, and a thread: for a sanitizer's program, which has nothing wrong. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *use(void *unused) {
    for (size_t size = 1; size < 1000000; size = size * 3 / 2 + 1) {
        char *block = malloc(size), *more;
        if (!block || !(more = realloc(block, size * 2))) abort();
        memset(more, 1, size * 2);
        free(more);
    }
    return unused;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, use, NULL)) abort();
    use(NULL);
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
