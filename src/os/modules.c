#include "os/modules.h"

#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "os/inspect.h"
#include "os/libc.h"

/* struct dl_find_object of <dlfcn.h>, which older headers lack. */
struct found_object {
    unsigned long long flags;
    void *start, *end;
    struct link_map *loaded;
    void *frame_table;
    unsigned long long reserved[7];
};

typedef int find_object_function(void *code, struct found_object *found);

static find_object_function *find_object; /* const after begin; NULL: there is none */
static const struct r_debug *shown_list;  /* the same */

/* ---- In memory --------------------------------------------------------------------------------------------------- */

/* Widens `module` by a part of it. True when the code is there. */
static bool widen_by(const ElfW(Phdr) * part, uintptr_t base, uintptr_t code, struct hak_os_module *module) {
    uintptr_t start = base + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) module->frame_table = start;
    if (part->p_type != PT_LOAD) return false;
    if (start < module->start) module->start = start;
    if (start + part->p_memsz > module->end) module->end = start + part->p_memsz;
    return code - start < part->p_memsz;
}

/* The module whose file begins there, with the header and the table of its parts, if the code is in it. Linkers put the
 * parts that are loaded first, and of these the one with the header. */
static bool is_module_of(uintptr_t header, uintptr_t code, struct hak_os_module *module) {
    enum { AT_ONCE = 8 };
    ElfW(Ehdr) elf;
    ElfW(Phdr) parts[AT_ONCE];
    uintptr_t base = 0;
    bool holds = false;
    if (!hak_os_peek_memory(header, &elf, sizeof elf) || memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0) return false;
    if (elf.e_phoff != sizeof elf || elf.e_phentsize != sizeof parts[0]) return false;
    *module = (struct hak_os_module){.start = UINTPTR_MAX};
    for (size_t i = 0; i < elf.e_phnum; i++) {
        size_t left = elf.e_phnum - i, count = left < AT_ONCE ? left : AT_ONCE;
        const ElfW(Phdr) *part = &parts[i % AT_ONCE];
        if (i % AT_ONCE == 0 &&
            !hak_os_peek_memory(header + sizeof elf + i * sizeof *part, parts, count * sizeof *part))
            return false;
        if (part->p_type == PT_LOAD && module->start == UINTPTR_MAX) base = header - part->p_vaddr;
        holds |= widen_by(part, base, code, module);
    }
    return holds;
}

/* The program's header lies before the table that the kernel tells of. */
static uintptr_t program_header(void) { return getauxval(AT_PHDR) - sizeof(ElfW(Ehdr)); }

static bool look_into_list(uintptr_t code, struct hak_os_module *module) {
    enum { MOST = 4096 }; /* a list that is being changed may lead in a circle */
    uintptr_t at = shown_list == NULL ? 0 : (uintptr_t)shown_list->r_map;
    struct link_map loaded;
    for (uint32_t i = 0; i < MOST && hak_os_peek_memory(at, &loaded, sizeof loaded); i++) {
        if (is_module_of(loaded.l_addr, code, module)) return true;
        at = (uintptr_t)loaded.l_next;
    }
    return false;
}

bool hak_os_module_of(uintptr_t code, struct hak_os_module *module) {
    struct found_object found;
    if (find_object == NULL) return is_module_of(program_header(), code, module) || look_into_list(code, module);
    if (find_object((void *)code, &found) != 0) return false;
    *module = (struct hak_os_module){(uintptr_t)found.start, (uintptr_t)found.end, (uintptr_t)found.frame_table};
    return true;
}

/* ---- Before there are threads ------------------------------------------------------------------------------------ */

/* What the program's dynamic section tells debuggers. */
static int find_list(struct dl_phdr_info *program, size_t bytes, void *context) {
    (void)bytes, (void)context;
    for (size_t i = 0; i < program->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &program->dlpi_phdr[i];
        if (part->p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *entry = (const void *)(program->dlpi_addr + part->p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++)
            if (entry->d_tag == DT_DEBUG) shown_list = (const void *)entry->d_un.d_ptr;
    }
    return 1; /* it is the first */
}

void hak_os_modules_begin(void) {
    void *function = hak_os_find_in_libraries("_dl_find_object");
    memcpy(&find_object, &function, sizeof find_object);
    dl_iterate_phdr(find_list, NULL);
}
