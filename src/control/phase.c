#include "control/phase.h"

#include <string.h>

#include "base/check.h"

/* A phase's own periods differ by less, in the largest of the parts; others by more: a factor of 4 in something. */
static const double signature_reach = 2;

static const double pace = 1.0 / 8; /* of a phase's signature, towards that of its last period */

double hak_signature_distance(const struct hak_signature *a, const struct hak_signature *b) {
    double largest = 0;
    for (uint32_t i = 0; i < HAK_SIGNATURE_PARTS; i++) {
        if (a->parts[i] < 0 || b->parts[i] < 0) continue;
        double difference = a->parts[i] - b->parts[i];
        if (difference < 0) difference = -difference;
        if (!(difference <= largest)) largest = difference;
    }
    return largest;
}

void hak_phases_begin(struct hak_phases *phases) { memset(phases, 0, sizeof *phases); }

static enum hak_phase_change enter_phase(struct hak_phases *phases, uint32_t phase, enum hak_phase_change change) {
    phases->current = phase;
    phases->last_seen[phase] = phases->period;
    phases->is_away = false;
    return change;
}

static enum hak_phase_change enter_new_phase(struct hak_phases *phases, const struct hak_signature *signature) {
    uint32_t phase = phases->count;
    if (phases->count < HAK_PHASES) phases->count++;
    else
        for (uint32_t i = phase = 0; i < HAK_PHASES; i++)
            if (phases->last_seen[i] < phases->last_seen[phase]) phase = i;
    phases->signatures[phase] = *signature;
    HAK_ASSERT(phase < phases->count && phases->count <= HAK_PHASES); /* G1 */
    return enter_phase(phases, phase, HAK_PHASE_NEW);
}

static void follow(struct hak_signature *own, const struct hak_signature *signature) {
    for (uint32_t i = 0; i < HAK_SIGNATURE_PARTS; i++) {
        if (own->parts[i] < 0) own->parts[i] = signature->parts[i];
        else if (!(signature->parts[i] < 0)) own->parts[i] += pace * (signature->parts[i] - own->parts[i]);
    }
}

enum hak_phase_change hak_phases_see(struct hak_phases *phases, const struct hak_signature *signature) {
    phases->period++;
    if (phases->count == 0) return enter_new_phase(phases, signature);
    struct hak_signature *own = &phases->signatures[phases->current];
    if (hak_signature_distance(own, signature) <= signature_reach) {
        follow(own, signature);
        return enter_phase(phases, phases->current, HAK_PHASE_SAME);
    }
    uint32_t nearest = 0;
    for (uint32_t i = 1; i < phases->count; i++)
        if (hak_signature_distance(&phases->signatures[i], signature) <
            hak_signature_distance(&phases->signatures[nearest], signature))
            nearest = i;
    if (hak_signature_distance(&phases->signatures[nearest], signature) <= signature_reach)
        return enter_phase(phases, nearest, HAK_PHASE_KNOWN);
    if (phases->is_away) return enter_new_phase(phases, signature);
    phases->is_away = true;
    return HAK_PHASE_AWAY;
}

enum hak_phase_change hak_phases_stay(struct hak_phases *phases) {
    HAK_ASSERT(phases->count > 0);
    phases->period++;
    return enter_phase(phases, phases->current, HAK_PHASE_SAME);
}
