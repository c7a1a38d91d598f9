/* A block is freed, then so many others, then the block again; and the program goes on. Is the second free found before
 * the block has two owners?
 *
 *     double_free_between MOST LEAST
 *
 * Each of SEEDS processes draws a size, how many blocks are freed in between (0 to BETWEEN_MOST), and what comes after:
 * up to CALLS_MOST calls of malloc and free for that size, at random. Prints how many ended with the block handed out
 * twice, and how many were stopped before. Fails if the former are more than MOST, or the latter fewer than LEAST: how
 * soon a block is used again changes the former, too. */
#include "case.h"
#include "churn.h"

enum { SEEDS = 1000, BETWEEN_MOST = 64, CALLS_MOST = 4000, BLOCKS = 1024, TWICE = 42, UNNOTICED = 43 };

static void *blocks[BLOCKS + CALLS_MOST];
static unsigned count;

static void free_any(uint64_t *random) {
    unsigned any = (unsigned)(churn_random(random) % count);
    void *chosen = blocks[any];
    blocks[any] = blocks[--count];
    free(chosen);
}

static void misuse(uint64_t seed) {
    static const size_t sizes[] = {16, 64, 200, 1024, 4096, 16384};
    uint64_t random = seed * 0x9E3779B97F4A7C15u + 1;
    size_t size = sizes[churn_random(&random) % (sizeof sizes / sizeof *sizes)];
    for (count = 0; count < BLOCKS; count++) blocks[count] = malloc(size);
    void *block = blocks[--count];
    free(block);
    for (uint64_t between = churn_random(&random) % (BETWEEN_MOST + 1); between > 0; between--) free_any(&random);
    free(hidden(block));
    unsigned owners = 0;
    for (int i = 0; i < CALLS_MOST; i++) {
        if (churn_random(&random) % 2 == 0) {
            free_any(&random);
            continue;
        }
        void *got = malloc(size);
        if (got != block) blocks[count++] = got; /* the block is kept by whoever gets it */
        else if (++owners == 2) _exit(TWICE);
    }
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: %s MOST LEAST", argv[0]);
    unsigned long most = strtoul(argv[1], NULL, 10), least = strtoul(argv[2], NULL, 10);
    unsigned twice = 0, found = 0, unnoticed = 0;
    case_bound_time(120);
    case_bound_memory(1024);
    case_prove();
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        pid_t child = fork();
        expect(child >= 0, "no child: errno %d", errno);
        if (child == 0) {
            expect(freopen("/dev/null", "w", stderr), "no /dev/null");
            case_bound_time(10);
            misuse(seed);
            _exit(UNNOTICED);
        }
        int status = case_await(child, 20);
        bool is_over = status >= 0 && WIFEXITED(status);
        if (is_over && WEXITSTATUS(status) == TWICE) twice++;
        else if (is_over && WEXITSTATUS(status) == UNNOTICED) unnoticed++;
        else if (status >= 0 && WIFSIGNALED(status)) found++;
        else expect(false, "seed %lu: wait status %#x", (unsigned long)seed, (unsigned)status);
    }
    case_print(1, "of %d double frees the block was handed out twice after %u, %u were stopped before, %u unnoticed",
               SEEDS, twice, found, unnoticed);
    expect(twice <= most, "%u are more than %lu", twice, most);
    expect(found >= least, "%u are fewer than %lu", found, least);
    return 0;
}
