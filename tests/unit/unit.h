/* What every unit test begins with. Modules have state of their own, so each test runs in a process of its own, which
 * starts from nothing. */
#ifndef UNIT_H
#define UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h> /* after those it needs */

/* Runs all tests, or those whose name is `only` unless it is NULL. Returns how many failed. */
int unit_run(const struct CMUnitTest *tests, size_t count, const char *only);

#define UNIT_MAIN(...)                                                                                                 \
    int main(int argc, char **argv) {                                                                                  \
        const struct CMUnitTest tests[] = {__VA_ARGS__};                                                               \
        return unit_run(tests, sizeof tests / sizeof tests[0], argc > 1 ? argv[1] : NULL);                             \
    }

/* Reads a descriptor to its end, or until `text` of `bytes` (which are zero) is full but for its NUL, and closes it. */
void unit_read_all(int descriptor, char *text, size_t bytes);

/* Whether the byte can be read: the kernel does so, or finds that it can't be. */
bool unit_is_accessible(const void *address);

/* A repeatable sequence of numbers. */
static inline uint64_t unit_random(uint64_t *state) {
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return mixed ^ mixed >> 31;
}

#endif
