// Every form of C++17 operator new and delete: pairs, alignment, failure, handlers. Run under LD_PRELOAD, and linked to
// the static library and to the object (API_LINKED).
#include "expect.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>

namespace {

const std::size_t sizes[] = {0, 1, 8, 16, 24, 100, 1000, 1024, 5000, 40000, 300000, 3 * MIB};
const std::size_t alignments[] = {8, 16, 32, 64, 256, 4096, 65536, 2 * MIB};

// Alive, ours, writable, behind the compiler's back: it may leave out pairs of new and delete.
void *used(void *block, std::size_t size, std::size_t alignment) {
    EXPECT(block && owned(block) && is_aligned(block, alignment), "%zu bytes at alignment %zu: %p", size, alignment,
           block);
    std::memset(block, 0xA5, size);
    return opaque_pointer(block);
}

// What a program takes the address of has it in the program, where that has a fixed place.
[[gnu::used]] void take_addresses() {
    opaque_pointer(reinterpret_cast<void *>(std::free));
    opaque_pointer(reinterpret_cast<void *>(static_cast<void *(*)(std::size_t)>(::operator new)));
}

void plain() {
    for (int round = 0; round < 50; round++) {
        for (std::size_t size : sizes) {
            ::operator delete(used(::operator new(size), size, 16));
            ::operator delete(used(::operator new(size), size, 16), size);
            ::operator delete(used(::operator new(size, std::nothrow), size, 16), std::nothrow);
            ::operator delete[](used(::operator new[](size), size, 16));
            ::operator delete[](used(::operator new[](size), size, 16), size);
            ::operator delete[](used(::operator new[](size, std::nothrow), size, 16), std::nothrow);
        }
    }
    ::operator delete(nullptr);
    ::operator delete(nullptr, std::size_t(8));
    ::operator delete(nullptr, std::nothrow);
    ::operator delete[](nullptr);
    ::operator delete[](nullptr, std::size_t(8));
    ::operator delete[](nullptr, std::nothrow);
}

void aligned() {
    for (int round = 0; round < 10; round++) {
        for (std::size_t size : sizes) {
            for (std::size_t alignment : alignments) {
                auto align = std::align_val_t(alignment);
                ::operator delete(used(::operator new(size, align), size, alignment), align);
                ::operator delete(used(::operator new(size, align), size, alignment), size, align);
                ::operator delete(used(::operator new(size, align, std::nothrow), size, alignment), align,
                                  std::nothrow);
                ::operator delete[](used(::operator new[](size, align), size, alignment), align);
                ::operator delete[](used(::operator new[](size, align), size, alignment), size, align);
                ::operator delete[](used(::operator new[](size, align, std::nothrow), size, alignment), align,
                                    std::nothrow);
            }
        }
    }
    ::operator delete(nullptr, std::align_val_t(64));
    ::operator delete(nullptr, 8, std::align_val_t(64));
    ::operator delete[](nullptr, 8, std::align_val_t(64));
}

// Blocks of new and of malloc are the same kind of block.
void mixed_with_malloc() {
    for (std::size_t size : sizes) {
        std::free(used(::operator new(size), size, 16));
        std::free(used(::operator new(size, std::align_val_t(64)), size, 64));
        ::operator delete(used(std::malloc(size), size, 16));
        ::operator delete[](used(std::calloc(1, size), size, 16));
        EXPECT(malloc_usable_size(used(::operator new(size), size, 16)) >= size, "usable size of new's block");
    }
}

// tcmalloc's operators that tell the size: all of it may be used, and any size up to it given to delete.
void sized() {
    for (std::size_t size : sizes) {
        for (std::size_t alignment : alignments) {
            auto align = std::align_val_t(alignment);
            const __sized_ptr_t made[] = {
                __size_returning_new(size),
                __size_returning_new_hot_cold(size, 200),
                __size_returning_new_aligned(size, alignment),
                __size_returning_new_aligned_hot_cold(size, alignment, 1),
            };
            for (std::size_t i = 0; i < COUNT_OF(made); i++) {
                EXPECT(made[i].n >= size && made[i].n == malloc_usable_size(made[i].p), "%zu bytes for %zu", made[i].n,
                       size);
                used(made[i].p, made[i].n, i < 2 ? 16 : alignment);
            }
            ::operator delete(made[0].p, made[0].n);
            ::operator delete(made[1].p, size + (made[1].n - size) / 2);
            ::operator delete(made[2].p, made[2].n, align);
            ::operator delete(made[3].p, align);
        }
    }
}

// clang's allocation tokens, which mean nothing: each is the function it stands for.
void tokens() {
    enum { TOKEN = 99 };
    for (std::size_t size : sizes) {
        ::operator delete(used(__alloc_token__Znwm(size, TOKEN), size, 16));
        ::operator delete[](used(__alloc_token__Znam(size, TOKEN), size, 16), size);
        ::operator delete(used(__alloc_token__ZnwmRKSt9nothrow_t(size, &std::nothrow, TOKEN), size, 16));
        ::operator delete[](used(__alloc_token__ZnamRKSt9nothrow_t(size, &std::nothrow, TOKEN), size, 16));
        std::free(used(__alloc_token_malloc(size, TOKEN), size, 16));
        for (std::size_t alignment : alignments) {
            auto align = std::align_val_t(alignment);
            const void *tag = &std::nothrow;
            ::operator delete(used(__alloc_token__ZnwmSt11align_val_t(size, alignment, TOKEN), size, alignment), align);
            ::operator delete[](used(__alloc_token__ZnamSt11align_val_t(size, alignment, TOKEN), size, alignment),
                                align);
            void *one = __alloc_token__ZnwmSt11align_val_tRKSt9nothrow_t(size, alignment, tag, TOKEN);
            void *many = __alloc_token__ZnamSt11align_val_tRKSt9nothrow_t(size, alignment, tag, TOKEN);
            ::operator delete(used(one, size, alignment), align);
            ::operator delete[](used(many, size, alignment), align);
        }
    }
}

template <class Call> bool throws_bad_alloc(Call call) {
    try {
        opaque_pointer(call());
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

const std::size_t too_large[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4096, std::size_t(PTRDIFF_MAX) + 1, PTRDIFF_MAX};

void bad_alloc() {
    for (int round = 0; round < 100; round++) {
        for (std::size_t given : too_large) {
            std::size_t size = opaque(given);
            EXPECT(throws_bad_alloc([=] { return ::operator new(size); }), "new of %zu bytes", size);
            EXPECT(throws_bad_alloc([=] { return ::operator new[](size); }), "new[] of %zu bytes", size);
            EXPECT(throws_bad_alloc([=] { return __size_returning_new(size).p; }), "sized new of %zu bytes", size);
            EXPECT(throws_bad_alloc([=] { return __size_returning_new_aligned(size, 64).p; }), "of %zu bytes", size);
            EXPECT(throws_bad_alloc([=] { return __alloc_token__Znwm(size, 1); }), "new of %zu bytes", size);
            for (std::size_t alignment : alignments) {
                auto align = std::align_val_t(alignment);
                EXPECT(throws_bad_alloc([=] { return ::operator new(size, align); }), "new of %zu bytes", size);
                EXPECT(throws_bad_alloc([=] { return ::operator new[](size, align); }), "new[] of %zu bytes", size);
            }
        }
    }
    bool thrown = false;
    try {
        std::vector<char> bytes(opaque(PTRDIFF_MAX) - 10);
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    EXPECT(thrown, "a vector of nearly PTRDIFF_MAX bytes");
    EXPECT(throws_bad_alloc([] { return static_cast<void *>(new long[opaque(SIZE_MAX / 8 + 2)]); }),
           "new long[too many]");
}

void nothrow() {
    for (std::size_t given : too_large) {
        std::size_t size = opaque(given);
        EXPECT(!::operator new(size, std::nothrow), "nothrow new of %zu bytes", size);
        EXPECT(!::operator new[](size, std::nothrow), "nothrow new[] of %zu bytes", size);
        EXPECT(!__alloc_token__ZnwmRKSt9nothrow_t(size, &std::nothrow, 1), "nothrow new of %zu bytes", size);
        for (std::size_t alignment : alignments) {
            auto align = std::align_val_t(alignment);
            EXPECT(!::operator new(size, align, std::nothrow), "nothrow new of %zu bytes", size);
            EXPECT(!::operator new[](size, align, std::nothrow), "nothrow new[] of %zu bytes", size);
        }
    }
}

int handler_calls;

// Called until it gives up by uninstalling itself.
void counting_handler() {
    if (++handler_calls % 3 == 0) {
        std::set_new_handler(nullptr);
    }
}

struct handler_error {};

void throwing_handler() {
    handler_calls++;
    throw handler_error();
}

struct handler_bad_alloc : std::bad_alloc {};

void throwing_bad_alloc_handler() {
    handler_calls++;
    throw handler_bad_alloc();
}

template <class Call> void expect_handled(const char *form, Call call, bool throws) {
    handler_calls = 0;
    std::set_new_handler(counting_handler);
    bool thrown = false;
    void *block = nullptr;
    try {
        block = opaque_pointer(call());
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    EXPECT(handler_calls == 3, "%s called the handler %d times", form, handler_calls);
    EXPECT(thrown == throws && !block, "%s: thrown %d, block %p", form, thrown, block);
}

// An exception of the handler leaves new, whatever it is; nothrow new gives nullptr in its place.
template <class Call> void expect_handler_error(const char *form, Call call, bool throws) {
    for (auto handler : {throwing_handler, throwing_bad_alloc_handler}) {
        handler_calls = 0;
        std::set_new_handler(handler);
        bool thrown = false;
        void *block = nullptr;
        try {
            block = opaque_pointer(call());
        } catch (const handler_error &) {
            thrown = handler == throwing_handler;
        } catch (const handler_bad_alloc &) {
            thrown = handler == throwing_bad_alloc_handler;
        }
        std::set_new_handler(nullptr);
        EXPECT(handler_calls == 1 && thrown == throws && !block, "%s: calls %d, thrown %d, block %p", form,
               handler_calls, thrown, block);
    }
}

void handlers() {
    std::size_t size = opaque(SIZE_MAX / 2);
    auto align = std::align_val_t(64);
    expect_handled(
        "new", [=] { return ::operator new(size); }, true);
    expect_handled(
        "new[]", [=] { return ::operator new[](size); }, true);
    expect_handled(
        "aligned new", [=] { return ::operator new(size, align); }, true);
    expect_handled(
        "aligned new[]", [=] { return ::operator new[](size, align); }, true);
    expect_handled(
        "nothrow new", [=] { return ::operator new(size, std::nothrow); }, false);
    expect_handled(
        "nothrow new[]", [=] { return ::operator new[](size, std::nothrow); }, false);
    expect_handled(
        "aligned nothrow new", [=] { return ::operator new(size, align, std::nothrow); }, false);
    expect_handled(
        "aligned nothrow new[]", [=] { return ::operator new[](size, align, std::nothrow); }, false);
}

void throwing_handlers() {
    std::size_t size = opaque(SIZE_MAX / 2);
    auto align = std::align_val_t(64);
    expect_handler_error(
        "new", [=] { return ::operator new(size); }, true);
    expect_handler_error(
        "new[]", [=] { return ::operator new[](size); }, true);
    expect_handler_error(
        "aligned new", [=] { return ::operator new(size, align); }, true);
    expect_handler_error(
        "aligned new[]", [=] { return ::operator new[](size, align); }, true);
}

void throwing_handlers_nothrow() {
    std::size_t size = opaque(SIZE_MAX / 2);
    auto align = std::align_val_t(64);
    expect_handler_error(
        "nothrow new", [=] { return ::operator new(size, std::nothrow); }, false);
    expect_handler_error(
        "nothrow new[]", [=] { return ::operator new[](size, std::nothrow); }, false);
    expect_handler_error(
        "aligned nothrow new", [=] { return ::operator new(size, align, std::nothrow); }, false);
    expect_handler_error(
        "aligned nothrow new[]", [=] { return ::operator new[](size, align, std::nothrow); }, false);
}

rlimit usual_limit;
bool was_full;

void raise_limit() {
    was_full = true;
    setrlimit(RLIMIT_AS, &usual_limit);
}

// Blocks until there is no room, and one for which the handler makes some: that is deleted with its size, as any other.
template <class Make, class Drop> void to_the_limit(std::size_t size, std::size_t alignment, Make make, Drop drop) {
    static void *blocks[1 << 15];
    std::size_t count = 0;
    EXPECT(getrlimit(RLIMIT_AS, &usual_limit) == 0, "no limit");
    rlimit less = {MIB, usual_limit.rlim_max}; // than is mapped: nothing more is
    was_full = false;
    std::set_new_handler(raise_limit);
    setrlimit(RLIMIT_AS, &less);
    while (!was_full && count < COUNT_OF(blocks)) blocks[count++] = used(make(size), size, alignment);
    std::set_new_handler(nullptr);
    EXPECT(was_full, "%zu blocks of %zu bytes found room", count, size);
    while (count > 0) drop(blocks[--count], size);
}

void room() {
    const struct { std::size_t size, alignment; } blocks[] = {{1000, 4096}, {40001, 1}, {40001, 64}, {3 * MIB + 1, 64}};
    for (auto [size, alignment] : blocks) {
        auto align = std::align_val_t(alignment);
        to_the_limit(
            size, 16, [](std::size_t bytes) { return ::operator new(bytes); },
            [](void *block, std::size_t bytes) { ::operator delete(block, bytes); });
        to_the_limit(
            size, alignment, [=](std::size_t bytes) { return ::operator new(bytes, align); },
            [=](void *block, std::size_t bytes) { ::operator delete(block, bytes, align); });
        to_the_limit(
            size, alignment, [=](std::size_t bytes) { return ::operator new(bytes, align, std::nothrow); },
            [=](void *block, std::size_t bytes) { ::operator delete(block, bytes, align); });
        to_the_limit(
            size, alignment, [=](std::size_t bytes) { return ::operator new[](bytes, align); },
            [=](void *block, std::size_t bytes) { ::operator delete[](block, bytes, align); });
    }
}

struct alignas(256) wide {
    char bytes[300];
};

struct counted {
    static inline int alive = 0;
    counted() { alive++; }
    ~counted() { alive--; }
    char bytes[40];
};

struct fails {
    fails() { throw 1; }
    char bytes[100];
};

// What compilers make of new expressions and containers.
void expressions() {
    for (int round = 0; round < 1000; round++) {
        auto one = std::make_unique<wide>();
        EXPECT(is_aligned(one.get(), 256) && owned(one.get()), "an over-aligned object at %p",
               static_cast<void *>(one.get()));
        std::unique_ptr<wide[]> many(new wide[5]);
        EXPECT(is_aligned(many.get(), 256), "over-aligned objects at %p", static_cast<void *>(many.get()));
        std::vector<wide> row(round % 7 + 1);
        EXPECT(is_aligned(row.data(), 256), "a vector of over-aligned objects at %p", static_cast<void *>(row.data()));
        std::unique_ptr<counted[]> some(new counted[17]);
        EXPECT(counted::alive == 17, "%d objects alive", counted::alive);
        some.reset();
        EXPECT(counted::alive == 0, "%d objects alive", counted::alive);
        try {
            delete new fails;
        } catch (int) {
        }
    }
    std::map<std::string, std::string> words;
    for (int i = 0; i < 20000; i++) {
        words[std::to_string(i * 7919 % 20000)] = std::string(static_cast<std::size_t>(i % 300), 'x');
    }
    EXPECT(words.size() == 20000 && owned(&words["1"]), "a map of %zu words", words.size());
    std::thread([&words] { words.clear(); }).join();
    EXPECT(words.empty(), "a map of %zu words", words.size());
}

} // namespace

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"plain", plain},
        {"aligned", aligned},
        {"mixed_with_malloc", mixed_with_malloc},
        {"sized", sized},
        {"tokens", tokens},
        {"bad_alloc", bad_alloc},
        {"nothrow", nothrow},
        {"handlers", handlers},
        {"throwing_handlers", throwing_handlers},
        {"throwing_handlers_nothrow", throwing_handlers_nothrow},
        {"room", room},
        {"expressions", expressions},
    };
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
