// A C++ program whose malloc asks the next one for more, and keeps a header of its own before each block: what new hands
// out is no block's start, and hakmem writes nothing beside it.
#include "expect.h"

#include <cstdlib>
#include <cstring>
#include <new>

enum { HEADER_BYTES = 16, COUNT = 400, SIZE = 40 };

static bool is_full;
static long handled;

static void *find_next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    EXPECT(found != nullptr, "no %s", name);
    return found;
}

extern "C" void *malloc(std::size_t size) noexcept {
    static void *(*next)(std::size_t);
    if (next == nullptr) *reinterpret_cast<void **>(&next) = find_next("malloc");
    char *block = is_full ? nullptr : static_cast<char *>(next(size + HEADER_BYTES));
    return block == nullptr ? nullptr : block + HEADER_BYTES;
}

extern "C" void *calloc(std::size_t count, std::size_t size) noexcept {
    void *block = malloc(count * size);
    return block == nullptr ? nullptr : std::memset(block, 0, count * size);
}

extern "C" void free(void *block) noexcept {
    static void (*next)(void *);
    if (next == nullptr) *reinterpret_cast<void **>(&next) = find_next("free");
    if (block != nullptr) next(static_cast<char *>(block) - HEADER_BYTES);
}

static void make_room() { is_full = false, handled++; }

static void new_handler() {
    static unsigned char *blocks[COUNT];
    std::set_new_handler(make_room);
    for (int i = 0; i < COUNT; i++) {
        is_full = true;
        blocks[i] = static_cast<unsigned char *>(std::memset(::operator new(SIZE), i, SIZE));
    }
    EXPECT(handled == COUNT, "the handler was called %ld times", handled);
    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < SIZE; j++) EXPECT(blocks[i][j] == (i & 0xFF), "byte %d of block %d was written", j, i);
        ::operator delete(blocks[i]);
    }
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"new_handler", new_handler}};
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
