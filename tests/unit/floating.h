/* For tests of who computes with doubles in a thread of the program (base/floating.h). */
#ifndef UNIT_FLOATING_H
#define UNIT_FLOATING_H

#include "unit.h"

#include "base/floating.h"

/* From here on each exception is a signal, where the processor has such traps; none has been met. */
static inline void unit_trap_floating(void) {
#if defined(__x86_64__)
    hak_floating_end((struct hak_floating){.control = 0});
#else
    hak_floating_end((struct hak_floating){.control = 0x9f00});
#endif
}

/* So it is still. Afterwards it is as a process begins. */
static inline void unit_expect_trapped_floating(void) {
    struct hak_floating now = hak_floating_begin();
    assert_int_equal(now.status, 0);
#if defined(__x86_64__)
    assert_int_equal(now.control, 0); /* flags are in it */
#endif
}

#endif
