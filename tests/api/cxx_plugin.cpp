// A C++ library that a C program loads: it brings the C++ runtime with it. What new does there when memory is short.
#include <new>

#include <cstddef>
#include <cstdlib>

static volatile std::size_t too_much = static_cast<std::size_t>(1) << 60;
static int handler_calls;

static void handle() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
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
    return handler_calls == 3 ? 0 : 4;
}
