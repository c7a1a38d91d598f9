// The one piece of hakmem in C++: what a nothrow new calls of the program, a new-handler or an operator new of its own. It
// may throw, and the exception must end there. All that the compiler needs for that belongs to the C++ runtime, which
// hakmem does not link, nor its headers: it is weak, and there whenever there is something to throw.
__asm__(".weak __gxx_personality_v0\n"
        ".weak __cxa_begin_catch\n"
        ".weak __cxa_end_catch\n"
        ".weak _Unwind_Resume\n");

using size = decltype(sizeof 0);

// As HAK_WALKABLE() of observe/stack.h: the program's new asks for memory, and that may begin a walk.
#define WALKABLE() __asm__ volatile("" : : "r"(__builtin_frame_address(0)))

// True when the handler returned, false when it threw.
extern "C" bool hak_call_new_handler(void (*handler)());

// What the program's new gives, null when it threw.
extern "C" void *hak_call_new(void *(*by)(size), size bytes);
extern "C" void *hak_call_new_aligned(void *(*by)(size, size), size bytes, size alignment);

extern "C" bool hak_call_new_handler(void (*handler)()) {
    try {
        handler();
    } catch (...) {
        return false;
    }
    return true;
}

extern "C" void *hak_call_new(void *(*by)(size), size bytes) {
    WALKABLE();
    try {
        return by(bytes);
    } catch (...) {
        return nullptr;
    }
}

extern "C" void *hak_call_new_aligned(void *(*by)(size, size), size bytes, size alignment) {
    WALKABLE();
    try {
        return by(bytes, alignment);
    } catch (...) {
        return nullptr;
    }
}
