/* Pointers that hakmem never returned. Foreign addresses are recognised at once, in every function that takes a block;
 * so are addresses inside blocks of up to 8 KiB and inside large ones; inside others at the flush at the latest. */
#include <malloc.h>
#include <sys/mman.h>

#include "complaint.h"

/* ---- Foreign addresses ----------------------------------------------------------------------------------------- */

static char global_bytes[256] = "writable";
static const char constant_bytes[256] = "constant";

static void a_function(void) {}

static void *mapped(int protection) {
    void *pages = mmap(NULL, 1 << 20, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(pages != MAP_FAILED, "no mapping");
    return pages;
}

static const char *const kinds[] = {
    "stack",         "stack-odd", "stack-high", "global",   "constant",      "function", "libc",      "mapped",
    "mapped-middle", "no-access", "unmapped",   "break",    "low",           "one",      "page-zero", "beyond",
    "far-beyond",    "before",    "wild",       "high-bit", "non-canonical", "all-ones", "kernel",    "errno",
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* local is some address on the stack. */
static void *foreign_address(const char *kind, char *local) {
    char *block = malloc(64);
    const struct {
        const char *kind;
        const volatile void *address;
    } table[] = {
        {"stack", (char *)(((uintptr_t)local + 63) & ~(uintptr_t)63)},
        {"stack-odd", local + 1},
        {"stack-high", environ ? (void *)environ[0] : NULL},
        {"global", global_bytes},
        {"constant", constant_bytes},
        {"function", (void *)(uintptr_t)a_function},
        {"libc", (void *)stdout},
        {"low", (void *)0x40},
        {"one", (void *)1},
        {"page-zero", (void *)0xff0},
        {"beyond", block + (1 << 30)},
        {"far-beyond", block + ((uintptr_t)1 << 43)},
        {"before", block - ((uintptr_t)1 << 40)},
        {"wild", (void *)0x123456789000},
        {"high-bit", (void *)((uintptr_t)block | (uintptr_t)1 << 63)},
        {"non-canonical", (void *)0xdeadbeefdeadbeef},
        {"all-ones", (void *)UINTPTR_MAX},
        {"kernel", (void *)0xffff888000000000},
        {"errno", &errno},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(kind, table[i].kind) == 0) return hidden(table[i].address);
    }
    if (strcmp(kind, "mapped") == 0) return mapped(PROT_READ | PROT_WRITE);
    if (strcmp(kind, "mapped-middle") == 0) return (char *)mapped(PROT_READ | PROT_WRITE) + 0x12340;
    if (strcmp(kind, "no-access") == 0) return mapped(PROT_NONE);
    if (strcmp(kind, "unmapped") == 0) {
        void *pages = mapped(PROT_READ);
        munmap(pages, 1 << 20);
        return pages;
    }
    expect(strcmp(kind, "break") == 0, "no such kind: %s", kind);
    return (char *)sbrk(8192) + 64;
}

static void misuse_and_survive(void (*misuse)(void *), const char *kind) {
    char local[256] = "";
    misuse(complaint_announce(foreign_address(kind, local)));
    case_print(1, "survived");
    _exit(0);
}

static void expect_recognised(const char *function) {
    for (int i = 0; i < KINDS; i++) complaint_expect(kinds[i], function, NOT_A_BLOCK, NULL);
}

static void do_free(void *address) { free(address); }
static void do_realloc(void *address) { hidden(realloc(address, 100)); }
static void do_realloc_zero(void *address) { hidden(realloc(address, 0)); }
static void do_realloc_huge(void *address) { hidden(realloc(address, 40 << 20)); }
static void do_reallocarray(void *address) { hidden(reallocarray(address, 3, 50)); }
static void do_usable_size(void *address) {
    if (malloc_usable_size(address) != 0) _exit(9);
}

static void victim_free(const char *kind) { misuse_and_survive(do_free, kind); }
static void victim_realloc(const char *kind) { misuse_and_survive(do_realloc, kind); }
static void victim_realloc_zero(const char *kind) { misuse_and_survive(do_realloc_zero, kind); }
static void victim_realloc_huge(const char *kind) { misuse_and_survive(do_realloc_huge, kind); }
static void victim_reallocarray(const char *kind) { misuse_and_survive(do_reallocarray, kind); }
static void victim_usable_size(const char *kind) { misuse_and_survive(do_usable_size, kind); }

/* free_sized and free_aligned_sized are younger than the libc of many machines: found by name. */
static void victim_free_sized(const char *kind) {
    void (*release)(void *, size_t);
    char local[256] = "";
    *(void **)&release = dlsym(RTLD_DEFAULT, "free_sized");
    expect(release, "no free_sized");
    release(complaint_announce(foreign_address(kind, local)), 64);
    case_print(1, "survived");
    _exit(0);
}

static void victim_free_aligned_sized(const char *kind) {
    void (*release)(void *, size_t, size_t);
    char local[256] = "";
    *(void **)&release = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    expect(release, "no free_aligned_sized");
    release(complaint_announce(foreign_address(kind, local)), 64, 64);
    case_print(1, "survived");
    _exit(0);
}

static void run_free(void) { expect_recognised("free"); }
static void run_realloc(void) { expect_recognised("realloc"); }
static void run_any(void) { expect_recognised(""); }

/* Of a foreign address it may also say 0. */
static void run_usable_size(void) {
    for (int i = 0; i < KINDS; i++) {
        struct case_end end = case_watch(kinds[i]);
        bool zero = WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0;
        bool aborted = WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT;
        expect(zero || (aborted && complaint_matches(&end, "", NOT_A_BLOCK)), "%s: wait status %#x; it said: %s%s",
               kinds[i], (unsigned)end.status, end.output, end.error);
    }
}

/* The first call of a thread finds a cache that is not there yet. */
static void *free_in_thread(void *address) {
    free(address);
    return NULL;
}

static void free_in_new_thread(void *address) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_in_thread, address) == 0, "no thread");
    pthread_join(thread, NULL);
}

static void victim_free_first(const char *kind) { misuse_and_survive(free_in_new_thread, kind); }

/* ---- Inside a block -------------------------------------------------------------------------------------------- */

static struct herd herd;

/* "SIZE+OFFSET" */
static void *inside(const char *size_and_offset, void *(*block_of)(size_t)) {
    char *rest;
    size_t size = strtoul(size_and_offset, &rest, 10);
    return (char *)block_of(size) + strtoul(rest, NULL, 10);
}

static void *block_of_herd(size_t size) {
    herd_make(&herd, size);
    return herd_victim(&herd);
}

static void *free_inside_and_others(void *address) {
    free(address);
    herd_free_odd(&herd, 0);
    herd_free_odd(&herd, 1);
    return NULL;
}

/* Frees blocks until every cache has overflowed, and ends the thread. */
static void victim_inside_small(const char *size_and_offset) {
    void *address = complaint_announce(inside(size_and_offset, block_of_herd));
    pthread_t thread;
    expect(pthread_create(&thread, NULL, free_inside_and_others, address) == 0, "no thread");
    pthread_join(thread, NULL);
    case_print(1, "survived");
    _exit(0);
}

static void victim_inside_small_own(const char *size_and_offset) {
    free_inside_and_others(complaint_announce(inside(size_and_offset, block_of_herd)));
    case_print(1, "survived");
    _exit(0);
}

static void victim_inside_small_at_once(const char *size_and_offset) {
    free(complaint_announce(inside(size_and_offset, block_of_herd)));
    case_print(1, "survived");
    _exit(0);
}

static void victim_inside_small_realloc(const char *size_and_offset) {
    void *address = complaint_announce(inside(size_and_offset, block_of_herd));
    hidden(realloc(address, 50000));
    herd_free_odd(&herd, 0);
    herd_free_odd(&herd, 1);
    case_print(1, "survived");
    _exit(0);
}

static void *block_of_malloc(size_t size) { return malloc(size); }

static void victim_inside_large(const char *size_and_offset) {
    free(complaint_announce(inside(size_and_offset, block_of_malloc)));
    case_print(1, "survived");
    _exit(0);
}

static void victim_inside_large_realloc(const char *size_and_offset) {
    hidden(realloc(complaint_announce(inside(size_and_offset, block_of_malloc)), 100));
    case_print(1, "survived");
    _exit(0);
}

static void expect_inside(const char *size_and_offset) {
    char what[96];
    snprintf(what, sizeof what, "invalid pointer: %s bytes into a block of ", strchr(size_and_offset, '+') + 1);
    complaint_expect(size_and_offset, "", what, NULL);
}

static void run_inside_small(void) {
    static const char *const insides[] = {"16+1",    "16+8",      "24+8",      "64+16",    "64+32",      "64+63",
                                          "100+16",  "100+4",     "1000+8",    "1000+500", "1024+512",   "1024+16",
                                          "4000+16", "4000+2000", "4096+2048", "30000+16", "30000+4096", "32768+16384"};
    for (size_t i = 0; i < sizeof insides / sizeof *insides; i++) expect_inside(insides[i]);
}

/* In blocks of up to 8 KiB. */
static void run_inside_at_once(void) {
    static const char *const insides[] = {"16+1",    "16+8",      "24+8",      "64+16",     "64+32",    "64+63",
                                          "100+16",  "100+4",     "1000+8",    "1000+500",  "1024+512", "1024+16",
                                          "4000+16", "4000+2000", "4096+2048", "8192+4096", "8000+16"};
    for (size_t i = 0; i < sizeof insides / sizeof *insides; i++) expect_inside(insides[i]);
}

static void run_inside_large(void) {
    static const char *const insides[] = {"40000+1",         "40000+16",      "40000+4096",       "300000+8",
                                          "300000+65536",    "300000+131072", "4000000+16",       "4000000+65536",
                                          "4000000+2097152", "80000000+16",   "80000000+2097152", "80000000+67108864"};
    for (size_t i = 0; i < sizeof insides / sizeof *insides; i++) expect_inside(insides[i]);
}

#define CASE(name_, run_, victim_)                                                                                     \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 1024, .victim = victim_ }

static const struct hak_case cases[] = {
    CASE("free", run_free, victim_free),
    CASE("free-first", run_free, victim_free_first),
    CASE("realloc", run_realloc, victim_realloc),
    CASE("realloc-zero", run_any, victim_realloc_zero),
    CASE("realloc-huge", run_realloc, victim_realloc_huge),
    CASE("reallocarray", run_any, victim_reallocarray),
    CASE("free-sized", run_any, victim_free_sized),
    CASE("free-aligned-sized", run_any, victim_free_aligned_sized),
    CASE("usable-size", run_usable_size, victim_usable_size),
    CASE("inside-at-once", run_inside_at_once, victim_inside_small_at_once),
    CASE("inside-small", run_inside_small, victim_inside_small),
    CASE("inside-small-own", run_inside_small, victim_inside_small_own),
    CASE("inside-small-realloc", run_inside_small, victim_inside_small_realloc),
    CASE("inside-large", run_inside_large, victim_inside_large),
    CASE("inside-large-realloc", run_inside_large, victim_inside_large_realloc),
};

CASE_MAIN(cases)
