/* Whose malloc a process has: what the preloaded helpers ask of the dynamic linker. */
#ifndef HAK_LAB_FILE_OF_H
#define HAK_LAB_FILE_OF_H

#include <dlfcn.h>
#include <link.h>

#ifdef __GLIBC__

/* The file that defines what `symbol` is bound to. An executable that isn't position independent and takes a function's
 * address gives the function an address of its own, a jump to the real one, whose symbol is undefined in it; then the real one is
 * the first definition among the libraries, in the order in which they are searched. */
static const char *file_of(const char *symbol) {
    Dl_info info;
    const ElfW(Sym) *entry = NULL;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    if (!address || !dladdr1(address, &info, (void **)&entry, RTLD_DL_SYMENT)) {
        return "unknown";
    }
    if (!entry || entry->st_shndx != SHN_UNDEF) {
        return info.dli_fname;
    }
    for (const struct link_map *object = _r_debug.r_map->l_next; object; object = object->l_next) {
        void *handle = *object->l_name ? dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        void *found = handle ? dlsym(handle, symbol) : NULL;
        struct link_map *holder;
        if (found && dladdr1(found, &info, (void **)&holder, RTLD_DL_LINKMAP) && holder == object) {
            return object->l_name;
        }
    }
    return "unknown";
}

#else

/* The same with musl, whose dladdr doesn't tell an address of the executable's own from a definition: where there is one
 * of the first kind, this names the executable, and who asks refuses it. */
static const char *file_of(const char *symbol) {
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    return address && dladdr(address, &info) ? info.dli_fname : "unknown";
}

#endif

#endif
