/* A library whose constructor opens a plug-in, which may be before hakmem's own, and before anybody has asked for
 * memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void *deepbind_early;

__attribute__((constructor(101))) static void open_plugin(void) {
    deepbind_early = dlopen(DEEPBIND_PLUGIN, RTLD_NOW | RTLD_DEEPBIND);
}
