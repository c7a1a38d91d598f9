/* The first misses of a process, at once in two threads; the first attempt may fail. */
#include "library.h"

static void setup(void) { library_reset(); }

static void setup_refused(void) {
    library_reset();
    fake_os.maps_at_left = 0;
}

/* What a start writes is read as plain data. */
static void begin(void) {
    if (!hak_process_initialize()) {
        fake_os.maps_at_left = -1;
        return;
    }
    model_assert(hak_size_classes[1].block_bytes == 16, "size classes are known");
    model_assert(hak_region_range(0) != NULL, "there is a range");
    model_assert(hak_bin_offsets[1] == HAK_BIN_STRIDE, "bins are found");
}

static void check(void) { model_assert(hak_ranges[1] == NULL, "there is one range"); }

MODEL_HARNESS(process_start, setup, check, begin, begin);
MODEL_HARNESS(process_start_again, setup_refused, check, begin, begin);
