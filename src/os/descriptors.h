/* Descriptors: tables of them that are not the program's. A thread of hakmem's own takes one, which begins empty, and a
 * thread that it starts has the same; what they open, the program doesn't see.
 *
 * At most two threads are known to have it: the one that took it last, and the one that it says shares it. Each says
 * which thread it is. */
#ifndef HAK_OS_DESCRIPTORS_H
#define HAK_OS_DESCRIPTORS_H

#include "base/platform.h"

/* A sanitizer writes what it finds to the standard error of the thread where it finds it. */
#ifdef HAK_SANITIZED
enum { HAK_DESCRIPTORS_KEEP_STDERR = 1 };
#else
enum { HAK_DESCRIPTORS_KEEP_STDERR = 0 };
#endif

/* Gives `thread`, which calls, and ends by hak_descriptors_leave, a table of descriptors of its own, for ever; it is
 * empty, but for the standard error where that is kept. False where the kernel can't. */
bool hak_descriptors_take(uint32_t thread);

/* `thread`, or 0 for none, has the table of the one that took it. */
void hak_descriptors_share(uint32_t thread);

/* Nobody has a table of his own: who took it is about to end. Also where none was taken. */
void hak_descriptors_leave(void);

/* If `thread`, which calls, is one of the two: a descriptor for the program's standard error, to be closed. Else, or
 * where there is none, -1. */
int hak_descriptors_borrow_stderr(uint32_t thread);

#endif
