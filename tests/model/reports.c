/* What the library reports under the model: misuse and broken invariants are failures of the execution. */
#include "base/check.h"
#include "checker.h"

_Noreturn void hak_misuse(enum hak_misuse_kind kind, const char *function, const void *address, size_t offset,
                          size_t size) {
    model_fail("misuse %d: %s(%p), offset %zu, size %zu", (int)kind, function, address, offset, size);
}

_Noreturn void hak_assertion_failed(const char *condition, const char *file, int line) {
    model_fail("%s:%d: assertion failed: %s", model_base_name(file), line, condition);
}
