#include "base/memory.h"

HAK_ATOMIC(bool) hak_memory_is_tight;
HAK_ATOMIC(uint64_t) hak_memory_tight_count, hak_memory_limit_bytes;
