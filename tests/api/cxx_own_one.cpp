// A program that replaces one function of those behind new and delete, and leaves the others: OWN_MALLOC, or a form of
// new or delete, OWN_[ALIGNED_][NOTHROW_]NEW[_ARRAY] or OWN_[ALIGNED_][NOTHROW_|SIZED_]DELETE[_ARRAY]. BY_OBJECTS: the
// one of arrays calls that of objects, as the standard's do. MARGIN: new asks for so many bytes more.
#include "expect.h"

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wsized-deallocation" // it is not to be replaced here
#endif

#ifndef MARGIN
#define MARGIN 0
#endif

static long calls;

#ifdef OWN_NEW
void *operator new(std::size_t size) { return calls++, std::malloc(size + MARGIN); }
#endif
#ifdef OWN_NOTHROW_NEW
void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return calls++, std::malloc(size); }
#endif
#ifdef OWN_NOTHROW_NEW_ARRAY
void *operator new[](std::size_t size, const std::nothrow_t &) noexcept { return calls++, std::malloc(size); }
#endif
#ifdef OWN_SIZED_DELETE
void operator delete(void *block, std::size_t) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_SIZED_DELETE_ARRAY
void operator delete[](void *block, std::size_t) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_NOTHROW_DELETE
void operator delete(void *block, const std::nothrow_t &) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_NOTHROW_DELETE_ARRAY
void operator delete[](void *block, const std::nothrow_t &) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_DELETE
void operator delete(void *block) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_NEW_ARRAY
void *operator new[](std::size_t size) {
    calls++;
#ifdef BY_OBJECTS
    return ::operator new(size);
#else
    return std::malloc(size + MARGIN);
#endif
}
#endif
#ifdef OWN_DELETE_ARRAY
void operator delete[](void *block) noexcept {
    calls++;
#ifdef BY_OBJECTS
    ::operator delete(block);
#else
    std::free(block);
#endif
}
#endif
#ifdef __cpp_aligned_new
#ifdef OWN_ALIGNED_NEW
void *operator new(std::size_t size, std::align_val_t align) {
    return calls++, aligned_alloc(std::size_t(align), size + MARGIN);
}
#endif
#ifdef OWN_ALIGNED_NEW_ARRAY
void *operator new[](std::size_t size, std::align_val_t align) {
    calls++;
#ifdef BY_OBJECTS
    return ::operator new(size, align);
#else
    return aligned_alloc(std::size_t(align), size + MARGIN);
#endif
}
#endif
#ifdef OWN_ALIGNED_NOTHROW_NEW
void *operator new(std::size_t size, std::align_val_t align, const std::nothrow_t &) noexcept {
    return calls++, aligned_alloc(std::size_t(align), size);
}
#endif
#ifdef OWN_ALIGNED_NOTHROW_NEW_ARRAY
void *operator new[](std::size_t size, std::align_val_t align, const std::nothrow_t &) noexcept {
    return calls++, aligned_alloc(std::size_t(align), size);
}
#endif
#ifdef OWN_ALIGNED_DELETE
void operator delete(void *block, std::align_val_t) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_ALIGNED_DELETE_ARRAY
void operator delete[](void *block, [[maybe_unused]] std::align_val_t align) noexcept {
    calls++;
#ifdef BY_OBJECTS
    ::operator delete(block, align);
#else
    std::free(block);
#endif
}
#endif
#ifdef OWN_ALIGNED_SIZED_DELETE
void operator delete(void *block, std::size_t, std::align_val_t) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_ALIGNED_SIZED_DELETE_ARRAY
void operator delete[](void *block, std::size_t, std::align_val_t) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_ALIGNED_NOTHROW_DELETE
void operator delete(void *block, std::align_val_t, const std::nothrow_t &) noexcept { calls++, std::free(block); }
#endif
#ifdef OWN_ALIGNED_NOTHROW_DELETE_ARRAY
void operator delete[](void *block, std::align_val_t, const std::nothrow_t &) noexcept { calls++, std::free(block); }
#endif
#endif
#ifdef OWN_MALLOC
extern "C" void *malloc(std::size_t size) noexcept {
    static void *(*next)(std::size_t);
    calls++;
    if (next == nullptr) *reinterpret_cast<void **>(&next) = dlsym(RTLD_NEXT, "malloc");
    return next(size + MARGIN);
}
#endif

static void *fill(void *block, std::size_t size) { return std::memset(opaque_pointer(block), 0xA5, size); }

static void every_form() {
    static const std::size_t sizes[] = {1, 24, 100, 5000, 40000, 3000000};
    for (std::size_t size : sizes) {
        for (int i = 0; i < 20; i++) {
            ::operator delete(fill(::operator new(size), size));
            ::operator delete(fill(::operator new(size, std::nothrow), size), std::nothrow);
            ::operator delete[](fill(::operator new[](size), size));
            ::operator delete[](fill(::operator new[](size, std::nothrow), size), std::nothrow);
#ifdef __cpp_sized_deallocation
            ::operator delete(fill(::operator new(size), size), size);
            ::operator delete[](fill(::operator new[](size), size), size);
#endif
#ifdef __cpp_aligned_new
            const auto align = std::align_val_t(64);
            ::operator delete(fill(::operator new(size, align), size), align);
            ::operator delete(fill(::operator new(size, align), size), size, align);
            ::operator delete(fill(::operator new(size, align, std::nothrow), size), align, std::nothrow);
            ::operator delete[](fill(::operator new[](size, align), size), align);
            ::operator delete[](fill(::operator new[](size, align), size), size, align);
            ::operator delete[](fill(::operator new[](size, align, std::nothrow), size), align, std::nothrow);
#endif
        }
    }
    EXPECT(calls > 0, "the program's own is not called");
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"every_form", every_form}};
    return run_case(argc, argv, cases, COUNT_OF(cases), 30);
}
