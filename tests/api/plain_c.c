/* A C program without a C++ library: hakmem's operators new and delete must not ask for one. Run under LD_PRELOAD, and
 * linked to the static library and to the object, also with no shared library at all. */
#include "expect.h"

#include <link.h>
#include <pthread.h>

static int name_library(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    if (strstr(info->dlpi_name, "libstdc++") || strstr(info->dlpi_name, "libc++")) {
        snprintf(found, 200, "%s", info->dlpi_name);
    }
    return 0;
}

static void *use(void *unused) {
    (void)unused;
    void *blocks[500];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = i % 3 ? malloc(i * 40) : calloc(i + 1, 40);
        EXPECT(blocks[i] && owned(blocks[i]), "block %zu is %p", i, blocks[i]);
        memset(blocks[i], 1, i * 40);
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = i % 2 ? realloc(blocks[i], i * 100 + 1) : blocks[i];
        EXPECT(blocks[i], "realloc to %zu", i * 100 + 1);
        free(blocks[i]);
    }
    return NULL;
}

static void works(void) {
    char library[200] = "";
    dl_iterate_phdr(name_library, library);
    EXPECT(!*library, "%s is loaded", library);
    use(NULL);
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        int code = pthread_create(&threads[i], NULL, use, NULL);
        EXPECT(code == 0, "pthread_create gave %d", code);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        pthread_join(threads[i], NULL);
    }
    char *copy = strdup("libc's own block");
    EXPECT(owned(copy), "strdup's block %p is not ours", (void *)copy);
    free(copy);
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    EXPECT(stream && fprintf(stream, "%d", 12345) == 5 && !fclose(stream) && owned(text), "open_memstream's block");
    free(text);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"works", works}};
    return run_case(argc, argv, cases, COUNT_OF(cases), 20);
}
