// A program that replaces the basic forms of operator new and delete only: with a header and a count, from an arena, with
// zeros, with an exception. By the standard all other forms call them. With OWN_ARRAYS the basic forms are those of arrays.
#include "expect.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wsized-deallocation" // it is not to be replaced here
#endif

namespace {

const std::size_t MAGIC = 0x5EED0F0F5EED0F0F;

// Before each block of the program's own new, as far as its alignment.
struct header {
    std::size_t magic, size;
};

alignas(4096) char arena[1 << 20];
std::size_t arena_used;
bool in_arena, throws, zeroes, is_bare;
long news, deletes;

struct no_room : std::bad_alloc {};

bool is_of_arena(const void *block) {
    std::size_t at = reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(arena);
    return at < sizeof arena;
}

header *header_of(void *block) { return static_cast<header *>(block) - 1; }

void *own_new(std::size_t size, std::size_t alignment) {
    if (throws) throw no_room();
    news++;
    if (is_bare) return std::malloc(size);
    std::size_t whole = (size + 2 * alignment - 1) / alignment * alignment;
    char *start = arena + (arena_used + alignment - 1) / alignment * alignment;
    if (in_arena) arena_used = static_cast<std::size_t>(start - arena) + whole;
    else start = static_cast<char *>(alignment > 16 ? aligned_alloc(alignment, whole) : std::malloc(whole));
    EXPECT(start != nullptr && arena_used <= sizeof arena, "%zu bytes", size);
    void *block = start + alignment;
    if (zeroes) std::memset(block, 0, size);
    *header_of(block) = {MAGIC, size};
    return block;
}

void own_delete(void *block, std::size_t alignment) {
    if (block == nullptr) return;
    deletes++;
    EXPECT(header_of(block)->magic == MAGIC, "delete of %p: not a block of the program's new", block);
    header_of(block)->magic = 0;
    if (!is_of_arena(block)) std::free(static_cast<char *>(block) - alignment);
}

} // namespace

#ifdef OWN_ARRAYS
#define OWN_NEW operator new[]
#define OWN_DELETE operator delete[]
#else
#define OWN_NEW operator new
#define OWN_DELETE operator delete
#endif

void *OWN_NEW(std::size_t size) { return own_new(size, 16); }
void OWN_DELETE(void *block) noexcept { own_delete(block, 16); }
#ifdef __cpp_aligned_new
void *OWN_NEW(std::size_t size, std::align_val_t align) { return own_new(size, std::size_t(align)); }
void OWN_DELETE(void *block, std::align_val_t align) noexcept { own_delete(block, std::size_t(align)); }
#endif

namespace {

// All ways to make a block and to end it that come to the program's own, and end it with an alignment or without.
using maker = void *(*)(std::size_t);
using ender = void (*)(void *, std::size_t);

const maker makers[] = {
#ifndef OWN_ARRAYS
    [](std::size_t size) { return ::operator new(size); },
    [](std::size_t size) { return ::operator new(size, std::nothrow); },
    [](std::size_t size) { return __alloc_token__Znwm(size, 7); },
    [](std::size_t size) { return __alloc_token__ZnwmRKSt9nothrow_t(size, &std::nothrow, 7); },
#endif
    [](std::size_t size) { return __alloc_token__Znam(size, 7); },
    [](std::size_t size) { return __alloc_token__ZnamRKSt9nothrow_t(size, &std::nothrow, 7); },
    [](std::size_t size) { return ::operator new[](size); },
    [](std::size_t size) { return ::operator new[](size, std::nothrow); },
};

const ender enders[] = {
#ifndef OWN_ARRAYS
    [](void *block, std::size_t) { ::operator delete(block); },
    [](void *block, std::size_t) { ::operator delete(block, std::nothrow); },
#ifdef __cpp_sized_deallocation
    [](void *block, std::size_t size) { ::operator delete(block, size); },
#endif
#endif
    [](void *block, std::size_t) { ::operator delete[](block); },
    [](void *block, std::size_t) { ::operator delete[](block, std::nothrow); },
#ifdef __cpp_sized_deallocation
    [](void *block, std::size_t size) { ::operator delete[](block, size); },
#endif
};

const std::size_t sizes[] = {1, 16, 24, 100, 1000, 1016, 5000, 40000, 300000};

template <class Make, class End> void expect_own(std::size_t size, Make make, End end) {
    long news_before = news, deletes_before = deletes;
    void *block = opaque_pointer(make(size));
    EXPECT(news == news_before + 1, "a new of %zu bytes came to the program %ld times", size, news - news_before);
    EXPECT(header_of(block)->magic == MAGIC && header_of(block)->size == size, "the header of %zu bytes", size);
    std::memset(block, 0xA5, size);
    end(block, size);
    EXPECT(deletes == deletes_before + 1, "a delete of %zu bytes came to the program %ld times", size,
           deletes - deletes_before);
}

void every_form() {
    for (std::size_t size : sizes) {
        for (maker make : makers) {
            for (ender end : enders) {
                expect_own(size, make, end);
            }
        }
    }
    for (ender end : enders) {
        end(nullptr, 8);
    }
}

#ifdef __cpp_aligned_new
const auto ALIGN = std::align_val_t(256);

const maker aligned_makers[] = {
#ifndef OWN_ARRAYS
    [](std::size_t size) { return ::operator new(size, ALIGN); },
    [](std::size_t size) { return ::operator new(size, ALIGN, std::nothrow); },
#endif
    [](std::size_t size) { return ::operator new[](size, ALIGN); },
    [](std::size_t size) { return ::operator new[](size, ALIGN, std::nothrow); },
};

const ender aligned_enders[] = {
#ifndef OWN_ARRAYS
    [](void *block, std::size_t) { ::operator delete(block, ALIGN); },
    [](void *block, std::size_t) { ::operator delete(block, ALIGN, std::nothrow); },
    [](void *block, std::size_t size) { ::operator delete(block, size, ALIGN); },
#endif
    [](void *block, std::size_t) { ::operator delete[](block, ALIGN); },
    [](void *block, std::size_t) { ::operator delete[](block, ALIGN, std::nothrow); },
    [](void *block, std::size_t size) { ::operator delete[](block, size, ALIGN); },
};
#endif

void aligned() {
#ifdef __cpp_aligned_new
    for (std::size_t size : sizes) {
        for (maker make : aligned_makers) {
            for (ender end : aligned_enders) {
                expect_own(size, make, end);
            }
        }
    }
#else
    SKIP("no aligned new before C++17");
#endif
}

// The operators that tell the size ask new: of a block of the program's own, they know no more than was asked for.
void sized() {
#ifdef OWN_ARRAYS
    const bool is_own = false;
#else
    const bool is_own = true;
#endif
    for (std::size_t size : sizes) {
        long news_before = news;
        __sized_ptr_t made = __size_returning_new(size);
        EXPECT(news - news_before == is_own && made.n >= size && (made.n == size || !is_own), "%zu bytes for %zu",
               made.n, size);
        ::operator delete(made.p);
        is_bare = true;
        made = __size_returning_new(size);
        is_bare = false;
        EXPECT(made.n == size || !is_own, "%zu bytes for %zu", made.n, size);
        std::free(made.p);
#ifdef __cpp_aligned_new
        news_before = news;
        made = __size_returning_new_aligned(size, std::size_t(ALIGN));
        EXPECT(news - news_before == is_own && made.n >= size && (made.n == size || !is_own), "%zu bytes for %zu",
               made.n, size);
        ::operator delete(made.p, ALIGN);
#endif
    }
}

// The throwing forms pass the program's exception on, the others end it.
template <std::size_t Count> void expect_thrown(const maker (&forms)[Count]) {
    for (std::size_t i = 0; i < Count; i++) {
        bool is_nothrow = i % 2 == 1, thrown = false;
        void *block = nullptr;
        throws = true;
        try {
            block = opaque_pointer(forms[i](100));
        } catch (const no_room &) {
            thrown = true;
        }
        throws = false;
        EXPECT(block == nullptr && thrown == !is_nothrow, "form %zu: thrown %d, block %p", i, thrown, block);
    }
}

void throwing() {
    for (int round = 0; round < 100; round++) {
        expect_thrown(makers);
#ifdef __cpp_aligned_new
        expect_thrown(aligned_makers);
#endif
    }
}

struct object {
    char bytes[1000];
};

void arena_objects() {
    in_arena = true;
    for (int i = 0; i < 50; i++) {
        object *many = static_cast<object *>(opaque_pointer(new object[2]));
        EXPECT(is_of_arena(many), "new[] gave %p", static_cast<void *>(many));
        delete[] many;
#ifndef OWN_ARRAYS
        object *one = static_cast<object *>(opaque_pointer(new object));
        object *quiet = static_cast<object *>(opaque_pointer(new (std::nothrow) object));
        EXPECT(is_of_arena(one) && is_of_arena(quiet), "new gave %p and %p", static_cast<void *>(one),
               static_cast<void *>(quiet));
        delete one;
        delete quiet;
#endif
    }
    in_arena = false;
    EXPECT(news == deletes, "%ld news, %ld deletes", news, deletes);
}

// Blocks that are alive keep what they hold when the ones beside them are deleted, and their room is given away.
void overlap() {
    enum { COUNT = 64 };
    object *objects[COUNT];
    void *others[COUNT / 2];
    for (int i = 0; i < COUNT; i++) {
        objects[i] = static_cast<object *>(opaque_pointer(new object[1]));
        std::memset(objects[i], i, sizeof(object));
    }
    for (int i = 0; i < COUNT; i += 2) {
        delete[] objects[i];
    }
    for (void *&other : others) {
        other = std::malloc(sizeof(object) + sizeof(header));
        std::memset(other, 0xEE, sizeof(object) + sizeof(header));
    }
    for (int i = 1; i < COUNT; i += 2) {
        EXPECT(header_of(objects[i])->size == sizeof(object), "the header of object %d is overwritten", i);
        for (char byte : objects[i]->bytes) {
            EXPECT(byte == i, "object %d is overwritten", i);
        }
        delete[] objects[i];
    }
    for (void *other : others) {
        std::free(other);
    }
}

// An array's memory is that of the program's new, which clears it; and each is counted once.
void zeroing() {
    for (int i = 0; i < 100; i++) {
        void *block = std::malloc(416);
        std::memset(block, 0xFF, 416);
        std::free(opaque_pointer(block));
    }
    zeroes = true;
    for (int round = 0; round < 100; round++) {
        int *numbers = static_cast<int *>(opaque_pointer(new int[100]));
        for (int i = 0; i < 100; i++) {
            EXPECT(numbers[i] == 0, "number %d is %d", i, numbers[i]);
        }
        EXPECT(news == deletes + 1, "%ld news, %ld deletes", news, deletes);
        std::memset(numbers, 0xFF, 400);
        delete[] numbers;
    }
    EXPECT(news == deletes, "%ld news, %ld deletes", news, deletes);
}

struct failing {
    failing() {
        opaque_pointer(this);
        throw 1;
    }
    char bytes[100];
};

// Where a constructor throws, the block goes back by the form of delete that goes with new's.
void constructors() {
    for (int i = 0; i < 100; i++) {
        int caught = 0;
        try {
            delete[] new failing[2];
        } catch (int) {
            caught++;
        }
        try {
            delete[] new (std::nothrow) failing[2];
        } catch (int) {
            caught++;
        }
        try {
            delete new (std::nothrow) failing;
        } catch (int) {
            caught++;
        }
        EXPECT(caught == 3 && news == deletes, "%d caught, %ld news, %ld deletes", caught, news, deletes);
    }
    EXPECT(news > 0, "no new came to the program");
}

// Its buffer is of nothrow new, and goes back by another form of delete.
void stable_sort() {
    for (unsigned round = 0; round < 20; round++) {
        std::vector<unsigned> numbers(1000 * (round + 1));
        for (unsigned i = 0; i < numbers.size(); i++) {
            numbers[i] = i * 2654435761u >> round;
        }
        std::stable_sort(numbers.begin(), numbers.end());
        EXPECT(std::is_sorted(numbers.begin(), numbers.end()), "%zu numbers", numbers.size());
    }
    EXPECT(news == deletes, "%ld news, %ld deletes", news, deletes);
}

// What the C++ library itself allocates for a program, and the program frees, or the other way round.
void strings() {
    {
        std::vector<std::string> words(1000, std::string(100, 'x'));
        for (std::size_t i = 0; i < words.size(); i++) {
            words[i] += std::to_string(i);
            words[i].append(i, 'y');
        }
        EXPECT(words[999].size() == 100 + 3 + 999, "%zu letters", words[999].size());
    }
    EXPECT(news == deletes, "%ld news, %ld deletes", news, deletes);
}

} // namespace

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"every_form", every_form},   {"sized", sized},     {"aligned", aligned}, {"throwing", throwing},
        {"arena", arena_objects},     {"overlap", overlap}, {"zeroing", zeroing}, {"constructors", constructors},
        {"stable_sort", stable_sort}, {"strings", strings},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
