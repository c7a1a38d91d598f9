/* Threads that run one at a time, in turns, always in the same order: so each operation of one comes between two of
 * each other, and what they share moves as often as it can.
 *
 * A turn ends where the program says so: after each operation. With turns_are_steps it ends also before each atomic
 * read-modify-write, between what was read and what is swapped: as if all did the same at the same time, on as many
 * cores. */
#ifndef SCALE_TURNS_H
#define SCALE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

extern bool turns_are_steps;

/* Runs `count` threads, and returns when all have ended. */
void turns_run(int count, void (*run)(int number));

/* Ends the turn of the calling thread, and returns when it has the next one. */
void turns_end(void);

/* What lines.c says: an atomic operation comes now. Who only reads for long waits for somebody else. */
void turns_before_atomic(bool writes);

/* Runs a thread in the turns of the calling one, on its core, until it has ended. */
void turns_run_inside(void (*run)(int number));

#endif
