/* An experiment on part of a fleet: knobs that are set on some hosts (HAKMEM_EXPERIMENT), and how the hosts are chosen.
 *
 * A host is in one of two arms by a hash of the experiment's name and its own name. So all processes of a host agree, a
 * restart changes nothing, and another experiment deals the hosts anew. front/process.c writes what this process takes
 * part in, once, in the constructor; statistics and metrics read it. */
#ifndef HAK_BASE_EXPERIMENT_H
#define HAK_BASE_EXPERIMENT_H

#include "base/platform.h"

enum { HAK_EXPERIMENT_NAME_BYTES = 32, HAK_EXPERIMENT_WHOLE = 10000 };

struct hak_experiment {
    char name[HAK_EXPERIMENT_NAME_BYTES + 1]; /* empty: there is none */
    bool is_treated;                          /* the knobs are set here; else the host is one to compare with */
};

extern struct hak_experiment hak_experiment;

/* Whether a host is among the `share` of HAK_EXPERIMENT_WHOLE that have the knobs set. */
bool hak_experiment_treats(const char *name, const char *host, uint64_t share);

/* The arm of this process's host, as labels have it. */
const char *hak_experiment_arm(void);

#endif
