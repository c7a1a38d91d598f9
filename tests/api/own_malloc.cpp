// A C++ program that has a malloc of its own and leaves operator new and delete to others. As with a C++ library on glibc,
// new asks that malloc, new with an alignment that aligned_alloc, and delete gives back to that free. With NO_ALIGNED it has
// no aligned_alloc: what has an alignment comes from hakmem, and goes back to it.
#include "expect.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace {

enum { POOL_BYTES = 16 << 20, HEADER_BYTES = 16 };

alignas(4096) unsigned char pool[POOL_BYTES];
std::size_t used_bytes;
bool is_full;
long asked, given_back, handled;

bool is_of_pool(const void *block) {
    return reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(pool) < POOL_BYTES;
}

void *take(std::size_t bytes, std::size_t alignment) {
    std::size_t start = (used_bytes + HEADER_BYTES + alignment - 1) / alignment * alignment;
    if (bytes == 0 || is_full || bytes > POOL_BYTES - start) return nullptr; // as C allows for 0 bytes
    std::memcpy(pool + start - HEADER_BYTES, &bytes, sizeof bytes);
    used_bytes = start + bytes;
    asked++;
    return pool + start;
}

std::size_t bytes_of(const void *block) {
    std::size_t bytes;
    std::memcpy(&bytes, static_cast<const unsigned char *>(block) - HEADER_BYTES, sizeof bytes);
    return bytes;
}

} // namespace

extern "C" void *malloc(std::size_t bytes) noexcept { return take(bytes, 16); }

extern "C" void free(void *block) noexcept {
    if (block == nullptr) return;
    EXPECT(is_of_pool(block), "free(%p): not a block of the program's malloc", block);
    given_back++;
}

extern "C" void *calloc(std::size_t count, std::size_t bytes) noexcept { return take(count * bytes, 16); }

extern "C" void *realloc(void *block, std::size_t bytes) noexcept {
    void *moved = take(bytes, 16);
    if (moved != nullptr && block != nullptr)
        std::memcpy(moved, block, bytes_of(block) < bytes ? bytes_of(block) : bytes);
    return moved;
}

#ifdef NO_ALIGNED
const bool HAS_ALIGNED = false;
#else
const bool HAS_ALIGNED = true;

extern "C" void *aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
    bool is_right = alignment >= sizeof(void *) && (alignment & (alignment - 1)) == 0 && bytes % alignment == 0;
    return is_right ? take(bytes, alignment) : nullptr;
}
#endif

namespace {

void check(void *block, std::size_t alignment, std::size_t bytes) {
    bool is_own = alignment == 1 || HAS_ALIGNED;
    EXPECT(is_of_pool(block) == is_own, "%p: whose malloc is it of?", block);
    EXPECT(reinterpret_cast<std::uintptr_t>(block) % alignment == 0, "%p at %zu", block, alignment);
    if (is_own) EXPECT(bytes_of(block) >= bytes, "%zu bytes of %zu", bytes_of(block), bytes);
    std::memset(block, 1, bytes);
}

// What stands for a function calls the program's; and nobody knows more of its blocks than was asked for.
int stand_ins() {
    const std::size_t sizes[] = {1, 100, 5000, 100000};
    for (std::size_t size : sizes) {
        void *blocks[] = {__alloc_token_malloc(size, 1), __alloc_token_calloc(size, 1, 1),
                          __alloc_token_realloc(nullptr, size, 1), __alloc_token__Znwm(size, 1)};
        for (void *block : blocks) {
            check(block, 1, size);
            std::free(block);
        }
        __sized_ptr_t made = __size_returning_new(size);
        check(made.p, 1, size);
        EXPECT(made.n == size, "%zu bytes for %zu", made.n, size);
        ::operator delete(made.p);
    }
    return 0;
}

int every_form() {
    const std::size_t sizes[] = {0, 1, 100, 5000, 100000}, alignments[] = {2, 8, 64, 4096};
    long news = asked, deletes = given_back, done = 0;
    for (std::size_t size : sizes) {
        void *blocks[] = {::operator new(size), ::operator new[](size), ::operator new(size, std::nothrow),
                          ::operator new[](size, std::nothrow)};
        for (void *block : blocks) check(block, 1, size);
        ::operator delete(blocks[0]);
        ::operator delete[](blocks[1]);
        ::operator delete(blocks[2], std::nothrow);
        ::operator delete[](blocks[3], std::nothrow);
        void *sized[] = {::operator new(size), ::operator new[](size)};
        ::operator delete(sized[0], size);
        ::operator delete[](sized[1], size);
        done += 6;
        for (std::size_t bytes : alignments) {
            auto alignment = static_cast<std::align_val_t>(bytes);
            void *aligned[] = {::operator new(size, alignment), ::operator new[](size, alignment),
                               ::operator new(size, alignment, std::nothrow),
                               ::operator new[](size, alignment, std::nothrow)};
            for (void *block : aligned) check(block, bytes, size);
            ::operator delete(aligned[0], alignment);
            ::operator delete[](aligned[1], alignment);
            ::operator delete(aligned[2], size, alignment);
            ::operator delete[](aligned[3], size, alignment);
            if (HAS_ALIGNED) done += 4;
        }
    }
    EXPECT(asked - news == done && given_back - deletes == done, "asked %ld, given back %ld, of %ld", asked - news,
           given_back - deletes, done);
    return 0;
}

// What a library of C++ does, with blocks that go through its own code.
int library() {
    std::vector<std::string> lines;
    for (int i = 0; i < 1000; i++) lines.push_back(std::string(static_cast<std::size_t>(i), 'x'));
    for (std::string &line : lines)
        if (line.capacity() > 100) EXPECT(is_of_pool(line.data()), "%p", static_cast<void *>(&line[0]));
    return 0;
}

void make_room() {
    if (++handled == 3) is_full = false;
}

int full() {
    is_full = true;
    int thrown = 0;
    try {
        ::operator delete(::operator new(100));
    } catch (const std::bad_alloc &) {
        thrown++;
    }
    try {
        ::operator delete(::operator new(100, static_cast<std::align_val_t>(64)), static_cast<std::align_val_t>(64));
    } catch (const std::bad_alloc &) {
        thrown++;
    }
    EXPECT(thrown == 2, "%d thrown", thrown);
    EXPECT(::operator new(100, std::nothrow) == nullptr, "there is room");
    std::set_new_handler(make_room);
    void *block = ::operator new(100);
    EXPECT(is_of_pool(block) && handled == 3, "%p, the handler was called %ld times", block, handled);
    ::operator delete(block);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    std::string name = argc == 2 ? argv[1] : "";
    Dl_info found = {};
    void *(*own)(std::size_t) = ::operator new;
    dladdr(reinterpret_cast<void *>(own), &found);
    if (found.dli_fname == nullptr || std::strstr(found.dli_fname, "hakmem") == nullptr) return EXIT_NOT_HAKMEM;
    if (name == "every_form") return every_form();
    if (name == "stand_ins") return stand_ins();
    if (name == "library") return library();
    if (name == "full") return full();
    std::fprintf(stderr, "usage: own_malloc every_form | stand_ins | library | full\n");
    return EXIT_USE;
}
