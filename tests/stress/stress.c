/* Stress with verified payloads: threads that allocate, resize and free blocks of all sizes, hand them to each other
 * through shared slots, end, and are followed by others; now and then the process forks and the child clears up.
 *
 *     stress [THREADS [OPERATIONS [SEED]]]
 *
 * OPERATIONS are shared by all threads. The seed is printed; the same seed gives the same requests per thread (their
 * interleaving is the scheduler's). Speaks to the standard names, or with STRESS_HAK to hak_*, for builds under a
 * sanitizer that has the standard names itself. Exit status: 0 passed, 1 failed, 3 the heap is not hakmem's.
 *
 * Who holds a block remembers its tag outside of it, in the upper 16 bits of the pointer; a block holds its size, its
 * tag and a pattern made of address, size and tag. A block that was handed out twice has the wrong tag for one holder.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hakmem/hakmem.h"

#ifdef STRESS_HAK
#define HEAP(function) hak_##function
#else
#include <dlfcn.h>
#include <malloc.h>
#define HEAP(function) function
#endif

#if defined(__SANITIZE_THREAD__)
#define STRESS_FORKS false
#elif defined(__has_feature)
#define STRESS_FORKS (!__has_feature(thread_sanitizer))
#else
#define STRESS_FORKS true
#endif

enum {
    SLOTS_OWN = 64,      /* blocks of one thread */
    SLOTS_SHARED = 1024, /* blocks of nobody */
    THREADS_MAX = 64,
    LIVES = 10, /* threads that follow each other in one seat */
    CHILD_OPERATIONS = 2000,
    CHILD_SECONDS = 300,
};

#define TAG_SHIFT 48
#define ADDRESS_MASK (((uint64_t)1 << TAG_SHIFT) - 1)

/* What a block begins with. */
struct header {
    uint32_t size;
    uint16_t tag;
};

enum { SIZE_MIN = sizeof(struct header) };

/* A held block: address and tag; 0 is none. */
typedef uint64_t handle;

static _Atomic(handle) shared[SLOTS_SHARED];
static int (*owns)(const void *);

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ssize_t written = write(2, text, length > 0 ? (size_t)length : 0);
    _exit(written < 0 ? 2 : 1);
}

/* ---- Random requests ------------------------------------------------------------------------------------------- */

static uint64_t random_next(uint64_t *state) {
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return mixed ^ mixed >> 31;
}

/* Log-uniform within a kind: mostly small, some medium, few large. */
static size_t random_size(uint64_t *random) {
    static const struct {
        unsigned below;
        size_t least, most;
    } kinds[] = {{800, SIZE_MIN, 1024}, {980, 1024, 32 << 10}, {998, 32 << 10, 512 << 10}, {1000, 512 << 10, 6 << 20}};
    unsigned pick = random_next(random) % 1000, kind = 0;
    while (pick >= kinds[kind].below) kind++;
    size_t size = kinds[kind].least;
    while (size * 2 < kinds[kind].most && random_next(random) % 3) size *= 2;
    size += random_next(random) % size;
    return size < kinds[kind].most ? size : kinds[kind].most;
}

/* ---- Payloads -------------------------------------------------------------------------------------------------- */

static unsigned char payload_byte(const struct header *block) {
    return (unsigned char)((uintptr_t)block >> 4 ^ block->size * 7u ^ block->tag);
}

/* Whole for small blocks; both ends and every 512th byte of larger ones. */
static size_t payload_step(size_t i, size_t size) { return i < 1024 || i + 64 >= size ? 1 : 512; }

static handle payload_fill(void *address, size_t size, uint16_t tag) {
    struct header *block = address;
    unsigned char *bytes = address;
    *block = (struct header){(uint32_t)size, tag};
    unsigned char byte = payload_byte(block);
    for (size_t i = sizeof *block; i < size; i += payload_step(i, size)) bytes[i] = byte;
    return (uint64_t)(uintptr_t)address | (uint64_t)tag << TAG_SHIFT;
}

static struct header *payload_check(handle held) {
    struct header *block = (struct header *)(uintptr_t)(held & ADDRESS_MASK);
    const unsigned char *bytes = (unsigned char *)block;
    uint16_t tag = (uint16_t)(held >> TAG_SHIFT);
    if (block->tag != tag) fail("%p: tag %#x became %#x\n", (void *)block, tag, block->tag);
    unsigned char byte = payload_byte(block);
    for (size_t i = sizeof *block; i < block->size; i += payload_step(i, block->size)) {
        if (bytes[i] != byte) fail("%p: byte %zu of %u has changed\n", (void *)block, i, block->size);
    }
    return block;
}

/* ---- Operations ------------------------------------------------------------------------------------------------ */

static void *block_check(void *address, size_t size, size_t alignment) {
    if (!address) fail("no memory for %zu bytes\n", size);
    if ((uintptr_t)address % alignment != 0) fail("%p is not aligned to %zu\n", address, alignment);
    if (owns && owns(address) != 1) fail("%p is no block of hakmem's\n", address);
    if (HEAP(malloc_usable_size)(address) < size) fail("%p has less than %zu bytes\n", address, size);
    return address;
}

static void *block_new_zeroed(size_t size) {
    unsigned char *bytes = block_check(HEAP(calloc)(1, size), size, 1);
    if (bytes[0] != 0 || memcmp(bytes, bytes + 1, size - 1) != 0) fail("calloc(1, %zu) is not zero\n", size);
    return bytes;
}

static void *block_new_aligned(size_t size, uint64_t random) {
    size_t alignment = (size_t)16 << random % 13;
    void *address = NULL;
    switch (random >> 32 & 3) {
    case 0:
        if (HEAP(posix_memalign)(&address, alignment, size) != 0) fail("posix_memalign failed\n");
        break;
    case 1: address = HEAP(aligned_alloc)(alignment, size); break;
    default: address = HEAP(memalign)(alignment, size);
    }
    return block_check(address, size, alignment);
}

static handle block_new(uint64_t *random) {
    size_t size = random_size(random);
    uint64_t pick = random_next(random);
    void *address;
    if (pick % 16 == 0) {
        address = block_new_zeroed(size);
    } else if (pick % 16 == 1) {
        address = block_new_aligned(size, pick >> 8);
    } else {
        address = block_check(HEAP(malloc)(size), size, 1);
    }
    return payload_fill(address, size, (uint16_t)(pick >> 16));
}

static void block_drop(handle held) {
    if (held) HEAP(free)(payload_check(held));
}

static handle block_resize(handle held, uint64_t *random) {
    struct header *block = payload_check(held), before = *block;
    unsigned char byte = payload_byte(block);
    size_t size = random_size(random), kept = size < before.size ? size : before.size;
    unsigned char *bytes = block_check(HEAP(realloc)(block, size), size, 1);
    if (memcmp(bytes, &before, sizeof before.size + sizeof before.tag) != 0) fail("realloc lost a header\n");
    for (size_t i = sizeof before; i < kept; i += payload_step(i, before.size)) {
        if (bytes[i] != byte) fail("%p: realloc lost byte %zu of %zu\n", (void *)bytes, i, kept);
    }
    return payload_fill(bytes, size, (uint16_t)random_next(random));
}

static void operate(handle *own, uint64_t *random) {
    uint64_t pick = random_next(random);
    handle *mine = &own[pick >> 32 & (SLOTS_OWN - 1)];
    switch (pick % 8) {
    case 0:
    case 1:
    case 2: /* hand a new one over, free what somebody else left */
        block_drop(atomic_exchange(&shared[pick >> 40 & (SLOTS_SHARED - 1)], block_new(random)));
        break;
    case 3: /* swap with the shared slots */
        *mine = atomic_exchange(&shared[pick >> 40 & (SLOTS_SHARED - 1)], *mine);
        break;
    case 4:
        if (*mine) *mine = block_resize(*mine, random);
        break;
    default: block_drop(*mine); *mine = pick & 64 ? block_new(random) : 0;
    }
}

static void operate_and_clear(uint64_t seed, unsigned long operations) {
    handle own[SLOTS_OWN] = {0};
    for (unsigned long i = 0; i < operations; i++) operate(own, &seed);
    for (int i = 0; i < SLOTS_OWN; i++) block_drop(own[i]);
}

static void clear_shared(void) {
    for (int i = 0; i < SLOTS_SHARED; i++) block_drop(atomic_exchange(&shared[i], 0));
}

/* ---- Threads and children -------------------------------------------------------------------------------------- */

struct seat {
    pthread_t thread;
    unsigned lives_left;
    unsigned long operations_per_life;
    uint64_t seed;
};

static void *live(void *argument) {
    struct seat *seat = argument;
    operate_and_clear(seat->seed + seat->lives_left, seat->operations_per_life);
    return NULL;
}

static void seat_fill(struct seat *seat) {
    seat->lives_left--;
    int error = pthread_create(&seat->thread, NULL, live, seat);
    if (error) fail("no thread: %d\n", error);
}

/* The child has all blocks, also those of threads that it does not have. */
static void fork_and_check(uint64_t seed) {
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        operate_and_clear(seed, CHILD_OPERATIONS);
        clear_shared();
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) fail("the child's wait status is %#x\n", (unsigned)status);
}

static void prove_takeover(void) {
#ifdef STRESS_HAK
    owns = hak_owns;
#else
    const char *any = getenv("HAK_TEST_ALLOW_ANY");
    *(void **)&owns = dlsym(RTLD_DEFAULT, "hak_owns");
    if (!owns && any && *any == '1') return;
#endif
    void *block = HEAP(malloc)(1);
    if (!owns || owns(block) != 1) {
        fprintf(stderr, "this process does not run on hakmem\n");
        exit(3);
    }
    HEAP(free)(block);
}

int main(int argc, char **argv) {
    static struct seat seats[THREADS_MAX];
    unsigned long thread_count = argc > 1 ? strtoul(argv[1], NULL, 10) : 4;
    unsigned long operations = argc > 2 ? strtoul(argv[2], NULL, 10) : 1000000;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    if (thread_count < 1 || thread_count > THREADS_MAX) fail("1 to %d threads\n", THREADS_MAX);
    printf("stress: %lu threads, %lu operations, seed %llu\n", thread_count, operations, (unsigned long long)seed);
    fflush(stdout);
    prove_takeover();

    unsigned child_count = 0;
    for (unsigned long i = 0; i < thread_count; i++) {
        seats[i] = (struct seat){0, LIVES, operations / thread_count / LIVES, seed + i * 1000003};
        seat_fill(&seats[i]);
    }
    for (unsigned ended = 0; ended < thread_count * LIVES; ended++) {
        struct seat *seat = &seats[ended % thread_count];
        pthread_join(seat->thread, NULL);
        if (STRESS_FORKS && ended % 4 == 0) fork_and_check(seed + ++child_count);
        if (seat->lives_left > 0) seat_fill(seat);
    }
    clear_shared();
    printf("stress: passed, %u children\n", child_count);
    return 0;
}
