#include "base/experiment.h"

struct hak_experiment hak_experiment;

/* FNV-1a. The NUL at the end of a text is hashed with it, so that two texts are not one. */
static uint64_t hash_text(uint64_t hash, const char *text) {
    do hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    while (*text++ != '\0');
    return hash;
}

bool hak_experiment_treats(const char *name, const char *host, uint64_t share) {
    uint64_t hash = hash_text(hash_text(UINT64_C(0xcbf29ce484222325), name), host);
    /* Names that differ in their last letter alone shall not be neighbours: the bits are mixed once more (murmur3). */
    hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
    hash = (hash ^ hash >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    hash ^= hash >> 33;
    return (hash >> 32) * HAK_EXPERIMENT_WHOLE >> 32 < share;
}

const char *hak_experiment_arm(void) { return hak_experiment.is_treated ? "treatment" : "control"; }
