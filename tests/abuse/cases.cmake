# Abuse programs and their cases: one CTest test per case, each in a process of its own.

# hak_case_program(PROGRAM SOURCES... [options of hak_add_program]): target abuse_PROGRAM, compiled so that every call
# of the malloc family stays.
function(hak_case_program program)
    hak_add_program(abuse_${program} SOURCES ${ARGN} OPTIONS -O1 -fno-builtin
        INCLUDES ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
endfunction()

# hak_cases(PROGRAM [PLAIN] [LONG] [SUFFIX s] [ENVIRONMENT e...] [ARGUMENTS a...] CASES c...)
# PLAIN: without LD_PRELOAD. SUFFIX tells a second registration of the same case apart. A case also ends by itself after
# ten times the seconds that stand in its program.
function(hak_cases program)
    cmake_parse_arguments(PARSE_ARGV 1 arg "PLAIN;LONG" "SUFFIX" "ARGUMENTS;CASES;ENVIRONMENT")
    set(options "")
    if(NOT arg_PLAIN)
        list(APPEND options PRELOAD)
    endif()
    if(arg_LONG)
        list(APPEND options LONG)
    endif()
    foreach(case IN LISTS arg_CASES)
        hak_add_test(abuse.${program}.${case}${arg_SUFFIX} COMMAND abuse_${program} ${case} ${arg_ARGUMENTS}
            LABELS abuse ENVIRONMENT ${arg_ENVIRONMENT} ${options})
    endforeach()
endfunction()

set(hak_outcomes_script ${CMAKE_CURRENT_LIST_DIR}/outcomes.py)

# hak_outcomes(PROGRAM [options of outcomes.py...]): a program of outcome.h prints what stands in PROGRAM.tsv beside it,
# and in docs/misuse.md. Of the library as it is shipped: checks of other builds may end a program earlier.
function(hak_outcomes program)
    if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
        return()
    endif()
    hak_add_python_test(abuse.${program} SCRIPT ${hak_outcomes_script} LABELS abuse PROCESSORS 2
        ARGS ${CMAKE_CURRENT_SOURCE_DIR}/${program}.tsv --page ${PROJECT_SOURCE_DIR}/docs/misuse.md
        --program $<TARGET_FILE:abuse_${program}> --library $<TARGET_FILE:hakmem_shared>
            --secure $<TARGET_FILE:hakmem_secure> ${ARGN})
endfunction()
