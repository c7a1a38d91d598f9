#include "base/counters.h"

/* Compilers put what is defined first last, or first: nothing of anybody else's shares its line. */
HAK_WRITTEN_BY_MANY __attribute__((used)) static char line_beside[64];

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_pages_grown;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_pages_reused;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_slab_bytes;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_out_bytes;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_slab_holes;
