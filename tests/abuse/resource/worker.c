/* A plain program: allocates so many MiB in blocks of three kinds, checks and frees them, twice, in two threads; what
 * start.c starts in poor places. Reads nothing from /proc and opens no file.
 *
 *     worker works MIB */
#include "../../api/expect.h"

#include <pthread.h>

static size_t wanted_bytes;

struct record {
    struct record *next;
    size_t size;
};

/* A third each of small, medium and large blocks. Fails at the first NULL: all of it must be there. */
static void use(size_t bytes, uint64_t seed) {
    static const size_t most[] = {512, 20 * KIB, MIB};
    struct record *first = NULL;
    for (size_t kind = 0; kind < COUNT_OF(most); kind++) {
        for (size_t had = 0; had < bytes / 3;) {
            size_t size = random_size(&seed, sizeof(struct record), most[kind]);
            struct record *record = had % 2 ? calloc(1, size) : malloc(size);
            EXPECT(record, "NULL for %zu bytes, after %zu KiB of kind %zu", size, had / KIB, kind);
            EXPECT(had % 2 == 0 || (!record->next && !record->size), "calloc(1, %zu) is not zero", size);
            memset(record, (int)(size & 127), size);
            record->next = first;
            record->size = size;
            first = record;
            had += size;
        }
    }
    while (first) {
        struct record *record = first;
        first = record->next;
        const char *bytes_of = (const char *)record;
        for (size_t i = sizeof(*record); i < record->size; i++) {
            EXPECT(bytes_of[i] == (char)(record->size & 127), "block %p of %zu bytes changed", (void *)record,
                   record->size);
        }
        free(record);
    }
}

static void *thread_use(void *unused) {
    (void)unused;
    use(wanted_bytes / 4, 2);
    return NULL;
}

static void works(void) {
    EXPECT(wanted_bytes, "usage: worker works MIB");
    for (uint64_t round = 0; round < 2; round++) {
        use(wanted_bytes, round);
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 * KIB);
    pthread_t threads[2];
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        int code = pthread_create(&threads[i], &attributes, thread_use, NULL);
        EXPECT(code == 0, "pthread_create gave %d", code);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        pthread_join(threads[i], NULL);
    }
    malloc_trim(0);
    use(wanted_bytes, 7);
    void *aligned = memalign(64 * KIB, 100 * KIB);
    EXPECT(is_aligned(aligned, 64 * KIB) && aligned, "memalign gave %p", aligned);
    aligned = realloc(aligned, 2 * MIB);
    EXPECT(aligned, "realloc to 2 MiB");
    free(aligned);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"works", works}};
    wanted_bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 0) * MIB;
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
