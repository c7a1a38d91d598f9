#include "base/counters.h"

/* Compilers put what is defined first last, or first: nothing of anybody else's shares its line. */
HAK_WRITTEN_BY_MANY __attribute__((used)) static char line_beside[64];

/* 4 MiB of the largest pages: the first look finds out how large they are. */
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_pages_to_look = 64;
