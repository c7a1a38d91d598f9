/* A plug-in that frees what libc's functions have allocated for it, and has a function that its host has, too. With
 * WRAPS it is a library that has a dlopen, which counts, as tools have. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WRAPS
int deepbind_wrapped;
void *dlopen(const char *file, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))(uintptr_t)dlsym(RTLD_NEXT, "dlopen");
    deepbind_wrapped++;
    return next(file, flags);
}
#else

int deepbind_which(void);
int deepbind_which(void) { return 2; }

int plugin_which(void);
int plugin_which(void) { return deepbind_which(); }

int plugin_frees(void);
int plugin_frees(void) {
    char *line = NULL, *text = NULL;
    size_t room = 0, lines = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && getline(&line, &room, file) > 0) lines++;
    free(line);
    if (file != NULL) fclose(file);
    if (asprintf(&text, "%d texts", 5) > 0) free(text);
    free(strdup("a text of some length"));
    free(realpath("/usr/../etc", NULL));
    struct dirent **list = NULL;
    int count = scandir("/", &list, NULL, alphasort);
    for (int i = 0; i < count; i++) free(list[i]);
    free(list);
    return lines > 10 && count > 2;
}

char *plugin_gives(void);
char *plugin_gives(void) { return strcpy(malloc(200), "given"); }

void plugin_takes(char *text);
void plugin_takes(char *text) { free(text); }
#endif
