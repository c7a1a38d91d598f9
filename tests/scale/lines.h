/* What an operation of the library costs machines with many cores, counted on few: how often a cache line has to come
 * from another core, how often a compare-and-swap fails, how many system calls are made.
 *
 * The library's own sources are compiled with -fsanitize=thread, and no runtime of it is linked: lines.c takes the
 * calls that announce each access, plain or atomic. One thread runs at a time (turns.h), so all of it is exact, and
 * the same in each run.
 *
 * Each thread stands for a core with a cache that loses nothing. A line is had by the core that wrote it last, and by
 * those that have read it since. An access is a *transfer* when the line has to move:
 *
 *   - a read, when another core has written the line since this one last had it;
 *   - a write, when another core has the line, for reading or for writing.
 *
 * The first access of all to a line is none: it comes from memory, however many cores there are. */
#ifndef SCALE_LINES_H
#define SCALE_LINES_H

#include <stdbool.h>
#include <stdint.h>

enum { LINES_MOST_CORES = 512, LINES_HOTTEST = 16 };

/* The calling thread's core; below 0 for threads that are not counted. */
extern __thread int lines_core;

/* Sums since lines_begin. */
struct lines_counts {
    uint64_t accesses;          /* of the library, stacks left out */
    uint64_t atomic_writes;     /* read-modify-writes, failed ones among them */
    uint64_t failed_swaps;      /* compare-and-swaps */
    uint64_t transfers;         /* of lines that the library wrote or read */
    uint64_t program_transfers; /* of lines of blocks, by the program */
    uint64_t system_calls;
    uint64_t hottest[LINES_HOTTEST]; /* transfers of single lines of the library's, most first */
};

/* Before there are threads. Stacks lie in this area, thread-local variables with them: nobody else's. */
void lines_initialize(uintptr_t stacks, uint64_t stacks_bytes);

/* From now on who has which line is known, and what happens is counted. Before, and after lines_end, the first is
 * known, too. */
void lines_begin(void);
void lines_end(struct lines_counts *counts);

/* From now on nothing is known: threads run at once. */
void lines_stop(void);

/* The program writes to a block of its own. */
void lines_program_writes(void *block);

/* The time that the library sees. */
void lines_set_clock_ns(uint64_t now_ns);

/* Writes where most transfers were made to standard error: addresses for addr2line. */
void lines_print_sites(void);

#endif
