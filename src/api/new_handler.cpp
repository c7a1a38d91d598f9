// The one piece of hakmem in C++: calling a new-handler from a nothrow new. The handler may throw, and the exception must end
// there. All that the compiler needs for that belongs to the C++ runtime, which hakmem does not link: it is weak, and
// there whenever there is a handler to call.
__asm__(".weak __gxx_personality_v0\n"
        ".weak __cxa_begin_catch\n"
        ".weak __cxa_end_catch\n"
        ".weak _Unwind_Resume\n");

// True when the handler returned, false when it threw.
extern "C" bool hak_call_new_handler(void (*handler)());

extern "C" bool hak_call_new_handler(void (*handler)()) {
    try {
        handler();
    } catch (...) {
        return false;
    }
    return true;
}
