// A C++ program with a malloc and an aligned_alloc of its own that ask hakmem for more, and put canaries behind each block:
// the blocks are hakmem's, and what hakmem knows of their sizes isn't theirs.
#include "expect.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

enum { CANARY_BYTES = 8 };

struct block {
    void *start;
    std::size_t bytes;
};

block blocks[4096]; // asked for
std::size_t count;

void *put_canary(void *start, std::size_t bytes) {
    std::memset(static_cast<char *>(start) + bytes, 0xC5, CANARY_BYTES);
    blocks[count++ % COUNT_OF(blocks)] = {start, bytes};
    return start;
}

} // namespace

extern "C" void *malloc(std::size_t bytes) noexcept { return put_canary(hak_malloc(bytes + CANARY_BYTES), bytes); }

extern "C" void *aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
    return put_canary(hak_memalign(alignment, bytes + CANARY_BYTES), bytes);
}

extern "C" void free(void *start) noexcept {
    for (block &known : blocks) {
        if (start == nullptr || known.start != start) continue;
        for (int i = 0; i < CANARY_BYTES; i++)
            EXPECT(static_cast<unsigned char *>(start)[known.bytes + i] == 0xC5, "a canary was overwritten");
        known.start = nullptr;
    }
    hak_free(start);
}

// All that is told may be written.
static void size_returning_new() {
    const std::size_t sizes[] = {1, 24, 100, 1000, 5000, 40000};
    for (std::size_t size : sizes) {
        __sized_ptr_t made[] = {__size_returning_new(size), __size_returning_new_aligned(size, 64)};
        for (const __sized_ptr_t &one : made) std::memset(one.p, 1, one.n);
        ::operator delete(made[0].p, made[0].n);
        ::operator delete(made[1].p, made[1].n, std::align_val_t(64));
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"size_returning_new", size_returning_new}};
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
