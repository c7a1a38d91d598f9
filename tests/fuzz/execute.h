/* Runs a program on an allocator, and checks what the allocator does. */
#ifndef HAKMEM_FUZZ_EXECUTE_H
#define HAKMEM_FUZZ_EXECUTE_H

#include "program.h"

/* Returns when all was as it must be; ends the process by SIGABRT when not. All blocks are freed and all threads have
 * ended when it returns. */
void execute(const struct program *program);

/* The same twice: what the allocator has in the end must not be more the second time. */
void execute_twice(const struct program *program);

/* Starts this process anew, if need be, with the settings that make a program repeat: without hakmem's own threads. To
 * be called first of all in main. */
void execute_begin(char **arguments);

#endif
