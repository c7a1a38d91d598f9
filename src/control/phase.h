/* Phases of a program, told apart by a signature: logarithms of what it does, chosen so that the knobs change them
 * little. Pure.
 *
 * A phase that was seen before is recognised at the first period that looks like it; one that was never seen must look
 * different twice. A phase's signature follows the program slowly.
 *
 *   G1  `current` is below `count`, and `count` at most HAK_PHASES, once a signature was seen: the one that was left
 *       longest ago makes room.
 */
#ifndef HAK_CONTROL_PHASE_H
#define HAK_CONTROL_PHASE_H

#include "base/platform.h"

enum { HAK_PHASES = 8, HAK_SIGNATURE_PARTS = 3 };

/* A part that a period says nothing of. It is like any other; what is known of a phase stays, or becomes known
 * later. */
#define HAK_SIGNATURE_UNKNOWN (-1.0)

struct hak_signature {
    double parts[HAK_SIGNATURE_PARTS]; /* >= 0, base 2 where they are logarithms; or unknown */
};

struct hak_phases {
    struct hak_signature signatures[HAK_PHASES];
    uint64_t last_seen[HAK_PHASES]; /* number of the period */
    uint64_t period;
    uint32_t count, current;
    bool is_away; /* the last period looked like no phase */
};

enum hak_phase_change { HAK_PHASE_SAME, HAK_PHASE_AWAY, HAK_PHASE_KNOWN, HAK_PHASE_NEW };

/* How far apart two signatures are: the largest difference of a part that is known of both. */
double hak_signature_distance(const struct hak_signature *a, const struct hak_signature *b);

void hak_phases_begin(struct hak_phases *phases);

/* Takes the signature of a period; `current` is the phase that it belongs to. AWAY: to none, perhaps. NEW: what is
 * remembered of `current` is to be forgotten. */
enum hak_phase_change hak_phases_see(struct hak_phases *phases, const struct hak_signature *signature);

/* A period whose signature says nothing of the program. */
enum hak_phase_change hak_phases_stay(struct hak_phases *phases);

#endif
