// A C++ library that a C program loads: it brings the C++ runtime with it. What new does there when memory is short.
#include <new>

#include <cstddef>
#include <cstdlib>

#include <sys/resource.h>

#ifdef ROUNDS_UP
// As libc++'s: for whole multiples of a pointer's size at least, whatever the alignment.
__attribute__((noinline)) void *operator new(std::size_t size, std::align_val_t align) {
    std::size_t alignment = static_cast<std::size_t>(align);
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    for (;;) {
        void *block = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
        if (block != nullptr) return block;
        std::new_handler handler = std::get_new_handler();
        if (handler == nullptr) throw std::bad_alloc();
        handler();
    }
}
#endif

static volatile std::size_t too_much = static_cast<std::size_t>(1) << 60;
static int handler_calls;

static void handle() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

static rlimit limit_before;
static void make_room() { setrlimit(RLIMIT_AS, &limit_before); }

// What a handler has made room for is deleted as any other, with its size.
static bool gets_room() {
    const std::size_t bytes = (64 << 20) + 1;
    const std::align_val_t none{1}, align{64};
    if (getrlimit(RLIMIT_AS, &limit_before) != 0) return false;
    rlimit less = {1 << 20, limit_before.rlim_max}; // than is mapped: nothing more is
    std::set_new_handler(make_room);
    setrlimit(RLIMIT_AS, &less);
    char *block = static_cast<char *>(::operator new(bytes));
    setrlimit(RLIMIT_AS, &less);
    char *at_any = static_cast<char *>(::operator new(bytes, none));
    setrlimit(RLIMIT_AS, &less);
    char *aligned = static_cast<char *>(::operator new[](bytes, align));
    block[bytes - 1] = at_any[bytes - 1] = aligned[bytes - 1] = 1;
    ::operator delete(block, bytes);
    ::operator delete(at_any, bytes, none);
    ::operator delete[](aligned, bytes, align);
    std::set_new_handler(nullptr);
    return true;
}

// 0 when all is as the standard says, else the number of what isn't.
extern "C" int go() {
    try {
        ::operator delete(::operator new(too_much));
        return 1;
    } catch (const std::bad_alloc &) {
    }
    if (::operator new(too_much, std::nothrow) != nullptr) return 2;
    std::set_new_handler(handle);
    try {
        ::operator delete(::operator new(too_much));
        return 3;
    } catch (const std::bad_alloc &) {
    }
    if (handler_calls != 3) return 4;
    return gets_room() ? 0 : 5;
}
