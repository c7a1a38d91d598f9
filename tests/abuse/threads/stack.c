/* What a thread must offer: little stack, hardly any static TLS. */
#include <elf.h>
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>

#include "churn.h"

/* ---- The smallest stack a thread can have ---------------------------------------------------------------------- */

static void run_small(void) {
    pthread_attr_t attributes;
    long minimum = sysconf(_SC_THREAD_STACK_MIN);
    pthread_attr_init(&attributes);
    expect(pthread_attr_setstacksize(&attributes, minimum > 16384 ? (size_t)minimum : 16384) == 0, "no such stack");
    for (int round = 0; round < 50; round++) {
        struct churners churners = {.count = 4};
        for (int i = 0; i < 4; i++) {
            expect(pthread_create(&churners.threads[i], &attributes, churners_run, &churners) == 0, "no thread");
        }
        case_sleep_us(5000);
        churners_stop(&churners);
    }
}

/* ---- The depth of each call ------------------------------------------------------------------------------------ */

enum { PAINTED_BYTES = 64 << 10, DEPTH_LIMIT_BYTES = 4096, BURST = 3000 };

static void *burst_blocks[BURST];
static size_t burst_bytes;

static void do_nothing(void) {}
static void do_malloc(void) {
    for (int i = 0; i < BURST; i++) burst_blocks[i] = malloc(burst_bytes);
}
static void do_free(void) {
    for (int i = 0; i < BURST; i++) free(burst_blocks[i]);
}
static void do_realloc(void) {
    burst_blocks[0] = NULL;
    for (size_t size = 8; size < 64 << 20; size += size / 2) burst_blocks[0] = realloc(burst_blocks[0], size);
    for (size_t size = 64 << 20; size > 0; size /= 2) burst_blocks[0] = realloc(burst_blocks[0], size);
    free(burst_blocks[0]);
}
static void do_calloc(void) {
    for (size_t size = 8; size < 64 << 20; size += size / 2) free(calloc(1, size));
}
static void do_memalign(void) {
    for (size_t alignment = 16; alignment <= 1 << 24; alignment *= 2) free(memalign(alignment, 100));
}
static void do_refused(void) { free(malloc(SIZE_MAX / 4)); }
static void do_trim(void) { malloc_trim(0); }

/* Where the stack of a callee begins. */
__attribute__((noinline)) static unsigned char *stack_end(void) { return hidden(__builtin_frame_address(0)); }

/* Paints the free stack, calls, and looks how far down the paint is gone. */
__attribute__((noinline)) static size_t depth_of(void (*call)(void)) {
    volatile unsigned char *top = stack_end(), *bottom = top - PAINTED_BYTES;
    for (volatile unsigned char *byte = bottom; byte < top; byte++) *byte = 0xA5;
    call();
    while (bottom < top && *bottom == 0xA5) bottom++;
    return (size_t)(top - bottom);
}

static void expect_shallow(const char *name, void (*call)(void)) {
    size_t depth = depth_of(call);
    case_print(1, "%-10s %5zu bytes: %5zu bytes of stack", name, burst_bytes, depth);
    expect(depth < DEPTH_LIMIT_BYTES, "%s takes %zu bytes of stack", name, depth);
}

/* From the first call of a thread on. */
static void *measure_depths(void *nothing) {
    const size_t sizes[] = {16, 1000, 20000, 100000, 3 << 20};
    depth_of(do_nothing); /* symbols that this file needs are bound */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        burst_bytes = sizes[i];
        expect_shallow("malloc", do_malloc);
        expect_shallow("free", do_free);
    }
    burst_bytes = 0;
    expect_shallow("realloc", do_realloc);
    expect_shallow("calloc", do_calloc);
    expect_shallow("memalign", do_memalign);
    expect_shallow("refused", do_refused);
    expect_shallow("trim", do_trim);
    return nothing;
}

static void run_depth(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    expect(getenv("LD_BIND_NOW"), "set LD_BIND_NOW: binding a symbol lazily is no depth of the allocator's");
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    expect(pthread_create(&thread, &attributes, measure_depths, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

/* ---- Static TLS ------------------------------------------------------------------------------------------------ */

/* The program headers of the library that malloc comes from. */
static int find_tls(struct dl_phdr_info *info, size_t size, void *result) {
    (void)size;
    const void *address = dlsym(RTLD_DEFAULT, "malloc");
    bool found = false;
    size_t tls_bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t offset = (uintptr_t)address - (info->dlpi_addr + header->p_vaddr);
        if (header->p_type == PT_LOAD && offset < header->p_memsz) found = true;
        if (header->p_type == PT_TLS) tls_bytes = header->p_memsz;
    }
    if (found) *(size_t *)result = tls_bytes;
    return found;
}

static void run_tls(void) {
    size_t tls_bytes = 0;
    expect(dl_iterate_phdr(find_tls, &tls_bytes) == 1, "nobody has malloc");
    case_print(1, "%zu bytes of static TLS", tls_bytes);
    expect(tls_bytes < 2048, "%zu bytes of TLS", tls_bytes);
}

/* ---- Frames that lead astray ------------------------------------------------------------------------------------- */

/* malloc(bytes) by code without tables, as that of compilers at run time, with any value in the frame pointer. */
void *malloc_with(void *frame_pointer, size_t bytes);
#if defined(__x86_64__)
__asm__(".text\n.globl malloc_with\n.type malloc_with,@function\nmalloc_with:\n"
        "push %rbp\nmov %rdi,%rbp\nmov %rsi,%rdi\ncall malloc@PLT\npop %rbp\nret\n.size malloc_with,.-malloc_with\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl malloc_with\n.type malloc_with,@function\nmalloc_with:\n"
        "stp x29,x30,[sp,#-16]!\nmov x29,x0\nmov x0,x1\nbl malloc\nldp x29,x30,[sp],#16\nret\n"
        ".size malloc_with,.-malloc_with\n");
#endif

enum { STACK_BYTES = 64 << 10, TURNS = 100000 };

static char *coming_and_going; /* pages behind the stack */
static atomic_bool is_over;

static void *call_malloc(void *unused) {
    while (!atomic_load(&is_over)) free(malloc_with(coming_and_going + 64, 100));
    return unused;
}

static volatile char *map_again(char *pages, int protection) {
    void *mapped = mmap(pages, STACK_BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    expect(mapped == pages, "no pages");
    return mapped;
}

/* A walk of the stack reads nothing that somebody else may unmap. */
static void run_astray(void) {
    char *stack = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(stack != MAP_FAILED, "no stack");
    coming_and_going = stack + STACK_BYTES;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK_BYTES);
    expect(pthread_create(&thread, &attributes, call_malloc, NULL) == 0, "no thread");
    for (int i = 0; i < TURNS; i++) {
        map_again(coming_and_going, PROT_NONE); /* munmap would leave a hole that the allocator may map into */
        *map_again(coming_and_going, PROT_READ | PROT_WRITE) = 1;
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
}

static const struct hak_case cases[] = {
    {.name = "small", .run = run_small, .seconds = 120, .memory_mib = 1024},
    {.name = "depth", .run = run_depth, .seconds = 120, .memory_mib = 16384},
    {.name = "tls", .run = run_tls, .seconds = 120, .memory_mib = 256},
    {.name = "astray", .run = run_astray, .seconds = 120, .memory_mib = 256},
};

CASE_MAIN(cases)
