/* The C library's own functions, whoever has put one of the same name before them.
 *
 * A program, or a tool in it, may define what libc defines: as a wrapper that counts, allocates, takes a lock. A malloc
 * must not call such a wrapper: whoever called malloc may hold its lock. dlsym can't leave out all others, and dlopen
 * draws a warning in static programs. So this reads the tables of the library that is loaded.
 */
#ifndef HAK_OS_LIBC_H
#define HAK_OS_LIBC_H

/* The address of a function in the libc.so.6 that this program has loaded; NULL where there is none, as in static
 * programs. To be called before the program has threads: it takes a lock of the dynamic linker's. */
void *hak_os_find_in_libc(const char *name);

#endif
