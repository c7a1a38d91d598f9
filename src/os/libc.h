/* The C library's own functions, whoever has put one of the same name before them.
 *
 * A program, or a tool in it, may define what libc defines: as a wrapper that counts, allocates, takes a lock. A malloc
 * must not call such a wrapper: whoever called malloc may hold its lock. dlsym can't leave out all others, and dlopen
 * draws a warning in static programs. So this reads the tables of the library that is loaded.
 */
#ifndef HAK_OS_LIBC_H
#define HAK_OS_LIBC_H

#include <stdbool.h>
#include <stdint.h>

/* The address of a function in the libc.so.6 that this program has loaded; NULL where there is none, as in static
 * programs. To be called before the program has threads: it takes a lock of the dynamic linker's. */
void *hak_os_find_in_libc(const char *name);

/* The address of a function in any library that is loaded now, and whose symbols are public: the first one that has it;
 * NULL where there is none. Waits for the dynamic linker's lock. */
void *hak_os_find_in_libraries(const char *name);

/* The same of whatever has the name, a variable, too. Of a function it is the one that calls lead to. */
void *hak_os_find_any(const char *name);

/* The same of a function alone, in what was loaded behind the library that this code is in. */
void *hak_os_find_behind(const void *code, const char *name);

/* The same in the library, or the program, that this code is in. */
void *hak_os_find_beside(const void *code, const char *name);

/* True where a library that is loaded now has a C++ runtime linked into it, for others to use, too. Waits for the
 * dynamic linker's lock. */
bool hak_os_is_new_linked_in(void);

/* Notes where code of the C library and of the dynamic linker lies. To be called as the above. */
void hak_os_find_library_code(void);

/* Whether this is an address of such code: who calls malloc there may hold locks of libc's that pthread_create takes.
 * False for all in a program that is linked statically. */
bool hak_os_is_library_code(const void *address);

/* Whether the program, or a tool in it, has put a malloc, calloc, realloc or free before the one beside this code: libc
 * calls that one, as do all others, and who called the one beside may hold its lock. False in a program that is linked
 * statically. To be called after the above, as it is. */
bool hak_os_is_malloc_wrapped(const void *own_code);

/* Whether what was loaded before this code has a malloc, as this has, and a note of that owner and type: then nobody
 * calls the malloc beside this code. False where the C library was loaded before either: of those that a program opens,
 * each is called by who has opened it. */
bool hak_os_is_behind(const void *own_code, const char *owner, uint32_t note_type);

#endif
