/* For tests of what hakmem complains of: what fake_os_catch has returned. */
#ifndef UNIT_MISUSE_H
#define UNIT_MISUSE_H

#include "unit.h"

#include "fake_os.h"

/* It is of misuse, in these words of hak_misuse. */
static inline void unit_expect_misuse(const struct fake_report *report, enum hak_misuse_kind kind, const char *function,
                                      const void *block, size_t offset, size_t size) {
    assert_non_null(report);
    assert_null(report->condition);
    assert_int_equal(report->kind, kind);
    assert_string_equal(report->function, function);
    assert_int_equal(report->address, (uintptr_t)block);
    assert_int_equal(report->offset, offset);
    assert_int_equal(report->size, size);
}

#endif
