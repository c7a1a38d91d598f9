/* Knobs that somebody gives a value while the controller turns them. */
#include "library.h"

#define KNOB HAK_KNOB_decay_ms
enum { BEFORE = 500, TURNED = 1000, GIVEN = 2000 };

static void setup(void) {
    library_start(1, 1, 2, 1);
    model_assert(hak_knob_set(KNOB, BEFORE), "it may have this value");
    model_name(&hak_knobs.decay_ms, "decay_ms");
}

static void turn(void) { hak_knob_turn(KNOB, BEFORE, TURNED); }
static void give_same(void) { hak_knob_give(KNOB, BEFORE); }
static void give_other(void) { hak_knob_give(KNOB, GIVEN); }

static void check_same(void) { model_assert(hak_knob_get(KNOB) == BEFORE, "it has what it was given"); }
static void check_other(void) { model_assert(hak_knob_get(KNOB) == GIVEN, "it has what it was given"); }

MODEL_HARNESS(knob_given_the_same, setup, check_same, turn, give_same);
MODEL_HARNESS(knob_given_another, setup, check_other, turn, give_other);
