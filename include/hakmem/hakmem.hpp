// hakmem for C++17: an allocator and a memory resource that use hakmem by name, whatever else is linked. Programs in which
// hakmem is the malloc need neither: operator new and delete are hakmem's there.
#ifndef HAKMEM_HAKMEM_HPP
#define HAKMEM_HAKMEM_HPP

#include <cstddef>
#include <limits>
#include <memory_resource>
#include <new>

#include "hakmem/hakmem.h"

namespace hakmem {

// Blocks of `bytes` at a multiple of `alignment`. Throws std::bad_alloc; safe from any thread.
inline void *allocate(std::size_t bytes, std::size_t alignment) {
    void *block = alignment <= alignof(std::max_align_t) ? hak_malloc(bytes) : hak_aligned_alloc(alignment, bytes);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}

inline void deallocate(void *block, std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment <= alignof(std::max_align_t)) hak_free_sized(block, bytes);
    else hak_free_aligned_sized(block, alignment, bytes);
}

// A standard allocator, for containers. Stateless: all of them are equal.
template <class T> struct allocator {
    using value_type = T;
    using is_always_equal = std::true_type;

    allocator() noexcept = default;
    template <class U> allocator(const allocator<U> &) noexcept {}

    [[nodiscard]] T *allocate(std::size_t count) {
        if (count > std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        return static_cast<T *>(hakmem::allocate(count * sizeof(T), alignof(T)));
    }
    void deallocate(T *block, std::size_t count) noexcept { hakmem::deallocate(block, count * sizeof(T), alignof(T)); }
};

template <class T, class U> bool operator==(const allocator<T> &, const allocator<U> &) noexcept { return true; }
template <class T, class U> bool operator!=(const allocator<T> &, const allocator<U> &) noexcept { return false; }

// For std::pmr containers.
class memory_resource final : public std::pmr::memory_resource {
    void *do_allocate(std::size_t bytes, std::size_t alignment) override { return hakmem::allocate(bytes, alignment); }
    void do_deallocate(void *block, std::size_t bytes, std::size_t alignment) override {
        hakmem::deallocate(block, bytes, alignment);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        return dynamic_cast<const memory_resource *>(&other) != nullptr;
    }
};

// The one memory resource there is. Lives until the process ends.
inline std::pmr::memory_resource *resource() noexcept {
    static memory_resource instance;
    return &instance;
}

} // namespace hakmem

#endif
