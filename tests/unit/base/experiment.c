/* base/experiment.h: that each host is dealt an arm, the same one each time, as many as the share says, anew for each experiment. */
#include "unit.h"

#include <stdio.h>

#include "base/experiment.h"

enum { HOSTS = 20000 };

static const char *host_name(uint32_t number) {
    static char name[32];
    snprintf(name, sizeof name, "web-%u.example.org", number);
    return name;
}

/* Hosts of these that are in the treatment of all of the experiments. */
static int count(uint64_t share, const char *first, const char *second) {
    int found = 0;
    for (uint32_t i = 0; i < HOSTS; i++)
        found +=
            hak_experiment_treats(first, host_name(i), share) && hak_experiment_treats(second, host_name(i), share);
    return found;
}

/* Four standard deviations of a binomial are allowed. */
static void the_share(void **state) {
    (void)state;
    assert_in_range(count(500, "decay", "decay"), 1000 - 124, 1000 + 124);
    assert_in_range(count(5000, "decay", "decay"), 10000 - 283, 10000 + 283);
    assert_int_equal(count(HAK_EXPERIMENT_WHOLE, "decay", "decay"), HOSTS);
    assert_int_equal(count(0, "decay", "decay"), 0);
}

static void experiments_do_not_follow_each_other(void **state) {
    (void)state;
    assert_in_range(count(5000, "decay", "decay2"), 5000 - 245, 5000 + 245);
    assert_in_range(count(5000, "a", "b"), 5000 - 245, 5000 + 245);
}

/* A host stays where it is, in later versions, too; and in a larger share it stays treated. */
static void the_same_each_time(void **state) {
    (void)state;
    static const struct {
        const char *host;
        bool is_treated;
    } known[] = {{"web-1", true}, {"web-2", true}, {"web-3", false}, {"web-4", true},
                 {"db-1", true},  {"db-2", false}, {"", false}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_int_equal(hak_experiment_treats("decay", known[i].host, 5000), known[i].is_treated);
    for (uint32_t i = 0; i < HOSTS; i++)
        if (hak_experiment_treats("decay", host_name(i), 500))
            assert_true(hak_experiment_treats("decay", host_name(i), 1000));
}

/* Where a name ends is part of it. */
static void names_are_not_run_together(void **state) {
    (void)state;
    int differ = 0;
    for (uint32_t i = 0; i < 64; i++) {
        char joined[40];
        snprintf(joined, sizeof joined, "y%s", host_name(i));
        differ += hak_experiment_treats("xy", host_name(i), 5000) != hak_experiment_treats("x", joined, 5000);
    }
    assert_in_range(differ, 12, 52);
}

UNIT_MAIN(cmocka_unit_test(the_share), cmocka_unit_test(experiments_do_not_follow_each_other),
          cmocka_unit_test(the_same_each_time), cmocka_unit_test(names_are_not_run_together))
