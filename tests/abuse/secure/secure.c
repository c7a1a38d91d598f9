/* The secure build: freed blocks wait, are zero, and are looked at when they come out and when they are handed out;
 * what a sized delete is told is compared; behind each block lies a canary. Frees are chosen so many that a block that
 * waits has come out, but for a chance that no run will meet. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/bits.h"
#include "base/siphash.h"
#include "case.h"
#include "operators.h"

enum { SIZE = 56, BLOCK = 64 /* with its canary */, PLACES = 320 /* of these, 20 KiB */, LONG = 40 * PLACES };

/* Of a page run, and of an object with a mapping of its own. */
enum { RUN = 100000, MAPPING = (64 << 20) + 1000 };

/* All libraries have the address that a program of a fixed place takes, which is in the program. Of what makes a block
 * and what frees it, it mostly takes one. */
__attribute__((used)) static void take_addresses(void) {
    hidden((void *)(uintptr_t)free);
    hidden((void *)(uintptr_t)new_block);
    hidden((void *)(uintptr_t)delete_aligned);
}

static void free_many(int count, size_t size) {
    for (int i = 0; i < count; i++) free(hidden(malloc(size)));
}

/* With more live ones than wait: all that wait come out. */
static void free_old_ones(void) {
    enum { LIVE = 8 * PLACES };
    static void *live[LIVE];
    for (int i = 0; i < LONG; i++) {
        free(live[i % LIVE]);
        live[i % LIVE] = malloc(SIZE);
    }
}

/* More live ones than a cache has, so that later ones lie elsewhere. */
static char *block_of(size_t size) {
    for (int i = 0; i < 100; i++) expect(hidden(malloc(size)) != NULL, "no block");
    char *block = malloc(size);
    memset(block, 'a', size);
    return block;
}

static void *free_in_thread(void *block) {
    free(block);
    return NULL;
}

static void by_thread(void *block) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_in_thread, block) == 0, "no thread");
    pthread_join(thread, NULL);
}

/* Frees the block, and writes to it, in a thread that sleeps then. */
static void *free_and_write(void *is_done) {
    char *block = block_of(3 * SIZE);
    case_print(1, "%#lx", (unsigned long)(uintptr_t)block);
    free(block);
    *(volatile char *)hidden(block + 7) = 1;
    atomic_store((atomic_bool *)is_done, true);
    pause();
    return NULL;
}

static void write_in_sleeper(void) {
    static atomic_bool is_done;
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_and_write, &is_done) == 0, "no thread");
    while (!atomic_load(&is_done)) usleep(1000);
}

/* Two threads free a block at once. */
static atomic_int racers;
static void *free_at_once(void *block) {
    case_meet(&racers);
    free(block);
    return NULL;
}

static void free_in_two(void *block) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_at_once, block) == 0, "no thread");
    free_at_once(block);
    pthread_join(thread, NULL);
}

/* Another frees the block while this one makes it larger. */
static void free_and_resize(void *block, size_t size) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_at_once, block) == 0, "no thread");
    case_meet(&racers);
    block = realloc(block, size);
    pthread_join(thread, NULL);
    _exit(hidden(block) == NULL);
}

static void *told(void *block) {
    case_print(1, "%#lx", (unsigned long)(uintptr_t)block);
    return hidden(block);
}

static void misuse_families(const char *what, void *block) {
    if (!strcmp(what, "malloc-delete")) delete_block(hidden(block));
    if (!strcmp(what, "new-free")) free(told(new_block(SIZE)));
    if (!strcmp(what, "new-delete-array")) delete_array(told(new_block(SIZE)));
    if (!strcmp(what, "array-delete")) delete_block(told(new_array(SIZE)));
    if (!strcmp(what, "aligned-delete")) delete_block(told(new_aligned(SIZE + 8, 64)));
    if (!strcmp(what, "new-aligned-delete")) delete_aligned(told(new_block(SIZE)), 64);
    if (!strcmp(what, "new-realloc")) free(hidden(realloc(new_block(SIZE), 10 * SIZE)));
    if (!strcmp(what, "new-realloc-stays")) free(hidden(realloc(new_block(SIZE), SIZE - 1)));
    if (!strcmp(what, "new-realloc-large")) free(hidden(realloc(new_block(RUN), 2 * RUN)));
    if (!strcmp(what, "alignment")) delete_aligned(told(new_aligned(SIZE + 8, 64)), 32);
    if (!strcmp(what, "aligned-new-delete-array")) delete_array_aligned(told(new_aligned(SIZE + 8, 64)), 64);
    if (!strcmp(what, "aligned-array-delete")) delete_aligned(told(new_array_aligned(SIZE + 8, 64)), 64);
}

static void *function(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    expect(found != NULL, "there is no %s", name);
    return found;
}

static void free_sized_as(void *block, size_t size) {
    void (*sized)(void *, size_t) = NULL;
    *(void **)&sized = function("hak_free_sized");
    sized(block, size);
}

static void free_aligned_sized_as(void *block, size_t alignment, size_t size) {
    void (*sized)(void *, size_t, size_t) = NULL;
    *(void **)&sized = function("hak_free_aligned_sized");
    sized(block, alignment, size);
}

static void check_heap(void) {
    int (*check)(void) = NULL;
    *(void **)&check = function("hak_heap_check");
    expect(check != NULL && check() == 0, "the heap isn't looked at");
}

/* After its free, or when it has moved. What can be touched ends well. */
static void use_freed_large(const char *what, char *large, size_t size) {
    volatile char *at = hidden(large + size / 2);
    if (!strcmp(what, "moved")) {
        expect(hidden(malloc(size)) != NULL && hidden(realloc(large, 10 * size)) != large, "it didn't move");
    } else {
        free(large);
    }
    if (!strncmp(what, "waiting", 7)) free_many(30, size);
    if (strstr(what, "twice") != NULL) free(hidden(large));
    if (!strcmp(what, "then-static")) free(told((void *)(uintptr_t) "no block"));
    if (!strcmp(what, "child") && fork() != 0) {
        int status;
        expect(wait(&status) > 0, "no child");
        if (WIFSIGNALED(status)) raise(WTERMSIG(status));
        _exit(0);
    }
    if (!strcmp(what, "written")) *at = 1;
    _exit(*at & 0);
}

/* As far as the longest slab reaches, and ends as programs do that have done nothing wrong. */
static void write_far(volatile char *block) {
    enum { LONGEST_SLAB = 256 << 10 };
    for (size_t at = 0; at < LONGEST_SLAB; at++) block[at] = 0;
    _exit(0);
}

/* Of large objects. Their names begin with "run-" or "mapping-". */
static void misuse_large(const char *what, size_t size) {
    char *large = !strncmp(what, "new-", 4) || !strncmp(what, "array-", 6) ? NULL : told(malloc(size));
    if (!strcmp(what, "new-free")) free(told(new_block(size)));
    if (!strcmp(what, "array-delete")) delete_block(told(new_array(size)));
    if (!strcmp(what, "new-realloc")) free(hidden(realloc(told(new_block(size)), 2 * size)));
    if (!strcmp(what, "new-aligned-delete")) delete_block(told(new_aligned(size, 128)));
    if (!strcmp(what, "malloc-delete")) delete_array(large);
    if (!strncmp(what, "freed-", 6)) use_freed_large(what + 6, large, size);
    if (!strncmp(what, "overflow-", 9)) large[size] = 0;
    if (!strcmp(what, "overflow-free")) free(large);
    if (!strcmp(what, "overflow-realloc")) free(hidden(realloc(large, size + 100)));
    if (!strcmp(what, "overflow-moved")) free(hidden(realloc(large, 10)));
    if (!strcmp(what, "overflow-check")) {
        check_heap();
        _exit(0); /* unnoticed */
    }
    if (!strcmp(what, "twice-at-once")) free_in_two(large);
    if (!strcmp(what, "resized-at-once")) free_and_resize(large, size + 100);
    if (!strcmp(what, "grown-at-once")) free_and_resize(large, 2 * size);
    if (!strcmp(what, "guard")) large[size + 2 * 4096] = 1;
    if (!strcmp(what, "last-free")) {
        large[(size | 4095)] ^= 1;
        free(large);
    }
}

/* Behind what was asked for, in what a block has besides. Their names begin with "asked-". */
static void misuse_asked(const char *what) {
    char *block = told(!strcmp(what, "aligned") ? aligned_alloc(64, 41) : malloc(!strcmp(what, "wide") ? 1100 : 41));
    void *(*resize)(void *, size_t, int) = NULL;
    *(void **)&resize = function("rallocx");
    if (!strcmp(what, "wide")) block[1100 + 15] = 'a';
    else block[41] = 0;
    if (!strcmp(what, "realloc")) free(hidden(realloc(block, 42)));
    if (!strcmp(what, "realloc-moves")) free(hidden(realloc(block, 400)));
    if (!strcmp(what, "rallocx")) free(hidden(resize(block, 42, 5)));
    if (!strcmp(what, "usable")) hidden((void *)(uintptr_t)malloc_usable_size(block));
    if (!strcmp(what, "resized")) { /* what was right behind it was its own before */
        block[41] = (char)0x80;
        block = realloc(told(malloc(44)), 40);
        block[40] = 0;
    }
    if (!strcmp(what, "check")) {
        check_heap();
        _exit(0); /* unnoticed */
    }
    free(block);
}

static void *unaligned(void) {
    void *block = malloc(SIZE);
    return (uintptr_t)block % 4096 != 0 ? block : malloc(SIZE);
}

static void victim(const char *what) {
    if (!strncmp(what, "asked-", 6)) misuse_asked(what + 6);
    if (!strncmp(what, "far-", 4)) write_far(malloc(strtoul(what + 4, NULL, 10)));
    if (!strcmp(what, "class-smaller")) delete_sized(told(new_block(SIZE)), SIZE - 1);
    if (!strcmp(what, "class-larger")) delete_sized(told(new_array(SIZE - 8)), SIZE - 7);
    if (!strcmp(what, "class-resized")) free_sized_as(hidden(realloc(told(malloc(SIZE)), SIZE - 2)), SIZE);
    if (!strcmp(what, "class-aligned")) delete_sized_aligned(told(new_aligned(SIZE, 64)), SIZE + 1, 64);
    if (!strcmp(what, "unaligned")) free_aligned_sized_as(told(unaligned()), 4096, SIZE);
    if (!strcmp(what, "no-alignment")) free_aligned_sized_as(told(malloc(SIZE)), 48, SIZE);
    if (!strcmp(what, "class-none")) free_sized_as(told(malloc(2)), 0);
    if (!strncmp(what, "run-", 4)) misuse_large(what + 4, RUN);
    if (!strncmp(what, "mapping-", 8)) misuse_large(what + 8, MAPPING);
    char *block = block_of(SIZE);
    case_print(1, "%#lx", (unsigned long)(uintptr_t)block);
    if (!strcmp(what, "smaller")) free_sized_as(hidden(malloc(1000)), 100);
    if (!strcmp(what, "larger")) free_sized_as(block, SIZE + 1);
    if (!strcmp(what, "inside-uncached")) {
        void (*free_past_cache)(void *, int) = NULL;
        *(void **)&free_past_cache = function("dallocx");
        free_past_cache(block + 16, HAK_MALLOCX_TCACHE_NONE);
    }
    if (!strcmp(what, "inside-asked")) free((char *)told(malloc(41)) + 16);
    if (!strcmp(what, "overflow-zero")) block[SIZE] = 0;
    if (!strcmp(what, "overflow-last")) block[SIZE + 7] = 0; /* as one byte before the next block */
    if (!strcmp(what, "overflow-far")) memset(block + SIZE + 5, 'a', 2);
    if (!strncmp(what, "overflow-zeros", 14)) memset(block + SIZE, 0, 8); /* as behind a free block */
    if (!strcmp(what, "overflow-all-zeros")) memset(block, 0, BLOCK);
    if (!strcmp(what, "overflow-zeros-realloc")) free(hidden(realloc(hidden(block), 10 * SIZE)));
    if (!strcmp(what, "overflow-zeros-check")) {
        check_heap();
        _exit(0); /* unnoticed */
    }
    if (!strcmp(what, "overflow-realloc")) {
        block[SIZE] = 'a';
        free(hidden(realloc(hidden(block), 10 * SIZE)));
    }
    if (!strcmp(what, "overflow-thread")) {
        block[SIZE] = 'a';
        by_thread(block);
    }
    if (!strncmp(what, "check-", 6)) {
        check_heap();
        char *freed = block_of(5 * SIZE);
        if (!strcmp(what, "check-overflow")) block[SIZE] = 'a';
        if (!strcmp(what, "check-freed")) {
            case_print(1, "%#lx", (unsigned long)(uintptr_t)freed);
            free(freed);
            *(volatile char *)hidden(freed + 3) = 'a';
        }
        check_heap();
        _exit(0); /* unnoticed */
    }
    misuse_families(what, block);
    if (!strcmp(what, "delete-larger")) delete_sized(told(new_block(SIZE)), SIZE + 1);
    if (!strcmp(what, "aligned-larger")) delete_sized_aligned(told(new_aligned(SIZE + 8, 64)), 200, 64);
    if (!strcmp(what, "large")) free_sized_as(hidden(malloc(100000)), 200000);
    if (!strcmp(what, "large-smaller")) free_sized_as(told(malloc(RUN)), RUN - 1);
    if (!strcmp(what, "large-small")) free_sized_as(told(malloc(RUN)), 100);
    if (!strcmp(what, "mapping-smaller")) free_sized_as(told(malloc(MAPPING)), MAPPING - 4096);
    if (!strcmp(what, "twice-at-once")) free_in_two(hidden(block));
    if (!strcmp(what, "none")) free_sized_as(hidden(malloc(100)), 100000);
    free(block);
    if (!strcmp(what, "twice")) free(hidden(block));
    if (!strncmp(what, "twice-written", 13)) { /* as a destructor does that runs twice */
        *(volatile char *)hidden(block) = 1;
        if (!strcmp(what, "twice-written-by-thread")) by_thread(hidden(block));
        free(hidden(block));
    }
    if (!strcmp(what, "twice-later")) {
        free_many(500, SIZE + 100);
        free_many(200, SIZE);
        free(hidden(block));
    }
    if (!strcmp(what, "twice-by-thread")) by_thread(hidden(block));
    if (!strcmp(what, "realloc")) free(hidden(realloc(hidden(block), 2 * SIZE)));
    if (!strcmp(what, "usable-size")) case_print(1, "%zu", malloc_usable_size(hidden(block)));
    if (!strcmp(what, "written")) {
        *(volatile char *)(block + 24) = 1;
        free_old_ones();
    }
    if (!strncmp(what, "waiting", 7)) { /* of a size that nobody frees again */
        char *waiting = block_of(3 * SIZE);
        case_print(1, "%#lx", (unsigned long)(uintptr_t)waiting);
        free(waiting);
        *(volatile char *)(waiting + 7) = 1;
    }
    if (!strncmp(what, "sleeper", 7)) write_in_sleeper();
    if (!strcmp(what, "waiting-trim") || !strcmp(what, "sleeper-trim")) malloc_trim(0);
    if (!strcmp(what, "waiting-few")) { /* and no more than few blocks of the size */
        for (int i = 0; i < LONG * 4; i++) free(hidden(malloc(3 * SIZE)));
        _exit(0);
    }
    if (!strcmp(what, "written-at-end")) {
        *(volatile char *)(block + SIZE - 1) = 1;
        free_old_ones();
    }
}

static const char *last_line(char *text) {
    size_t length = strlen(text);
    if (length > 0) text[length - 1] = '\0';
    const char *before = strrchr(text, '\n');
    return before == NULL ? text : before + 1;
}

/* The address is the last that the victim has told. */
static void expect_end(const char *argument, const char *words) {
    char line[200];
    struct case_end end = case_watch(argument);
    expect(end.status != -1 && WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT,
           "%s: wait status %#x: %.300s", argument, (unsigned)end.status, end.error);
    snprintf(line, sizeof line, "(%s): %s\n", last_line(end.output), words);
    const char *wanted = strchr(words, '*') == NULL ? line : words + 1;
    expect(strstr(end.error, wanted), "%s: it does not say \"%s\": %.300s", argument, wanted, end.error);
}

/* In one line. */
static void expect_says(const char *argument, const char *first, const char *then) {
    struct case_end end = case_watch(argument);
    const char *line = strstr(end.error, first), *rest = line == NULL ? NULL : strstr(line, then);
    expect(rest != NULL && memchr(line, '\n', (size_t)(rest - line)) == NULL, "%s: not \"%s ... %s\": %.300s", argument,
           first, then, end.error);
}

static void run_twice(void) {
    expect_end("twice", "double free of a block of 56 bytes");
    expect_end("twice-later", "double free of a block of 56 bytes");
    expect_end("twice-by-thread", "double free of a block of 56 bytes");
    expect_end("twice-written", "double free of a block of 56 bytes");
    expect_end("twice-written-by-thread", "double free of a block of 56 bytes");
    for (int i = 0; i < 50; i++) expect_end("twice-at-once", "double free of a block of 56 bytes");
    expect_end("realloc", "invalid pointer: a freed block of 56 bytes");
    expect_end("usable-size", "invalid pointer: a freed block of 56 bytes");
}

static void run_inside(void) {
    expect_end("inside-uncached", "*invalid pointer: 16 bytes into a block of 56 bytes\n");
    expect_end("inside-asked", "*invalid pointer: 16 bytes into a block of 41 bytes\n");
}

static void run_written(void) {
    expect_end("written", "write after free: 24 bytes into a freed block of 56 bytes");
    expect_end("written-at-end", "write after free: 55 bytes into a freed block of 56 bytes");
}

/* With HAKMEM_CRASH=1: the report, too, calls the block free, wherever it was when it was looked at. */
static void run_written_reported(void) {
    static const char *const ways[] = {"written", "waiting-exit", "waiting-trim", "check-freed"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct case_end end = case_watch(ways[i]);
        char line[200];
        snprintf(line, sizeof line, "hakmem: %s is the start of a free block of ", last_line(end.output));
        expect(strstr(end.error, line), "%s: it does not say \"%s\": %.500s", ways[i], line, end.error);
    }
}

/* Behind a block and before it, by free and by realloc. A zero or a letter is never what lies there. */
static void run_overflow(void) {
    expect_end("overflow-zero", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-zeros", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-all-zeros", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-zeros-realloc", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-zeros-check", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-far", "overflow: 5 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-last", "overflow: 7 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-realloc", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
    expect_end("overflow-thread", "overflow: 0 bytes behind the end of a block of 56 bytes were written");
}

/* A block ends where it was asked, whatever has room behind it. */
static void run_asked(void) {
    static const char *const ways[] = {"asked-free",   "asked-realloc", "asked-realloc-moves", "asked-rallocx",
                                       "asked-usable", "asked-check",   "asked-aligned"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_end(ways[i], "overflow: 0 bytes behind the end of a block of 41 bytes were written");
    expect_end("asked-resized", "overflow: 0 bytes behind the end of a block of 40 bytes were written");
    expect_end("asked-wide", "overflow: 15 bytes behind the end of a block of 1100 bytes were written");
}

/* What `made` has is what was asked for, and can be written to. */
static void *exact(void *made, size_t size) {
    char *block = hidden(made);
    expect(block != NULL && malloc_usable_size(block) == size, "%zu usable bytes of %zu", malloc_usable_size(block),
           size);
    memset(block, 'a', size);
    return block;
}

/* By each function that makes blocks or changes them, of each size, and freed by the size that was asked for. */
static void run_exact(void) {
    void *(*make)(size_t, int) = NULL;
    void *(*resize)(void *, size_t, int) = NULL;
    size_t (*size_for)(size_t, int) = NULL;
    void (*release)(void *, size_t, int) = NULL;
    void *(*at_least)(size_t, size_t *) = NULL;
    *(void **)&make = function("mallocx"), *(void **)&resize = function("rallocx");
    *(void **)&size_for = function("nallocx"), *(void **)&release = function("sdallocx");
    *(void **)&at_least = function("hak_alloc_at_least");
    for (size_t size = 0; size < 34000; size += size < 3000 ? 1 : 97) {
        size_t usable = size + 1, less = size * 3 / 4 + 1, more = size + 7;
        free_sized_as(exact(malloc(size), size), size);
        free_sized_as(exact(calloc(1, size), size), size);
        free_sized_as(exact(at_least(size, &usable), size), size);
        expect(usable == size, "at least %zu are %zu", size, usable);
        delete_sized(exact(new_block(size), size), size);
        free_sized_as(exact(realloc(exact(malloc(size), size), more), more), more);
        free_sized_as(exact(realloc(exact(malloc(size), size), less), less), less);
        for (int flags = 0; size > 0 && flags < 14; flags += 3) {
            release(exact(make(size, flags), size), size, flags);
            release(exact(make(size, flags | HAK_MALLOCX_TCACHE_NONE), size), size, flags);
            release(exact(resize(exact(make(size, 0), size), more, flags), more), more, flags);
            release(exact(resize(exact(make(size, flags), size), less, 6), less), less, 6);
            free_sized_as(exact(aligned_alloc((size_t)1 << flags, size), size), size);
            expect(size_for(size, flags) == size, "nallocx tells %zu of %zu", size_for(size, flags), size);
        }
    }
    delete_sized(hidden(new_block(0)), 0);
    free_sized_as(hidden(malloc(1)), 0); /* as a runtime's new asks for it */
    char *grown = memset(hidden(realloc(hidden(calloc(1, 2)), 20)), 0, 2);
    for (int i = 0; i < 20; i++) expect(grown[i] == 0, "byte %d isn't zero", i);
    free(grown);
}

static void use_up(void) {
    for (size_t each = 1 << 20; each >= 8; each /= 2)
        while (hidden(malloc(each)) != NULL) continue;
}

/* Where there is no memory, a block that is made smaller stays what it is, and has what was asked for. */
static void run_exact_refused(void) {
    struct rlimit limit = {60 << 20, 60 << 20};
    char *block = hidden(malloc(20000)), *moved;
    size_t size = 9000;
    memset(block, 'a', 20000);
    expect(setrlimit(RLIMIT_AS, &limit) == 0, "no limit");
    use_up();
    for (; size > 8; size /= 3) {
        moved = realloc(block, size);
        expect(moved == block && moved[size - 1] == 'a', "%zu bytes: moved", size);
        expect(malloc_usable_size(moved) == size, "%zu usable bytes of %zu", malloc_usable_size(moved), size);
    }
    moved = realloc(block, 3000);
    expect(moved == block && malloc_usable_size(moved) == 3000, "it has room");
    free_sized_as(moved, 3000);
}

/* The same by rallocx, of blocks that lie well for the alignment by chance, or were made for it, and of objects that
 * can't become small blocks. The size that was asked for last is right. */
static void run_exact_refused_aligned(void) {
    enum { BLOCKS = 400, LARGEST_LOG2 = 17 };
    static const size_t had[] = {900, 5000, 20000, 32768, 100000, 200000, 2000000};
    static const size_t parts[] = {1, 2, 3, 16};
    struct rlimit limit = {900 << 20, 900 << 20};
    static char *blocks[BLOCKS];
    static size_t sizes[BLOCKS];
    static int flags[BLOCKS], made_with[BLOCKS];
    int refused = 0, left = 0;
    void *(*make)(size_t, int) = NULL;
    void *(*resize)(void *, size_t, int) = NULL;
    void (*release)(void *, size_t, int) = NULL;
    *(void **)&make = function("mallocx"), *(void **)&resize = function("rallocx");
    *(void **)&release = function("sdallocx");
    expect(setrlimit(RLIMIT_AS, &limit) == 0, "no limit");
    for (int i = 0; i < BLOCKS; i++) {
        sizes[i] = i % 40 == 0 ? MAPPING / 4 : had[i % 7] - (size_t)i % 50;
        made_with[i] = i % 3 == 0 ? i / 3 % LARGEST_LOG2 : 0;
        blocks[i] = make(sizes[i], made_with[i]);
        expect(blocks[i] != NULL, "no block");
        memset(blocks[i], 'a', sizes[i]);
    }
    for (int i = 0; i < BLOCKS; i++) {
        size_t size = sizes[i] / parts[i / 7 % 4] - (size_t)i % 30;
        flags[i] = (int)((uint64_t)i * 2654435761u >> 7) % LARGEST_LOG2;
        use_up();
        errno = 0;
        char *resized = resize(blocks[i], size, flags[i]);
        expect(errno == (resized == NULL ? ENOMEM : 0), "errno %d", errno);
        if (resized == NULL) {
            refused++;
            flags[i] = made_with[i];
            continue;
        }
        left += resized == blocks[i];
        expect(resized[0] == 'a' && resized[size - 1] == 'a', "%zu bytes of %zu: lost", size, sizes[i]);
        expect((uintptr_t)resized % ((uintptr_t)1 << flags[i]) == 0, "not aligned");
        blocks[i] = resized, sizes[i] = size;
    }
    expect(refused > 20 && left > 100, "%d are refused, %d are left", refused, left);
    for (int i = 0; i < BLOCKS; i++) release(blocks[i], sizes[i], flags[i]);
}

/* What one family of functions made, and another frees. */
static void run_mismatch(void) {
    expect_end("malloc-delete", "mismatch: a block of 56 bytes from malloc");
    expect_end("new-free", "mismatch: a block of 56 bytes from new");
    expect_says("new-realloc", "hakmem: realloc(", "mismatch: a block of 56 bytes from new");
    expect_says("new-realloc-stays", "hakmem: realloc(", "mismatch: a block of 56 bytes from new");
    expect_says("new-realloc-large", "hakmem: realloc(", "mismatch: a block of 100000 bytes from new");
    expect_end("new-delete-array", "mismatch: a block of 56 bytes from new");
    expect_end("array-delete", "mismatch: a block of 56 bytes from new[]");
    expect_end("aligned-delete", "mismatch: a block of 64 bytes from new, aligned to 64");
    expect_end("new-aligned-delete", "mismatch: a block of 56 bytes from new");
    expect_end("alignment", "mismatch: a block of 64 bytes from new, aligned to 64");
    expect_end("aligned-new-delete-array", "mismatch: a block of 64 bytes from new, aligned to 64");
    expect_end("aligned-array-delete", "mismatch: a block of 64 bytes from new[], aligned to 64");
}

static void expect_overflow(const char *argument, int at, size_t size) {
    char line[200];
    snprintf(line, sizeof line, "overflow: %d bytes behind the end of a block of %zu bytes were written", at, size);
    expect_end(argument, line);
}

/* A look at blocks that are live, and at freed ones that wait. */
static void run_check(void) {
    expect_overflow("check-overflow", 0, SIZE);
    expect_end("check-freed", "write after free: 3 bytes into a freed block of 280 bytes");
    expect_overflow("run-overflow-check", 0, RUN);
    expect_overflow("mapping-overflow-check", 0, MAPPING);
}

/* Nothing is said of what is whole. */
static void run_check_whole(void) {
    static char *blocks[3000];
    uint64_t seed = 1;
    for (int i = 0; i < 100000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t at = (seed >> 40) % 3000, size = 8 + (seed >> 20) % (seed >> 60 ? 3000 : 300000);
        if (seed >> 59 & 1) blocks[at] = realloc(blocks[at], size);
        else free(blocks[at]), blocks[at] = seed >> 58 & 1 ? new_block(size) : new_array(size);
        if (!(seed >> 59 & 1)) (seed >> 58 & 1 ? delete_block : delete_array)(blocks[at]), blocks[at] = malloc(size);
        memset(blocks[at], 'a', malloc_usable_size(blocks[at]));
        if (i % 10000 == 5000) malloc_trim(0);
        if (i % 1000 == 0) check_heap();
    }
    check_heap();
}

static void run_large(void) {
    expect_overflow("run-overflow-free", 0, RUN);
    expect_overflow("run-overflow-realloc", 0, RUN);
    expect_overflow("run-overflow-moved", 0, RUN);
    expect_overflow("run-last-free", 2399, RUN);
    expect_overflow("mapping-overflow-free", 0, MAPPING);
    expect_overflow("mapping-overflow-realloc", 0, MAPPING);
    expect_overflow("mapping-overflow-moved", 0, MAPPING);
    expect_overflow("mapping-last-free", 3095, MAPPING);
}

enum { ROUNDS = 100 };

static void run_large_races(void) {
    for (int i = 0; i < ROUNDS; i++) {
        expect_end("run-twice-at-once", "double free of a block of 100000 bytes");
        expect_end("mapping-twice-at-once", "double free of a block of 67109864 bytes");
    }
}

/* The free comes first, or last; or the one that comes second is told; or realloc, which copies, touches what the free
 * has taken away. What neither has done is never told. */
static void run_large_resize_races(void) {
    static const char *const victims[] = {"run-resized-at-once", "run-grown-at-once", "mapping-resized-at-once",
                                          "mapping-grown-at-once"};
    for (int i = 0; i < ROUNDS * 2; i++) {
        struct case_end end = case_watch(victims[i % 4]);
        bool is_told = strstr(end.error, "): double free of a block of ") || strstr(end.error, "): invalid pointer: ");
        bool has_faulted = WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV && end.error[0] == 0;
        expect(end.status == 0 || has_faulted ||
                   (WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT && is_told),
               "%s: wait status %#x: %.300s", victims[i % 4], (unsigned)end.status, end.error);
    }
}

static void expect_fault(const char *argument) {
    struct case_end end = case_watch(argument);
    expect(end.status != -1 && WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV,
           "%s: wait status %#x: %.300s", argument, (unsigned)end.status, end.error);
}

/* A kernel that refuses a system call with this third argument. */
static void refuse(int call, unsigned argument) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    expect(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
           "no filter");
}

/* As a kernel that doesn't know of guards within mappings; and as one that doesn't take them away again. */
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
static void know_no_guards(void) { refuse(SYS_madvise, GUARD_INSTALL); }

/* A large object that was freed, or has moved, can't be touched until many others have been freed. */
static void run_large_waits(void) {
    static const char *const uses[] = {"run-freed-read",  "run-freed-written", "run-freed-waiting",
                                       "run-freed-child", "run-freed-moved",   "mapping-freed-read"};
    for (int guards = 1; guards >= 0; guards--) {
        for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) expect_fault(uses[i]);
        expect_end("run-freed-twice", "double free of a block of 100000 bytes");
        expect_end("run-freed-waiting-twice", "double free of a block of 100000 bytes");
        expect_end("run-freed-then-static", "invalid pointer: not a block of this heap");
        know_no_guards();
    }
    setenv("HAKMEM_CRASH", "1", 1);
    struct case_end end = case_watch("run-freed-read");
    expect(strstr(end.error, "50000 bytes into a free large block of 100000 bytes"), "it says %.300s", end.error);
}

/* The first object of the process that could be closed has a locked page, and goes as it is. */
static void run_large_waits_locked(void) {
    enum { WHOLE = (128 << 10) - 8, TURNS = 300 }; /* it has no guard behind it */
    char *block = malloc(WHOLE);
    memset(block, 1, WHOLE);
    expect(mlock(block + WHOLE / 2, 1) == 0, "it isn't locked");
    free(block);
    for (int i = 0; i < TURNS; i++) {
        char *other = malloc(WHOLE);
        free(hidden(memset(other, 2, WHOLE)));
    }
}

/* Memory that waits is there for who would have none: at a limit of address space. */
static void run_large_waits_at_limit(void) {
    enum { MIB = 1 << 20, ROOM_MIB = 96, LARGE = 48 };
    static char *blocks[LARGE];
    struct rlimit limit = {ROOM_MIB * MIB, ROOM_MIB * MIB};
    expect(setrlimit(RLIMIT_AS, &limit) == 0, "no limit");
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < LARGE; i++) {
            blocks[i] = malloc(MIB - 100);
            expect(blocks[i] != NULL, "turn %d: no block %d of %d", turn, i, LARGE);
            memset(blocks[i], turn, MIB - 100);
        }
        for (int i = 0; i < LARGE; i++) free(blocks[i]);
        char *all = malloc(LARGE * MIB);
        expect(all != NULL, "turn %d: no block of %d MiB", turn, LARGE);
        memset(all, turn, LARGE * MIB);
        free(all);
        for (int i = 0; i < 3000; i++) blocks[i % LARGE] = malloc(8192), free(blocks[i % LARGE]);
    }
}

/* Where the kernel has them within mappings; else one with a mapping of its own has one all the same. */
static void run_large_guards(void) {
    void *probe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(probe, 4096, 102) == 0) expect_fault("run-guard");
    expect_fault("mapping-guard");
    know_no_guards();
    expect_fault("mapping-guard");
}

/* Who writes on behind a small block, whatever its size, gets no further than its slab reaches. */
static void run_slab_guards(void) {
    static const char *const writers[] = {"far-1", "far-24", "far-500", "far-4000", "far-9000", "far-30000"};
    void *probe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(probe, 4096, GUARD_INSTALL) != 0) skip("the kernel has no guards within mappings");
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) expect_fault(writers[i]);
    setenv("HAKMEM_CRASH", "1", 1);
    struct case_end end = case_watch("far-4000");
    expect(strstr(end.error, "behind the last one of a slab of blocks of 4096 bytes"), "it says %.300s", end.error);
    know_no_guards();
    end = case_watch("far-500");
    expect(end.status == 0, "without guards: wait status %#x: %.300s", (unsigned)end.status, end.error);
}

/* Slabs of all sizes and large objects take turns at the same addresses, and each byte is used. */
static void *take_turns(void *seed_at) {
    enum { BYTES = 24 << 20, TURNS = 60, MOST = BYTES / 16 };
    uint64_t seed = (uintptr_t)seed_at;
    char **blocks = malloc(MOST * sizeof *blocks);
    for (int turn = 0; turn < TURNS; turn++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t size = turn % 2 ? 33000 + (seed >> 40) % 600000 : (size_t)8 << (seed >> 60) % 13,
               count = BYTES / (size + 64);
        for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(size), 1, size);
        size_t kept = seed >> 50 & 3 ? count : count - count / 100; /* some slabs stay for a while */
        for (size_t i = 0; i < kept; i++) free(blocks[i]);
        if ((seed >> 48 & 3) == 0) malloc_trim(0);
        for (size_t i = kept; i < count; i++) free(blocks[i]);
    }
    free(blocks);
    return NULL;
}

static void run_slab_turns(void) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, take_turns, (void *)1) == 0, "no thread");
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) {
            take_turns((void *)(uintptr_t)(i + 3));
            _exit(0);
        }
        case_expect_success(child, 100);
    }
    take_turns((void *)2);
    pthread_join(thread, NULL);
}

static void run_slab_turns_refused(void) {
    refuse(SYS_madvise, GUARD_REMOVE);
    run_slab_turns();
}

/* Objects of all sizes, each used in full, come and go, are resized and trimmed, and children do the same. Four
 * threads have up to 600 MiB. */
enum { STRESS_MIB = 1024 };

static void use_large(uint64_t seed, int turns) {
    static __thread char *blocks[16];
    static __thread size_t sizes[16];
    for (int i = 0; i < turns; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t at = seed >> 60, most = (size_t[]){100000, 1 << 20, 6 << 20, 40 << 20}[seed >> 40 & 3];
        size_t size = 33000 + (seed >> 20 & 0xFFFFF) * (most / 0x100000 + 1) % most;
        if (seed >> 50 & 1) size = (size + 4095) & ~(size_t)4095;
        if (blocks[at] == NULL) {
            blocks[at] = seed >> 51 & 1 ? malloc(size) : aligned_alloc(1 << 16, size);
        } else if (seed >> 52 & 1) {
            char first = blocks[at][0], last = blocks[at][(size < sizes[at] ? size : sizes[at]) - 1];
            blocks[at] = realloc(blocks[at], size);
            expect(blocks[at][0] == first && blocks[at][(size < sizes[at] ? size : sizes[at]) - 1] == last, "lost");
        } else {
            free(blocks[at]);
            blocks[at] = NULL;
            continue;
        }
        sizes[at] = size;
        expect(blocks[at] != NULL && malloc_usable_size(blocks[at]) == size, "%zu bytes", size);
        if (most <= 1 << 20) memset(blocks[at], (int)i, size);
        else
            for (size_t byte = 0; byte < size; byte += 4096) blocks[at][byte] = (char)i;
        blocks[at][size - 1] = (char)i;
        if (i % 64 == 63) malloc_trim(0);
        for (int small = 0; small < 64; small++) free(hidden(malloc((size_t)small * 100)));
    }
    for (int i = 0; i < 16; i++) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
}

static void *use_large_in_thread(void *number) {
    use_large((uintptr_t)number + 1, 400);
    return NULL;
}

static void run_large_stress(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        expect(pthread_create(&threads[i], NULL, use_large_in_thread, (void *)i) == 0, "no thread");
    for (uint64_t i = 0; i < 6; i++) {
        use_large(i + 10, 40);
        pid_t child = fork();
        if (child == 0) {
            use_large(i + 20, 150);
            _exit(0);
        }
        case_expect_success(child, 60);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static void run_large_stress_unguarded(void) {
    know_no_guards();
    run_large_stress();
}

/* Objects are resized where there is no more address space, and the ends of runs have gone back: what is refused changes
 * nothing, and what is made smaller has as much as was asked for. */
static void run_large_at_limit(void) {
    enum { LIVE = 32, TURNS = 6000, LIMIT_MIB = 60 };
    static char *blocks[LIVE];
    static size_t sizes[LIVE];
    struct rlimit limit = {LIMIT_MIB << 20, LIMIT_MIB << 20};
    uint64_t seed = 1;
    expect(setrlimit(RLIMIT_AS, &limit) == 0, "no limit");
    for (int i = 0; i < TURNS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t at = seed >> 59, size = 33000 + (seed >> 20 & 0xFFFFF) * 4;
        if (blocks[at] != NULL && (seed >> 50 & 7) == 0) {
            free(blocks[at]);
            blocks[at] = NULL;
            sizes[at] = 0;
            continue;
        }
        char *block = realloc(blocks[at], size);
        size_t kept = size < sizes[at] || block == NULL ? size : sizes[at];
        if (block != NULL) blocks[at] = block, sizes[at] = size;
        if (blocks[at] == NULL) continue;
        expect(malloc_usable_size(blocks[at]) >= sizes[at], "%zu bytes of %zu", malloc_usable_size(blocks[at]),
               sizes[at]);
        for (size_t byte = 0; byte < kept && byte < sizes[at]; byte += 4096)
            expect(blocks[at][byte] == (char)at, "lost");
        for (size_t byte = 0; byte < sizes[at]; byte += 4096) blocks[at][byte] = (char)at;
    }
}

static void expect_mismatch(const char *argument, const char *origin, size_t size) {
    char line[200];
    snprintf(line, sizeof line, "mismatch: a block of %zu bytes from %s", size, origin);
    expect_end(argument, line);
}

static void run_large_mismatch(void) {
    expect_mismatch("run-new-free", "new", RUN);
    expect_mismatch("run-array-delete", "new[]", RUN);
    expect_mismatch("run-new-realloc", "new", RUN);
    expect_mismatch("run-new-aligned-delete", "new, aligned to 128", RUN);
    expect_mismatch("run-malloc-delete", "malloc", RUN);
    expect_mismatch("mapping-new-free", "new", MAPPING);
    expect_mismatch("mapping-array-delete", "new[]", MAPPING);
    expect_mismatch("mapping-new-realloc", "new", MAPPING);
    expect_mismatch("mapping-new-aligned-delete", "new, aligned to 128", MAPPING);
    expect_mismatch("mapping-malloc-delete", "malloc", MAPPING);
}

/* Each family with its own, of all sizes, hits and misses. */
static void run_match(void) {
    for (size_t size = 0; size < 70000; size += size < 3000 ? 1 : 997) {
        delete_block(hidden(new_block(size)));
        delete_array(hidden(new_array(size)));
        delete_sized(hidden(new_block(size)), size);
        delete_aligned(hidden(new_aligned(size, 64)), 64);
        delete_sized_aligned(hidden(new_aligned(size, 64)), size, 64);
        delete_aligned(hidden(new_aligned(size, 4096)), 4096);
        delete_array_aligned(hidden(new_array_aligned(size, 64)), 64);
        free(hidden(aligned_alloc(64, size)));
    }
    for (size_t size = 70000; size < 3 * (size_t)MAPPING; size += size / 3) {
        delete_block(hidden(new_block(size)));
        delete_array(hidden(new_array(size)));
        delete_sized(hidden(new_block(size)), size);
        delete_aligned(hidden(new_aligned(size, 4096)), 4096);
        delete_array_aligned(hidden(new_array_aligned(size, 4096)), 4096);
        free(hidden(realloc(hidden(realloc(hidden(malloc(size)), size + size / 2)), size / 3)));
    }
}

static char *advised_block(size_t page, size_t size) {
    void *block = NULL;
    expect(posix_memalign(&block, page, size) == 0, "no block");
    memset(block, 'a', size);
    expect(madvise(block, size, MADV_DONTNEED) == 0, "no advice");
    return block;
}

/* Whole pages of a block may be zeroed by advice: what lies behind it is on another. Of a large object the kernel zeroes
 * what lies behind it, too, up to the end of its last page. */
static void run_advice(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), sizes[] = {1, 2, 8, 10, 25, 600, MAPPING / page + 1};
    size_t odd_sizes[] = {33000, RUN, 25 * page - 1, 25 * page - 6, 25 * page - 8, 25 * page + 1, 40000000, MAPPING};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) free(hidden(advised_block(page, sizes[i] * page)));
    for (size_t i = 0; i < sizeof odd_sizes / sizeof *odd_sizes; i++) {
        free(hidden(advised_block(page, odd_sizes[i])));
        char *block = advised_block(page, odd_sizes[i]);
        check_heap();
        block = realloc(hidden(block), odd_sizes[i] + 3 * page);
        expect(block[odd_sizes[i] - 1] == 0, "no zeros");
        block = realloc(hidden(block), odd_sizes[i] - 20);
        free(hidden(block));
    }
}

/* Who knows the bytes that the kernel has put on the stack, which the stack protector and libc's pointer guard are made of,
 * forges no canary. Behind a block that fills its class lies one whose formula this is (pool/canary.c). */
static void run_forged(void) {
    enum { CANARIES = 1 << 30, LENGTHS = CANARIES + 9, FILLED_SIZE = 104 };
    const uint64_t *given = (const uint64_t *)getauxval(AT_RANDOM);
    uint64_t numbers[3], of_told = hak_siphash(given, LENGTHS) | 1, found;
    for (uint32_t i = 0; i < 3; i++) numbers[i] = hak_siphash(given, CANARIES + i) | 1;
    char *block = malloc(FILLED_SIZE);
    memcpy(&found, (char *)hidden(block) + FILLED_SIZE, sizeof found);
    uint64_t mixed = hak_folded_product((uintptr_t)block ^ numbers[0], numbers[1]);
    mixed = hak_folded_product(mixed, numbers[2]);
    uint64_t told = found >> 40 << 40, secret = mixed ^ (told >> 40) * of_told;
    uint64_t forged = secret >> 24 | 0x81 | told;
    expect(malloc_usable_size(block) == FILLED_SIZE && told << 8 == 0, "the block doesn't fill its class");
    expect(forged != found, "the canary was forged");
    free(block);
}

/* Who knows in which order 64 neighbours come knows nothing of others, though they lie at the same place of their MiB. */
static void run_neighbours(void) {
    enum { TAKEN = 60000, GROUP_BYTES = 64 * BLOCK, GROUPS = 2048, GROUPS_A_MIB = (1 << 20) / GROUP_BYTES };
    static struct group {
        uintptr_t start;
        size_t count;
        unsigned char order[64];
    } groups[GROUPS];
    size_t group_count = 0, compared = 0, alike = 0;
    for (size_t i = 0; i < TAKEN; i++) {
        uintptr_t block = (uintptr_t)hidden(malloc(SIZE)), start = block / GROUP_BYTES;
        size_t at = 0;
        while (at < group_count && groups[at].start != start) at++;
        expect(at < GROUPS, "too many groups");
        group_count += at == group_count;
        groups[at].start = start;
        if (groups[at].count < 64) groups[at].order[groups[at].count++] = (unsigned char)(block / BLOCK % 64);
    }
    for (size_t i = 0; i < group_count; i++)
        for (size_t j = 0; j < i; j++) {
            bool are_whole = groups[i].count == 64 && groups[j].count == 64;
            if (!are_whole || groups[i].start % GROUPS_A_MIB != groups[j].start % GROUPS_A_MIB) continue;
            compared++;
            alike += memcmp(groups[i].order, groups[j].order, 64) == 0;
        }
    expect(compared > 100, "too few are comparable");
    expect(alike == 0, "the order is the same elsewhere");
}

/* What calloc gives is zero, wherever it comes from. */
static void run_zero(void) {
    static char *live[500];
    uint64_t seed = 1;
    for (int i = 0; i < 200000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t at = (seed >> 40) % 500, size = 8 + (seed >> 20) % (seed >> 63 ? 200000 : 3000);
        free(live[at]);
        live[at] = calloc(1, size);
        for (size_t b = 0; b<size; b += size - b> 64 ? 64 : 1) expect(live[at][b] == 0, "%zu of %zu", b, size);
        memset(live[at], 'a', malloc_usable_size(live[at]));
        if (i % 50000 == 49999) malloc_trim(0);
    }
}

/* Where no free of its size follows that could push it out. */
static void run_waiting(void) {
    expect_end("waiting-exit", "write after free: 7 bytes into a freed block of 168 bytes");
    expect_end("waiting-trim", "write after free: 7 bytes into a freed block of 168 bytes");
    expect_end("sleeper-exit", "write after free: 7 bytes into a freed block of 168 bytes");
    expect_end("sleeper-trim", "write after free: 7 bytes into a freed block of 168 bytes");
    expect_end("waiting-few", "write after free: 7 bytes into a freed block of 168 bytes");
}

static void run_sizes(void) {
    expect_end("smaller", "*wrong size: 100 bytes for a block of 1000 bytes\n");
    expect_end("larger", "wrong size: 57 bytes for a block of 56 bytes");
    expect_end("delete-larger", "wrong size: 57 bytes for a block of 56 bytes");
    expect_end("aligned-larger", "wrong size: 200 bytes for a block of 64 bytes");
    expect_end("large", "*wrong size: 200000 bytes for a block of 100000 bytes\n");
    expect_end("large-smaller", "wrong size: 99999 bytes for a block of 100000 bytes");
    expect_end("large-small", "wrong size: 100 bytes for a block of 100000 bytes");
    expect_end("mapping-smaller", "wrong size: 67105768 bytes for a block of 67109864 bytes");
    expect_end("class-smaller", "wrong size: 55 bytes for a block of 56 bytes");
    expect_end("class-larger", "wrong size: 49 bytes for a block of 48 bytes");
    expect_end("class-resized", "wrong size: 56 bytes for a block of 54 bytes");
    expect_end("class-aligned", "wrong size: 57 bytes for a block of 56 bytes");
    expect_end("class-none", "wrong size: 0 bytes for a block of 2 bytes");
    expect_end("unaligned", "wrong alignment: 4096 for a block of 56 bytes");
    expect_end("no-alignment", "wrong alignment: 48 for a block of 56 bytes");
    expect_end("none", "*wrong size: 100000 bytes for a block of 100 bytes\n");
}

/* Sizes that are right, of blocks that realloc has left where they were, too; and those that nallocx tells. */
static void run_right_sizes(void) {
    size_t (*size_for)(size_t, int) = NULL;
    *(void **)&size_for = function("nallocx");
    for (size_t size = 0; size < 70000; size += size < 5000 ? 1 : 997) {
        free_sized_as(hidden(malloc(size)), size);
        free_sized_as(hidden(malloc(size)), size_for(size, 0));
        if (size == 0) continue;
        free_sized_as(hidden(realloc(hidden(malloc(size)), size * 2 / 3 + 1)), size * 2 / 3 + 1);
    }
    /* The standard's takes any, as glibc's: programs pass the largest that a compiler knows of. */
    void (*standard)(void *, size_t) = NULL;
    *(void **)&standard = function("free_sized");
    standard(hidden(malloc(24)), 4000);
    standard(hidden(malloc(100000)), 200000);
}

/* Of objects that can't be made smaller where they are. */
static void run_right_sizes_refused(void) {
    static char *runs[2], *mappings[2];
    for (int i = 0; i < 2; i++) runs[i] = malloc(3 * RUN), mappings[i] = malloc(MAPPING);
    for (int i = 0; i < 2; i++) memset(runs[i], 'a', RUN), memset(mappings[i], 'a', RUN);
    refuse(SYS_madvise, GUARD_REMOVE);
    refuse(SYS_mremap, RUN / 2 / 4096 * 4096 + 2 * 4096);
    for (int i = 0; i < 2; i++) {
        runs[i] = realloc(runs[i], RUN);
        mappings[i] = realloc(mappings[i], RUN / 2);
        expect(runs[i][RUN - 1] == 'a' && mappings[i][RUN / 2 - 1] == 'a', "lost");
        free_sized_as(runs[i], RUN);
        free_sized_as(mappings[i], RUN / 2);
    }
}

/* What was freed is zero, and is not handed out soon. */
static void run_waits(void) {
    static uintptr_t freed[PLACES];
    static char *made[PLACES];
    unsigned soon = 0;
    for (int i = 0; i < PLACES; i++) made[i] = block_of(SIZE);
    for (int i = 0; i < PLACES; i++) {
        freed[i] = (uintptr_t)made[i];
        free(made[i]);
        void *next = malloc(SIZE);
        soon += (uintptr_t)next == freed[i];
        expect(next != NULL, "no block");
    }
    expect(soon <= 3, "%u of %u blocks were handed out at once", soon, PLACES);
    unsigned zeros = 0;
    for (int i = 0; i < PLACES; i++) {
        const volatile char *block = (const volatile char *)freed[i];
        zeros += block[0] == 0 && block[SIZE - 1] == 0;
    }
    expect(zeros > PLACES * 9 / 10, "%u are zero", zeros);
}

/* Of fresh memory, too. */
static void run_order(void) {
    enum { COUNT = 4000 };
    static char *blocks[COUNT];
    unsigned neighbours = 0, up = 0;
    for (int i = 0; i < COUNT; i++) blocks[i] = malloc(SIZE);
    for (int i = 1; i < COUNT; i++) {
        neighbours += blocks[i] - blocks[i - 1] == BLOCK || blocks[i - 1] - blocks[i] == BLOCK;
        up += blocks[i] > blocks[i - 1];
    }
    expect(neighbours < COUNT / 8, "%u of %u are neighbours of the one before", neighbours, COUNT);
    expect(up > COUNT / 3 && up < COUNT * 2 / 3, "%u of %u lie above the one before", up, COUNT);
}

/* Trimming ends the wait. */
static void run_trimmed(void) {
    enum { COUNT = 100000 };
    static void *blocks[COUNT];
    struct hak_statistics before, after;
    expect(case_stats(&before), "no statistics");
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    size_t waiting = case_rss_bytes();
    expect(case_stats(&after) && after.cached_blocks >= PLACES / 2 && after.live_blocks <= before.live_blocks + 5,
           "%lu cached, %lu live", (unsigned long)after.cached_blocks, (unsigned long)after.live_blocks);
    malloc_trim(0);
    expect(case_stats(&after) && after.cached_blocks < PLACES / 2, "%lu are cached",
           (unsigned long)after.cached_blocks);
    expect(case_rss_bytes() < waiting, "no memory came back");
}

static void *churn(void *number) {
    void *blocks[64] = {NULL};
    uint64_t seed = (uintptr_t)number + 1;
    for (int i = 0; i < 100000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t at = seed >> 58, size = 1 + (seed >> 40) % 600;
        free(blocks[at]);
        blocks[at] = malloc(size);
        memset(blocks[at], (int)size, size);
    }
    for (int i = 0; i < 64; i++) free(blocks[i]);
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) expect(pthread_create(&threads[i], NULL, churn, (void *)i) == 0, "no thread");
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    pid_t child = fork();
    if (child == 0) {
        churn(NULL);
        _exit(0);
    }
    case_expect_success(child, 60);
}

#define CASE(name_, run_, victim_)                                                                                     \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 512, .victim = victim_ }

static const struct hak_case cases[] = {
    CASE("twice", run_twice, victim),
    CASE("written", run_written, victim),
    CASE("written-reported", run_written_reported, victim),
    CASE("sizes", run_sizes, victim),
    CASE("inside", run_inside, victim),
    CASE("right-sizes", run_right_sizes, NULL),
    CASE("right-sizes-refused", run_right_sizes_refused, NULL),
    CASE("order", run_order, NULL),
    CASE("waits", run_waits, NULL),
    CASE("waiting", run_waiting, victim),
    CASE("trimmed", run_trimmed, NULL),
    CASE("threads", run_threads, NULL),
    CASE("overflow", run_overflow, victim),
    CASE("asked", run_asked, victim),
    CASE("exact", run_exact, NULL),
    CASE("exact-refused", run_exact_refused, NULL),
    CASE("exact-refused-aligned", run_exact_refused_aligned, NULL),
    CASE("mismatch", run_mismatch, victim),
    CASE("match", run_match, NULL),
    CASE("check", run_check, victim),
    CASE("check-whole", run_check_whole, NULL),
    CASE("large", run_large, victim),
    CASE("large-mismatch", run_large_mismatch, victim),
    CASE("large-races", run_large_races, victim),
    CASE("large-resize-races", run_large_resize_races, victim),
    CASE("large-guards", run_large_guards, victim),
    CASE("slab-guards", run_slab_guards, victim),
    CASE("slab-turns", run_slab_turns, NULL),
    CASE("slab-turns-refused", run_slab_turns_refused, NULL),
    CASE("large-waits", run_large_waits, victim),
    CASE("large-waits-at-limit", run_large_waits_at_limit, victim),
    CASE("large-waits-locked", run_large_waits_locked, NULL),
    {.name = "large-stress", .run = run_large_stress, .seconds = 120, .memory_mib = STRESS_MIB},
    {.name = "large-stress-unguarded", .run = run_large_stress_unguarded, .seconds = 120, .memory_mib = STRESS_MIB},
    CASE("large-at-limit", run_large_at_limit, NULL),
    CASE("forged", run_forged, NULL),
    CASE("neighbours", run_neighbours, NULL),
    CASE("zero", run_zero, NULL),
    CASE("advice", run_advice, NULL),
};

CASE_MAIN(cases)
