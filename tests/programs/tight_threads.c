/* Threads whose live memory stays the same while the sizes of their blocks change, each at its own moment. Meant to be run
 * where memory is limited to a little more than that.
 *
 *     tight_threads THREADS BYTES
 *
 * A phase of a thread allocates BYTES in blocks of its kind, writes them, and replaces each; then it frees all but one in 16.
 * Those live on to the end of the next phase. Prints a checksum of what the blocks held.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PHASES = 8, STRIDE = 16, MOST_THREADS = 64 };

struct blocks {
    uint8_t **start;
    size_t count;
};

struct worker {
    pthread_t thread;
    uint64_t number, random, checksum;
    size_t bytes;
};

static void *allocate(size_t bytes) {
    void *block = malloc(bytes);
    if (block != NULL) return block;
    fputs("tight_threads: malloc returned NULL\n", stderr);
    exit(1);
}

static size_t pick_size(struct worker *worker, uint64_t phase) {
    static const size_t least[] = {400, 80 << 10, 2 << 10, 20 << 10}, most[] = {1200, 110 << 10, 6 << 10, 32 << 10};
    size_t kind = (phase + worker->number) % 4;
    worker->random = worker->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return least[kind] + (worker->random >> 33) % (most[kind] - least[kind]);
}

static size_t average_size(const struct worker *worker, uint64_t phase) {
    static const size_t averages[] = {800, 95 << 10, 4 << 10, 26 << 10};
    return averages[(phase + worker->number) % 4];
}

static void fill(struct worker *worker, struct blocks *blocks, uint64_t phase) {
    for (size_t i = 0; i < blocks->count; i++) {
        size_t bytes = pick_size(worker, phase);
        free(blocks->start[i]);
        blocks->start[i] = memset(allocate(bytes), (int)(i & 0xff), bytes);
    }
}

/* Frees the blocks that live on, or all others. */
static void empty(struct worker *worker, struct blocks *blocks, int living_on) {
    for (size_t i = 0; i < blocks->count; i++) {
        if ((i % STRIDE == 0) != living_on) continue;
        worker->checksum = worker->checksum * 31 + *blocks->start[i];
        free(blocks->start[i]);
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct blocks last = {NULL, 0};
    for (uint64_t phase = 0; phase < PHASES; phase++) {
        struct blocks blocks = {NULL, worker->bytes / average_size(worker, phase)};
        blocks.start = memset(allocate(blocks.count * sizeof *blocks.start), 0, blocks.count * sizeof *blocks.start);
        fill(worker, &blocks, phase);
        fill(worker, &blocks, phase);
        empty(worker, &last, 1);
        free(last.start);
        empty(worker, &blocks, 0);
        last = blocks;
    }
    empty(worker, &last, 1);
    free(last.start);
    return NULL;
}

int main(int argc, char **argv) {
    static struct worker workers[MOST_THREADS];
    size_t threads = argc == 3 ? strtoul(argv[1], NULL, 10) : 0, bytes = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (threads < 1 || threads > MOST_THREADS || bytes < 1 << 20) {
        fputs("usage: tight_threads THREADS BYTES; 1 to 64 threads, at least 1048576 bytes\n", stderr);
        return 2;
    }
    uint64_t checksum = 0;
    for (size_t i = 0; i < threads; i++) {
        workers[i] = (struct worker){.number = i, .random = i + 1, .bytes = bytes};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) return 1;
    }
    for (size_t i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        checksum = checksum * 31 + workers[i].checksum;
    }
    printf("checksum %016" PRIx64 "\n", checksum);
    return 0;
}
