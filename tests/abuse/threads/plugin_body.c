/* A plugin: allocates when it is loaded, while it works, and frees when it is unloaded. */
#include "plugin.h"

#include <stdlib.h>
#include <string.h>

extern plugin_work plugin_run;

static void *loaded_with[50];

__attribute__((constructor)) static void plugin_load(void) {
    for (int i = 0; i < 50; i++) loaded_with[i] = malloc((size_t)16 << i % 12);
}

__attribute__((destructor)) static void plugin_unload(void) {
    for (int i = 0; i < 50; i++) free(loaded_with[i]);
}

unsigned char *plugin_run(unsigned seed) {
    for (unsigned i = 0; i < 300; i++) {
        size_t size = 1 + (seed + i) * 2654435761u % 50000;
        unsigned char *block = malloc(size);
        if (!block) return NULL;
        memset(block, (int)i, size);
        block = realloc(block, size * 2);
        if (!block || block[0] != (unsigned char)i || block[size - 1] != (unsigned char)i) return NULL;
        free(block);
    }
    unsigned char *kept = malloc(PLUGIN_KEPT_BYTES);
    if (kept) memset(kept, PLUGIN_KEPT_TAG, PLUGIN_KEPT_BYTES);
    return kept;
}
