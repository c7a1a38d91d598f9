/* Between the parts of the checker: checker.c runs threads and chooses, memory.c says what an operation may see.
 */
#ifndef MODEL_INTERNAL_H
#define MODEL_INTERNAL_H

#include "checker.h"

/* The execution in progress. */
struct model_execution {
    bool running;         /* threads run: operations are modelled; else they are plain memory */
    bool restart;         /* a location turned out to be shared: what was explored had too few switches */
    bool cut_preemptions; /* a bound took away a choice */
    bool cut_stale;
    unsigned thread; /* who runs */
    unsigned thread_count;
    unsigned stale_left;
    unsigned round; /* restarts so far, from 1 */
};
extern struct model_execution model_now;

enum model_step_kind { MODEL_STEP_OPERATION, MODEL_STEP_YIELD, MODEL_STEP_WAIT, MODEL_STEP_WAKE };

/* One line of a schedule. */
struct model_step {
    enum model_step_kind kind;
    uint8_t thread;
    bool reads, writes, old;       /* old: not the newest message read, or not made the newest */
    const struct model_site *site; /* of an operation */
    const volatile void *address;
    const char *name;
    uint64_t read, written;
};

/* checker.c */
unsigned model_choose(unsigned count);
void model_switch_point(void); /* another thread may run here */
struct model_step *model_step(enum model_step_kind kind, const struct model_site *site);
bool model_is_private(const volatile void *address); /* a thread's stack or thread-local */
const char *model_source_line(const void *code, char *text, size_t size);

/* memory.c */
void model_memory_begin(void); /* an exploration */
void model_memory_reset(void); /* an execution */
bool model_memory_changed(unsigned thread);
void model_memory_forget_reads(unsigned thread);
void model_memory_see_all(void); /* the running thread sees all that has been done */
uint64_t model_memory_latest(const volatile void *address, unsigned size);

/* sites.c */
void model_sites_build(void);

#endif
