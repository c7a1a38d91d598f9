/* The whole interface is ours at run time: every listed symbol is found in the library that has malloc, and a block of
 * any entry point may be freed by any other. */
#include "expect.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *__libc_valloc(size_t size);
void *__libc_pvalloc(size_t size);
void __libc_free(void *block);

/* ---- Symbols ---- */

static const char *symbols_path;

static const char *library_of(void *address) {
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fname : "nothing";
}

static void symbols(void) {
    if (!symbols_path) {
        say("usage: interface symbols FILE\n");
        _exit(EXIT_USE);
    }
    FILE *file = fopen(symbols_path, "r");
    EXPECT(file, "cannot open %s", symbols_path);
    const char *ours = library_of(dlsym(RTLD_DEFAULT, "malloc"));
    char line[200];
    int count = 0;
    int foreign = 0;
    while (fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        if (!*line || *line == '#') {
            continue;
        }
        count++;
        const char *found = library_of(dlsym(RTLD_DEFAULT, line));
        if (strcmp(found, ours) != 0) {
            say("%s: in %s, not in %s\n", line, found, ours);
            foreign++;
        }
    }
    fclose(file);
    EXPECT(count > 20 && !foreign, "%d of %d symbols are not ours", foreign, count);
}

/* ---- Any entry point against any free ---- */

/* Old programs have two names that nothing new can link to. */
static int (*old_posix_memalign)(void **block, size_t alignment, size_t size);
static void (*old_cfree)(void *block);

static void find_old_names(void) {
    old_posix_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_DEFAULT, "__posix_memalign");
    old_cfree = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");
    if (any_allocator_allowed()) {
        old_posix_memalign = old_posix_memalign ? old_posix_memalign : posix_memalign;
        old_cfree = old_cfree ? old_cfree : free;
    }
    EXPECT(old_posix_memalign && old_cfree, "no __posix_memalign or no cfree");
}

static void *by_realloc(size_t size) { return realloc(NULL, size); }

static void *by_calloc(size_t size) { return calloc(1, size); }

static void *by_reallocarray(size_t size) { return reallocarray(NULL, 1, size); }

static void *by_aligned_alloc(size_t size) { return aligned_alloc(64, size); }

static void *by_memalign(size_t size) { return memalign(256, size); }

static void *by_posix_memalign(size_t size) {
    void *block = NULL;
    int code = posix_memalign(&block, 128, size);
    return code ? NULL : block;
}

static void *by_libc_calloc(size_t size) { return __libc_calloc(size, 1); }

static void *by_libc_realloc(size_t size) { return __libc_realloc(NULL, size); }

static void *by_libc_memalign(size_t size) { return __libc_memalign(64, size); }

static void *by_libc_posix_memalign(size_t size) {
    void *block = NULL;
    int code = old_posix_memalign(&block, 64, size);
    return code ? NULL : block;
}

static void *by_mallocx(size_t size) { return mallocx(size, 0x106); } /* aligned to 64 bytes, past the thread's cache */

static void *by_rallocx(size_t size) { return rallocx(malloc(1), size, 0); }

enum { TOKEN = 12345 };

static void *by_token_malloc(size_t size) { return __alloc_token_malloc(size, TOKEN); }

static void *by_token_calloc(size_t size) { return __alloc_token_calloc(size, 1, TOKEN); }

static void *by_token_realloc(size_t size) { return __alloc_token_realloc(malloc(1), size, TOKEN); }

static void *by_token_reallocarray(size_t size) { return __alloc_token_reallocarray(NULL, 1, size, TOKEN); }

static void *by_token_aligned_alloc(size_t size) { return __alloc_token_aligned_alloc(64, size, TOKEN); }

static void *by_token_memalign(size_t size) { return __alloc_token_memalign(64, size, TOKEN); }

static void *by_token_posix_memalign(size_t size) {
    void *block = NULL;
    int code = __alloc_token_posix_memalign(&block, 64, size, TOKEN);
    return code ? NULL : block;
}

static void *by_token_valloc(size_t size) { return __alloc_token_valloc(size, TOKEN); }

static void *by_token_pvalloc(size_t size) { return __alloc_token_pvalloc(size, TOKEN); }

static void *by_strdup(size_t size) {
    static char text[MIB];
    memset(text, 'x', sizeof(text) - 1);
    return strndup(text, size - 1);
}

static const struct {
    const char *name;
    void *(*call)(size_t size);
} entries[] = {
    {"malloc", malloc},
    {"calloc", by_calloc},
    {"realloc", by_realloc},
    {"reallocarray", by_reallocarray},
    {"aligned_alloc", by_aligned_alloc},
    {"memalign", by_memalign},
    {"posix_memalign", by_posix_memalign},
    {"valloc", valloc},
    {"pvalloc", pvalloc},
    {"__libc_malloc", __libc_malloc},
    {"__libc_calloc", by_libc_calloc},
    {"__libc_realloc", by_libc_realloc},
    {"__libc_memalign", by_libc_memalign},
    {"__libc_valloc", __libc_valloc},
    {"__libc_pvalloc", __libc_pvalloc},
    {"__posix_memalign", by_libc_posix_memalign},
    {"mallocx", by_mallocx},
    {"rallocx", by_rallocx},
    {"__alloc_token_malloc", by_token_malloc},
    {"__alloc_token_calloc", by_token_calloc},
    {"__alloc_token_realloc", by_token_realloc},
    {"__alloc_token_reallocarray", by_token_reallocarray},
    {"__alloc_token_aligned_alloc", by_token_aligned_alloc},
    {"__alloc_token_memalign", by_token_memalign},
    {"__alloc_token_posix_memalign", by_token_posix_memalign},
    {"__alloc_token_valloc", by_token_valloc},
    {"__alloc_token_pvalloc", by_token_pvalloc},
    {"strndup", by_strdup},
};

static void end_by_realloc(void *block, size_t size) { free(realloc(block, size * 2)); }

static void end_by_realloc_zero(void *block, size_t size) {
    (void)size;
    void *rest = realloc(block, opaque(0));
    EXPECT(!rest || any_allocator_allowed(), "realloc(p, 0) gave %p", rest);
}

static void end_by_reallocarray(void *block, size_t size) { free(reallocarray(block, size, 3)); }

static void end_by_libc_realloc(void *block, size_t size) { __libc_free(__libc_realloc(block, size + 100)); }

static void end_by_free(void *block, size_t size) {
    (void)size;
    free(block);
}

static void end_by_libc_free(void *block, size_t size) {
    (void)size;
    __libc_free(block);
}

static void end_by_cfree(void *block, size_t size) {
    (void)size;
    old_cfree(block);
}

static void end_by_dallocx(void *block, size_t size) {
    (void)size;
    dallocx(block, 0x100);
}

static void end_by_sdallocx(void *block, size_t size) { sdallocx(block, size, 0); }

static void end_by_rallocx(void *block, size_t size) { free(rallocx(block, size * 2, 0x8)); }

static void end_by_sized_free(void *block, size_t size) { HAS_SIZED_FREE ? free_sized(block, size) : free(block); }

static void matrix(void) {
    static void (*const ends[])(void *, size_t) = {
        end_by_free,         end_by_libc_free, end_by_realloc, end_by_realloc_zero, end_by_reallocarray,
        end_by_libc_realloc, end_by_cfree,     end_by_dallocx, end_by_sdallocx,     end_by_rallocx};
    static const size_t sizes[] = {1, 16, 100, 1024, 5000, 40000, 300000};
    find_old_names();
    for (int round = 0; round < 20; round++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            for (size_t e = 0; e < COUNT_OF(entries); e++) {
                for (size_t f = 0; f < COUNT_OF(ends); f++) {
                    char *block = entries[e].call(sizes[s]);
                    EXPECT(block && owned(block), "%s of %zu bytes gave %p", entries[e].name, sizes[s], (void *)block);
                    EXPECT(malloc_usable_size(block) >= sizes[s], "usable size of %s's block", entries[e].name);
                    ends[f](block, sizes[s]);
                }
            }
            end_by_sized_free(malloc(sizes[s]), sizes[s]);
            end_by_sized_free(__libc_malloc(sizes[s]), sizes[s]);
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"symbols", symbols}, {"matrix", matrix}};
    symbols_path = argc > 2 ? argv[2] : NULL;
    return run_case(argc, argv, cases, COUNT_OF(cases), 20);
}
