#!/bin/sh
# valgrind.sh VALGRIND PROGRAM: passes when memcheck finds the program's three errors. VALGRIND may have options.
set -f
errors=$($1 --leak-check=full --error-exitcode=7 "$2" 2>&1 | tee /dev/stderr | sed -n 's/.*ERROR SUMMARY: \([0-9]*\) .*/\1/p')
[ "$errors" = 3 ]
