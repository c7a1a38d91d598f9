/* Snapshots: a process forks, and the child has the heap as it was, while parent or child goes on.
 *
 *     bench_snapshot BYTES MIN MAX UPDATES SEED
 *
 * The parent fills BYTES with blocks of MIN..MAX bytes and writes all of their pages. Then it forks twice:
 *
 *     the freeing child frees all blocks in a random order, as a worker does that wants none of what it inherited;
 *     the snapshot waits, while the parent replaces UPDATES blocks by others of random sizes, four of five of them among
 *     a fifth of all: what a server does while its child writes everything to a file.
 *
 * One operation is a malloc or a free of the parent's updates. The program's own table is shared, so that writing to it
 * copies nothing.
 *
 * Figures:
 *     heap          resident memory before the first fork, without the program's table
 *     freed_dirty   memory that the freeing child has for itself because it freed: pages that it has written
 *     freed_rss     what is resident in it then
 *     copied        what snapshot and parent take together beyond `heap`, after the updates (sums of Pss)
 *     updated       bytes of the blocks that were replaced, which no allocator can keep shared
 */
#include "bench.h"

#include <sys/wait.h>

struct slot {
    void *block;
    uint32_t bytes;
    uint8_t tag;
};

static struct slot *slots;
static size_t slot_count, slot_limit;
static struct bench_sizes sizes;

static void fill(struct slot *slot, uint64_t draw) {
    slot->bytes = (uint32_t)bench_pick_size(draw, sizes);
    slot->tag = (uint8_t)draw;
    slot->block = bench_allocate(slot->bytes);
    bench_touch_pages(slot->block, slot->bytes, slot->tag);
}

static void fill_all(uint64_t bytes, struct bench_random *random) {
    for (uint64_t have = 0; have < bytes && slot_count < slot_limit; slot_count++) {
        fill(&slots[slot_count], bench_random_next(random));
        have += slots[slot_count].bytes;
    }
    for (size_t i = slot_count; i > 1; i--) {
        size_t other = bench_pick_index(bench_random_next(random), i);
        struct slot slot = slots[other];
        slots[other] = slots[i - 1];
        slots[i - 1] = slot;
    }
}

static uint64_t own_kib(const char *name) { return bench_kernel_kib("/proc/self/smaps_rollup", name); }

/* ---- Children ---------------------------------------------------------------------------------------------------- */

struct answer {
    uint64_t kib[2];
};

struct child {
    pid_t id;
    int ask, answer; /* pipes: a byte to the child, and an answer from it */
};

static void must_read(int from, void *to, size_t bytes) {
    if (read(from, to, bytes) != (ssize_t)bytes) {
        bench_fail("a child has ended too early");
    }
}

static void must_write(int to, const void *from, size_t bytes) {
    if (write(to, from, bytes) != (ssize_t)bytes) {
        bench_fail("a pipe is closed");
    }
}

/* The child waits to be asked, answers what `work` returns, and ends without its exit handlers. */
static struct child begin(struct answer (*work)(void)) {
    int ask[2], answer[2];
    if (pipe(ask) != 0 || pipe(answer) != 0) {
        bench_fail("no pipe");
    }
    fflush(stdout);
    pid_t id = fork();
    if (id < 0) {
        bench_fail("fork");
    }
    if (id == 0) {
        char byte;
        must_read(ask[0], &byte, 1);
        struct answer result = work();
        must_write(answer[1], &result, sizeof result);
        _exit(EXIT_SUCCESS);
    }
    close(ask[0]);
    close(answer[1]);
    return (struct child){id, ask[1], answer[0]};
}

static struct answer end(struct child child) {
    struct answer result;
    int status;
    must_write(child.ask, "", 1);
    must_read(child.answer, &result, sizeof result);
    if (waitpid(child.id, &status, 0) != child.id || status != 0) {
        bench_fail("a child has failed");
    }
    close(child.ask);
    close(child.answer);
    return result;
}

static struct answer free_all(void) {
    uint64_t before = own_kib("\nPrivate_Dirty:");
    for (size_t i = 0; i < slot_count; i++) {
        free(slots[i].block);
    }
    uint64_t after = own_kib("\nPrivate_Dirty:");
    return (struct answer){{after > before ? after - before : 0, own_kib("\nRss:")}};
}

static struct answer tell_share(void) { return (struct answer){{own_kib("\nPss_Anon:"), 0}}; }

/* ---- The parent -------------------------------------------------------------------------------------------------- */

/* Returns the bytes replaced. */
static uint64_t update(uint64_t updates, struct bench_random *random) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < updates; i++) {
        uint64_t draw = bench_random_next(random);
        size_t among = draw % 5 == 0 ? slot_count : (slot_count + 4) / 5;
        struct slot *slot = &slots[bench_pick_index(bench_random_next(random), among)];
        bytes += slot->bytes;
        free(slot->block);
        fill(slot, draw);
    }
    return bytes;
}

static uint64_t fold_all(void) {
    uint64_t checksum = 0;
    for (size_t i = 0; i < slot_count; i++) {
        checksum = bench_fold_pages(checksum, slots[i].block, slots[i].bytes);
    }
    return checksum;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 5, 5, "bench_snapshot BYTES MIN MAX UPDATES SEED");
    uint64_t bytes = bench_number(argv[1], 1), updates = bench_number(argv[4], 1);
    sizes = bench_sizes(bench_number(argv[2], 1), bench_number(argv[3], 1));
    struct bench_random random = bench_random_seeded(bench_number(argv[5], 0), 0);
    slot_limit = bytes / sizes.min_bytes + 1;
    slots = mmap(NULL, slot_limit * sizeof *slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED) {
        bench_fail("no memory for the program's own tables");
    }
    fill_all(bytes, &random);
    uint64_t heap_kib = own_kib("\nAnonymous:");

    struct answer freed = end(begin(free_all));
    uint64_t before_kib = own_kib("\nPss_Anon:");
    struct child snapshot = begin(tell_share);
    double start = bench_now();
    uint64_t updated_bytes = update(updates, &random);
    double seconds = bench_now() - start;
    uint64_t parent_kib = own_kib("\nPss_Anon:"), both_kib = parent_kib + end(snapshot).kib[0];

    bench_figure("heap", (double)(heap_kib << 10), "bytes");
    bench_figure("freed_dirty", (double)(freed.kib[0] << 10), "bytes");
    bench_figure("freed_rss", (double)(freed.kib[1] << 10), "bytes");
    bench_figure("copied", both_kib > before_kib ? (double)((both_kib - before_kib) << 10) : 0, "bytes");
    bench_figure("updated", (double)updated_bytes, "bytes");
    bench_close(2 * updates, seconds, fold_all());
    return 0;
}
