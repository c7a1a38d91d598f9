/* Looking how tight memory is: one thread at a time has the record of what was seen, and growth that is counted meanwhile is not
 * lost.
 */
#include "library.h"

enum { GROWTH = 5000 };

static void setup(void) {
    library_start(1, 1, 3, 1);
    library_let_look();
    model_name(&hak_pages_grown, "pages grown");
}

static void look(void) { hak_tight_check(); }
static void grow_and_look(void) {
    hak_count_growth(GROWTH);
    hak_tight_check();
}

static void check(void) {
    hak_tight_check();
    model_assert(library_growth_seen() == GROWTH * fake_os.page_bytes, "growth is seen, and counts once");
    model_assert(hak_tight_pages_left() > 0, "the next look comes later");
}

MODEL_HARNESS(tight_look, setup, check, look, grow_and_look);
MODEL_HARNESS_BOUNDED(tight_look_three, 1, 1, setup, check, look, look, grow_and_look);
