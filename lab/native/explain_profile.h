/* The heap profile of a process on hakmem, as its tables have it: the samples that are live, and the stacks of their
 * sites. What was read is distrusted as in explain_heap.h: a sample whose site is none is left out. */
#ifndef HAK_LAB_EXPLAIN_PROFILE_H
#define HAK_LAB_EXPLAIN_PROFILE_H

#include <stdio.h>

#include "explain_heap.h"

/* Writes it as a member of an object in JSON, `"profile"`: null where the process has no profile. */
void profile_write(FILE *out, const struct heap_view *view);

#endif
