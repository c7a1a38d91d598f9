# Abuse programs and their cases: one CTest test per case, each in a process of its own under LD_PRELOAD.
find_package(Threads REQUIRED)

# hak_case_program(PROGRAM SOURCES...): an executable that is compiled so that every malloc/free pair stays.
function(hak_case_program program)
    add_executable(abuse_${program} ${ARGN})
    hak_case_options(abuse_${program})
    target_link_libraries(abuse_${program} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

function(hak_case_options target)
    target_compile_options(${target} PRIVATE -O1 -fno-builtin -Wall -Wextra)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../include)
endfunction()

# hak_cases(PROGRAM [PLAIN] [SUFFIX s] [SECONDS n] [LABELS l...] [ENVIRONMENT e...] [ARGUMENTS a...] CASES c...)
# PLAIN: without LD_PRELOAD. SUFFIX tells a second registration of the same case apart.
function(hak_cases program)
    cmake_parse_arguments(PARSE_ARGV 1 arg "PLAIN" "SUFFIX;SECONDS" "LABELS;ENVIRONMENT;ARGUMENTS;CASES")
    if(NOT arg_SECONDS)
        set(arg_SECONDS 60)
    endif()
    if(NOT arg_PLAIN)
        list(APPEND arg_ENVIRONMENT LD_PRELOAD=$<TARGET_FILE:hakmem_shared>)
    endif()
    foreach(case IN LISTS arg_CASES)
        set(name abuse.${program}.${case}${arg_SUFFIX})
        add_test(NAME ${name} COMMAND abuse_${program} ${case} ${arg_ARGUMENTS})
        set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_SECONDS} SKIP_RETURN_CODE 77
            LABELS "abuse;${arg_LABELS}" ENVIRONMENT "${arg_ENVIRONMENT}")
    endforeach()
endfunction()
