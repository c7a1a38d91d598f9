#include "base/counters.h"

/* 4 MiB of the largest pages: the first look finds out how large they are. */
HAK_ATOMIC(uint64_t) hak_pages_to_look = 64;
