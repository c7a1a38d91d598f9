/* control/phase.h: what counts as the same phase, how soon another one is seen, and what is remembered. */
#include "unit.h"

#include "control/phase.h"

static struct hak_phases phases;

static enum hak_phase_change see(double first, double last) {
    struct hak_signature signature = {.parts = {first, 1, last}};
    return hak_phases_see(&phases, &signature);
}

static void changes(void **state) {
    (void)state;
    hak_phases_begin(&phases);
    assert_int_equal(see(10, 0), HAK_PHASE_NEW);
    assert_int_equal(see(11.9, 1), HAK_PHASE_SAME);
    assert_int_equal(see(10, 5), HAK_PHASE_AWAY); /* once is nothing yet */
    assert_int_equal(see(10, 0), HAK_PHASE_SAME);
    assert_int_equal(see(10, 5), HAK_PHASE_AWAY);
    assert_int_equal(see(10, 5), HAK_PHASE_NEW);
    assert_int_equal(phases.current, 1);
    assert_int_equal(see(10, 0), HAK_PHASE_KNOWN); /* at once */
    assert_int_equal(phases.current, 0);
    assert_int_equal(see(10, 5), HAK_PHASE_KNOWN);
    assert_int_equal(phases.current, 1);
    assert_int_equal(phases.count, 2);
}

/* A part that is unknown is like any other, and becomes known. */
static void unknown_parts(void **state) {
    (void)state;
    hak_phases_begin(&phases);
    assert_int_equal(see(10, HAK_SIGNATURE_UNKNOWN), HAK_PHASE_NEW);
    assert_int_equal(see(10, 7), HAK_PHASE_SAME);
    assert_int_equal(see(10, 0), HAK_PHASE_AWAY);
    assert_int_equal(see(10, HAK_SIGNATURE_UNKNOWN), HAK_PHASE_SAME);
    assert_int_equal(see(10, 7), HAK_PHASE_SAME);
    assert_int_equal(see(10, 0), HAK_PHASE_AWAY);
    assert_int_equal(see(10, 0), HAK_PHASE_NEW);
}

static void stays(void **state) {
    (void)state;
    hak_phases_begin(&phases);
    see(0, 0);
    assert_int_equal(see(10, 0), HAK_PHASE_AWAY);
    assert_int_equal(hak_phases_stay(&phases), HAK_PHASE_SAME);
    assert_int_equal(see(10, 0), HAK_PHASE_AWAY); /* for the first time in a row */
    assert_int_equal(see(10, 0), HAK_PHASE_NEW);
    assert_int_equal(phases.period, 5);
}

static void follows_slowly(void **state) {
    (void)state;
    hak_phases_begin(&phases);
    see(0, 0);
    for (double at = 0; at < 20; at += 0.1) assert_int_equal(see(at, 0), HAK_PHASE_SAME);
    assert_int_equal(see(0, 0), HAK_PHASE_AWAY);
}

static void forgets_the_oldest(void **state) {
    (void)state;
    hak_phases_begin(&phases);
    for (int i = 0; i < HAK_PHASES; i++) {
        see(10 * i, 0);
        see(10 * i, 0);
    }
    assert_int_equal(phases.count, HAK_PHASES);
    assert_int_equal(see(0, 0), HAK_PHASE_KNOWN); /* now 10 is the oldest */
    assert_int_equal(see(500, 0), HAK_PHASE_AWAY);
    assert_int_equal(see(500, 0), HAK_PHASE_NEW);
    assert_int_equal(phases.count, HAK_PHASES);
    assert_int_equal(phases.current, 1);
    assert_int_equal(see(0, 0), HAK_PHASE_KNOWN);
    assert_int_equal(see(10, 0), HAK_PHASE_AWAY);
}

static void any_signature(void **state) { /* G1 */
    (void)state;
    uint64_t random = 9;
    hak_phases_begin(&phases);
    for (int i = 0; i < 20000; i++) {
        see((double)(unit_random(&random) % 100), (double)(unit_random(&random) % 1000) * 1e300);
        assert_true(phases.current < phases.count && phases.count <= HAK_PHASES);
    }
}

UNIT_MAIN(cmocka_unit_test(changes), cmocka_unit_test(unknown_parts), cmocka_unit_test(stays),
          cmocka_unit_test(follows_slowly), cmocka_unit_test(forgets_the_oldest), cmocka_unit_test(any_signature))
