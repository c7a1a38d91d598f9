# Toolchain of the clang preset: the newest clang that is installed, under its plain or its numbered name.
set(names clang)
foreach(release RANGE 24 14 -1)
    list(APPEND names clang-${release})
endforeach()
find_program(HAK_CLANG NAMES ${names} REQUIRED)
string(REGEX REPLACE "clang([^/]*)$" "clang++\\1" HAK_CLANGXX "${HAK_CLANG}")
set(CMAKE_C_COMPILER ${HAK_CLANG})
set(CMAKE_CXX_COMPILER ${HAK_CLANGXX})
