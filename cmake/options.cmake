# How everything is compiled: language, warnings, code generation of the library, instrumentation.
# Owns hak_warnings, hak_codegen, hak_no_builtins and the cache variables HAK_CHECK_LEVEL and HAK_INSTRUMENT.

set(CMAKE_C_STANDARD 17)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 11
   OR CMAKE_C_COMPILER_ID MATCHES "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 14)
    message(FATAL_ERROR
        "hakmem needs gcc >= 11 or clang >= 14; this is ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
endif()

set(HAK_CHECK_LEVEL 0 CACHE STRING "Self-checks: 0, 1 or 2")
set_property(CACHE HAK_CHECK_LEVEL PROPERTY STRINGS 0 1 2)
set(HAK_INSTRUMENT "" CACHE STRING "Instrumentation: sanitize (for addresses and undefined behaviour), thread, coverage, fuzzer or empty")
set_property(CACHE HAK_INSTRUMENT PROPERTY STRINGS "" sanitize thread coverage fuzzer)

# ---- Warnings: errors in the presets (CMAKE_COMPILE_WARNING_AS_ERROR), never in somebody else's build ----

add_library(hak_warnings INTERFACE)
target_compile_options(hak_warnings INTERFACE
    -Wall -Wextra -Wshadow -Wundef -Wvla -Wformat=2 -Wpointer-arith -Wcast-align -Wwrite-strings -Wdouble-promotion
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition>
    $<$<C_COMPILER_ID:GNU>:-Wlogical-op -Wduplicated-cond>)

# ---- Code generation of the library ----

# The compiler knows what malloc means, and so may turn malloc + memset into calloc inside calloc, or drop a call
# that a test is about.
set(names malloc calloc realloc reallocarray free free_sized free_aligned_sized aligned_alloc posix_memalign memalign
    valloc pvalloc malloc_usable_size)
list(TRANSFORM names PREPEND -fno-builtin- OUTPUT_VARIABLE no_builtins)
add_library(hak_no_builtins INTERFACE)
target_compile_options(hak_no_builtins INTERFACE ${no_builtins})

# Exceptions pass through (operator new throws); thread-local storage is reached by one instruction; calls between
# exported functions are direct. Nothing here depends on the machine that builds.
add_library(hak_codegen INTERFACE)
target_link_libraries(hak_codegen INTERFACE hak_no_builtins)
target_compile_options(hak_codegen INTERFACE -fPIC -fvisibility=hidden -ftls-model=initial-exec -fexceptions
    -fno-semantic-interposition
    -foptimize-sibling-calls # the heap profile's stacks begin in the program: what samples is called as a last act
    -fno-builtin-memcpy -fno-builtin-memset -fno-builtin-memmove # in cold code the compiler writes slow loops for them
    $<$<CONFIG:Release>:-g -gz>) # with types: a debugger calls malloc in the program

# ---- Instrumentation: of all that is compiled here ----

if(HAK_INSTRUMENT STREQUAL "coverage")
    add_compile_options(--coverage)
    add_link_options(--coverage)
elseif(HAK_INSTRUMENT MATCHES "^(sanitize|thread)$")
    string(REPLACE sanitize address,undefined sanitizers ${HAK_INSTRUMENT})
    add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_compile_definitions(HAK_SANITIZED)
    # gcc says at every fence that ThreadSanitizer does not see it; it sees the atomics around it.
    add_compile_options($<$<AND:$<C_COMPILER_ID:GNU>,$<STREQUAL:${HAK_INSTRUMENT},thread>>:-Wno-tsan>)
    add_link_options(-fsanitize=${sanitizers})
elseif(HAK_INSTRUMENT STREQUAL "fuzzer") # AFL++'s compiler brings its own
    if(NOT CMAKE_C_COMPILER MATCHES "afl-")
        # Comparisons are not traced: walks over tables would take most of the time, and steps have no magic numbers.
        add_compile_options(-fsanitize=fuzzer-no-link,address -fno-sanitize-coverage=trace-cmp -fno-omit-frame-pointer)
        add_link_options(-fsanitize=address)
    endif()
elseif(HAK_INSTRUMENT)
    message(FATAL_ERROR
        "HAK_INSTRUMENT is ${HAK_INSTRUMENT}; it may be sanitize, thread, coverage, fuzzer or empty")
endif()
