/* malloc before main: in .preinit_array, in constructors, and while the program is still being linked, in the resolver
 * of an indirect function. Built as a position-independent and as a fixed program, bound lazily and at once. */
#include "churn.h"

enum { EARLY_BLOCKS = 200 };

/* Blocks of one early place: all kinds of calls, all sizes, kept until main. */
struct early {
    unsigned char *blocks[EARLY_BLOCKS];
    bool ran;
};

static struct early resolver_blocks, preinit_blocks, constructor_blocks;

static size_t early_size(int i) { return (size_t)i * (size_t)i * 11 + 1; }

/* Calls nothing but the allocator: nothing else is ready yet. */
static void early_allocate(struct early *early) {
    for (int i = 0; i < EARLY_BLOCKS; i++) {
        size_t size = early_size(i);
        unsigned char *block = i % 3 == 0 ? calloc(1, size) : i % 3 == 1 ? malloc(size) : realloc(malloc(8), size);
        for (size_t j = 0; block && j < size; j++) block[j] = (unsigned char)i;
        early->blocks[i] = block;
        free(malloc(size));
    }
    early->ran = true;
}

static void early_check(struct early *early, const char *place) {
    expect(early->ran, "%s did not run", place);
    for (int i = 0; i < EARLY_BLOCKS; i++) {
        unsigned char *block = early->blocks[i];
        expect(block, "no memory in %s", place);
        expect(case_owns(block), "%p, from %s, is no block of hakmem's", (void *)block, place);
        expect(churn_is_filled(block, early_size(i), (unsigned char)i), "a block from %s has changed", place);
        free(block);
    }
}

static int answer(void) { return 42; }

__attribute__((used)) static int (*resolve_answer(void))(void) {
    early_allocate(&resolver_blocks);
    return answer;
}
int indirect_answer(void) __attribute__((ifunc("resolve_answer")));

static void before_constructors(void) { early_allocate(&preinit_blocks); }
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = before_constructors;

__attribute__((constructor(101))) static void first_constructor(void) { early_allocate(&constructor_blocks); }

static void run_blocks(void) {
    expect(indirect_answer() == 42, "the resolver chose wrongly");
    early_check(&resolver_blocks, "a resolver");
    early_check(&preinit_blocks, ".preinit_array");
    early_check(&constructor_blocks, "a constructor");
    churn_once(1, 5000, 64 << 10);
}

/* The first malloc came before the environment could be read: the settings count all the same. */
static void victim_settings(const char *argument) {
    (void)argument;
    expect(indirect_answer() == 42, "the resolver chose wrongly");
    exit(0);
}

static void run_settings(void) {
    char path[64], setting[96];
    snprintf(path, sizeof path, "early-%d.json", (int)getpid()); /* in the build folder, where tests run */
    snprintf(setting, sizeof setting, "json:%s", path);
    if (!case_hak_owns) skip("only hakmem has these settings");
    setenv("HAKMEM_STATS", setting, 1);
    struct case_end end = case_watch("once");
    expect(end.status == 0, "wait status %#x: %s", (unsigned)end.status, end.error);
    expect(unlink(path) == 0, "HAKMEM_STATS was not heard: no %s", path);
}

static const struct hak_case cases[] = {
    {.name = "blocks", .run = run_blocks, .seconds = 120, .memory_mib = 512},
    {.name = "settings", .run = run_settings, .seconds = 120, .memory_mib = 512, .victim = victim_settings},
};

CASE_MAIN(cases)
