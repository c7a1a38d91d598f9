/* AddressSanitizer's runtime allocates in a thread that begins or ends, and keeps a list of threads and their names. Its
 * locks are none that a fork takes, unless it is a new one: in a child that was forked while a thread held one, it stays
 * locked for ever, and the first thread that the child starts hangs. hakmem's own threads begin and end when they like.
 * So a program that has AddressSanitizer in it forks while none begins, takes a name, or ends. */
#ifndef HAKMEM_FUZZ_THREADS_H
#define HAKMEM_FUZZ_THREADS_H

/* From 1 on no thread does so until the caller lets them, after a fork in both processes. 0: one does, and takes
 * long. */
int threads_hold(void);
void threads_let(void);

#endif
