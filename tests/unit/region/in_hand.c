/* region/in_hand.h: a search that found nothing looks again while somebody has memory in hand, for a bounded time. */
#include "unit.h"

#include "fake_os.h"
#include "region/in_hand.h"

static void nobody(void **state) {
    (void)state;
    struct hak_search search = hak_search_begin();
    assert_false(hak_search_again(&search));
    hak_in_hand_begin();
    assert_true(hak_in_hand_is_some());
    hak_in_hand_keep();
    assert_false(hak_in_hand_is_some());
    assert_false(hak_search_again(&search)); /* nothing was given back */
    assert_int_equal(fake_os.waits, 0);
}

static void given_back(void **state) {
    (void)state;
    struct hak_search search = hak_search_begin();
    hak_in_hand_begin();
    hak_in_hand_end();
    assert_true(hak_search_again(&search));
    assert_false(hak_search_again(&search)); /* what was given back before a look is seen by it */
    assert_int_equal(fake_os.waits, 0);
}

static void pass_time(void) { fake_os.clock_ms += 100; }

/* As another thread. */
static void take(void) { hak_atomic_fetch_add(&hak_in_hand, 1, relaxed); }

static void bounded(void **state) {
    (void)state;
    take();
    struct hak_search search = hak_search_begin();
    fake_os.at_wait = pass_time;
    uint32_t looks = 0;
    while (hak_search_again(&search)) looks++;
    assert_int_equal(looks, 10); /* a second */
    assert_int_equal(fake_os.waits, 10);
    fake_os.at_wait = NULL;
    hak_in_hand_recover_after_fork();
    assert_false(hak_in_hand_is_some());
}

static void not_for_itself(void **state) {
    (void)state;
    hak_in_hand_begin();
    struct hak_search search = hak_search_begin();
    assert_false(hak_search_again(&search)); /* in a signal handler */
    take();
    hak_in_hand_recover_after_fork(); /* in a child */
    hak_in_hand_end();
    assert_false(hak_in_hand_is_some());
}

UNIT_MAIN(cmocka_unit_test(nobody), cmocka_unit_test(given_back), cmocka_unit_test(bounded),
          cmocka_unit_test(not_for_itself))
