#include "os/libc.h"

#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/platform.h"
#include "os/notes.h"

/* A library's symbols, as System V's and GNU's formats have them. */
struct symbols {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint16_t *versions;        /* NULL: none */
    const uint32_t *hash, *old_hash; /* GNU's, System V's; NULL: none */
};

enum { IS_OLD_VERSION = 0x8000 };

static uint32_t hash_of_name(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++) hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static bool is_defined(const struct symbols *library, uint32_t index, const char *name) {
    const ElfW(Sym) *symbol = &library->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && strcmp(library->names + symbol->st_name, name) == 0;
}

static bool is_meant(const struct symbols *library, uint32_t index, const char *name) {
    bool is_old = library->versions != NULL && (library->versions[index] & IS_OLD_VERSION) != 0;
    return !is_old && ELF64_ST_TYPE(library->symbols[index].st_info) == STT_FUNC && is_defined(library, index, name);
}

typedef bool symbol_test(const struct symbols *library, uint32_t index, const char *name);

/* The table begins with the number of buckets, the first symbol in it, and the number of words of a filter, which is
 * passed over. A chain's last hash is odd. */
static const ElfW(Sym) * find_by_hash(const struct symbols *library, const char *name, symbol_test *is_it) {
    uint32_t bucket_count = library->hash[0], first = library->hash[1], filter_words = library->hash[2],
             hash = hash_of_name(name);
    const uint32_t *buckets = &library->hash[4] + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t)),
                   *chain = buckets + bucket_count;
    if (bucket_count == 0) return NULL;
    for (uint32_t i = buckets[hash % bucket_count]; i >= first && i != 0; i++) {
        if ((chain[i - first] | 1) == (hash | 1) && is_it(library, i, name)) return &library->symbols[i];
        if ((chain[i - first] & 1) != 0) break;
    }
    return NULL;
}

/* Old linkers, and some that are told so, give System V's table alone: its second number is that of all symbols. */
static const ElfW(Sym) * find_symbol(const struct symbols *library, const char *name, symbol_test *is_it) {
    if (library->symbols == NULL || library->names == NULL) return NULL;
    if (library->hash != NULL) return find_by_hash(library, name, is_it);
    for (uint32_t i = 0; library->old_hash != NULL && i < library->old_hash[1]; i++)
        if (is_it(library, i, name)) return &library->symbols[i];
    return NULL;
}

/* Some linkers make addresses of what the tables say, in place; others leave them. */
static const void *at(ElfW(Addr) base, ElfW(Addr) value) { return (const void *)(value < base ? base + value : value); }

static struct symbols symbols_of(ElfW(Addr) base, const ElfW(Dyn) * entry) {
    struct symbols library = {.symbols = NULL};
    for (; entry->d_tag != DT_NULL; entry++) {
        const void *table = at(base, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB) library.symbols = table;
        if (entry->d_tag == DT_STRTAB) library.names = table;
        if (entry->d_tag == DT_VERSYM) library.versions = table;
        if (entry->d_tag == DT_GNU_HASH) library.hash = table;
        if (entry->d_tag == DT_HASH) library.old_hash = table;
    }
    return library;
}

struct search {
    const char *library; /* NULL: any */
    const void *code;    /* NULL: any */
    const void *behind;  /* only libraries that come after that of this code; NULL: any */
    const char *name;
    symbol_test *is_it;
    void *found;
};

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static bool is_named(const char *path, const char *name) { return strcmp(file_name(path), name) == 0; }

static bool holds(const struct dl_phdr_info *loaded, const void *code) {
    for (size_t i = 0; i < loaded->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &loaded->dlpi_phdr[i];
        uintptr_t offset = (uintptr_t)code - (loaded->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_LOAD && offset < part->p_memsz) return true;
    }
    return false;
}

static int look_into(struct dl_phdr_info *loaded, size_t bytes, void *context) {
    struct search *search = context;
    (void)bytes;
    if (loaded->dlpi_name == NULL) return 0;
    if (search->behind != NULL) {
        if (holds(loaded, search->behind)) search->behind = NULL;
        return 0;
    }
    if (search->library != NULL && !is_named(loaded->dlpi_name, search->library)) return 0;
    if (search->code != NULL && !holds(loaded, search->code)) return 0;
    for (size_t i = 0; i < loaded->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &loaded->dlpi_phdr[i];
        if (part->p_type != PT_DYNAMIC) continue;
        struct symbols library = symbols_of(loaded->dlpi_addr, (const void *)(loaded->dlpi_addr + part->p_vaddr));
        const ElfW(Sym) *symbol = find_symbol(&library, search->name, search->is_it);
        if (symbol != NULL) search->found = (void *)(loaded->dlpi_addr + symbol->st_value);
    }
    return search->library != NULL || search->code != NULL || search->found != NULL;
}

static void *find(const char *library, const void *code, const char *name, symbol_test *is_it) {
    struct search search = {.library = library, .code = code, .name = name, .is_it = is_it};
    dl_iterate_phdr(look_into, &search);
    return search.found;
}

void *hak_os_find_in_libc(const char *name) { return find("libc.so.6", NULL, name, is_meant); }
void *hak_os_find_in_libraries(const char *name) { return find(NULL, NULL, name, is_meant); }
void *hak_os_find_any(const char *name) { return find(NULL, NULL, name, is_defined); }
void *hak_os_find_behind(const void *code, const char *name) {
    struct search search = {.behind = code, .name = name, .is_it = is_meant};
    dl_iterate_phdr(look_into, &search);
    return search.found;
}
void *hak_os_find_beside(const void *code, const char *name) { return find(NULL, code, name, is_meant); }

/* By their names: runtimes of C++ that libraries share. */
static bool is_shared_runtime(const struct dl_phdr_info *loaded) {
    static const char *const names[] = {"libstdc++.", "libc++", "libcxxrt."};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(file_name(loaded->dlpi_name), names[i], strlen(names[i])) == 0) return true;
    return false;
}

static bool has_symbol(struct dl_phdr_info *loaded, const char *name) {
    struct search search = {.name = name, .is_it = is_defined};
    look_into(loaded, 0, &search);
    return search.found != NULL;
}

/* Who has new alone is another allocator, whose new is not called where hakmem's is before it; nor is the program's. */
static int look_for_runtime(struct dl_phdr_info *loaded, size_t bytes, void *context) {
    (void)bytes;
    (void)context;
    if (loaded->dlpi_name == NULL || *loaded->dlpi_name == '\0' || is_shared_runtime(loaded)) return 0;
    return has_symbol(loaded, "_Znwm") && has_symbol(loaded, "__cxa_throw");
}

bool hak_os_is_new_linked_in(void) { return dl_iterate_phdr(look_for_runtime, NULL) != 0; }

/* ---- Whose code it is -------------------------------------------------------------------------------------------- */

/* libc, libpthread where it is a library of its own, the dynamic linker (with musl the same as libc). */
enum { LIBRARIES = 3 };
static struct {
    uintptr_t start, end;
} library_code[LIBRARIES]; /* before the program has threads; const from then on */

static void find_code(const struct dl_phdr_info *loaded, uintptr_t *start, uintptr_t *end) {
    *start = UINTPTR_MAX;
    *end = 0;
    for (size_t i = 0; i < loaded->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &loaded->dlpi_phdr[i];
        uintptr_t from = loaded->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
        if (from < *start) *start = from;
        if (to > *end) *end = to;
    }
}

/* By its address; a program that the linker was called with by name has none of it. */
static bool is_linker(const struct dl_phdr_info *loaded) {
    static const char *const names[] = {"ld-linux", "ld-musl", "ld.so", "ld64.so"};
    const char *name = file_name(loaded->dlpi_name);
    uintptr_t linker = getauxval(AT_BASE);
    if (linker != 0) return loaded->dlpi_addr == linker;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0) return true;
    return false;
}

static bool is_c_librarys(const struct dl_phdr_info *loaded) {
    return is_linker(loaded) || is_named(loaded->dlpi_name, "libc.so.6") ||
           is_named(loaded->dlpi_name, "libpthread.so.0");
}

static int note_code(struct dl_phdr_info *loaded, size_t bytes, void *count) {
    uint32_t *next = count;
    uintptr_t start, end;
    (void)bytes;
    if (loaded->dlpi_name == NULL || loaded->dlpi_name[0] == '\0') return 0; /* the program */
    find_code(loaded, &start, &end);
    if (start >= end || !is_c_librarys(loaded)) return 0;
    library_code[*next].start = start;
    library_code[(*next)++].end = end;
    return *next == LIBRARIES;
}

void hak_os_find_library_code(void) {
    uint32_t count = 0;
    dl_iterate_phdr(note_code, &count);
}

bool hak_os_is_library_code(const void *address) {
    for (size_t i = 0; i < LIBRARIES; i++)
        if ((uintptr_t)address >= library_code[i].start && (uintptr_t)address < library_code[i].end) return true;
    return false;
}

/* Whatever defines the name first hides the others. Where that is libc, because it was loaded first, libc calls itself,
 * and no wrapper. */
bool hak_os_is_malloc_wrapped(const void *own_code) {
    static const char *const names[] = {"malloc", "calloc", "realloc", "free"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const void *beside = hak_os_find_beside(own_code, names[i]);
        void *first = find(NULL, NULL, names[i], is_defined);
        if (beside != NULL && first != beside && !hak_os_is_library_code(first)) return true;
    }
    return false;
}

/* ---- Whose malloc comes first ------------------------------------------------------------------------------------ */

struct before {
    const void *own_code;
    const char *owner; /* of its note */
    uint32_t note_type;
    bool is_found;
};

/* Linkers leave notes where they are loaded; who has changed the file since may not have. */
static bool has_note(const struct dl_phdr_info *loaded, const char *owner, uint32_t type) {
    size_t content_bytes;
    for (size_t i = 0; i < loaded->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &loaded->dlpi_phdr[i];
        const char *notes = (const char *)(loaded->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_NOTE && part->p_memsz != 0 && holds(loaded, notes) &&
            holds(loaded, notes + part->p_memsz - 1) &&
            hak_os_find_note(notes, part->p_memsz, owner, type, &content_bytes) != NULL)
            return true;
    }
    return false;
}

static int look_before(struct dl_phdr_info *loaded, size_t bytes, void *context) {
    struct before *before = context;
    (void)bytes;
    if (loaded->dlpi_name == NULL) return 0;
    if (holds(loaded, before->own_code)) return 1;
    if (!has_symbol(loaded, "malloc")) return 0;
    if (is_c_librarys(loaded)) return 1;
    before->is_found = has_note(loaded, before->owner, before->note_type);
    return before->is_found;
}

bool hak_os_is_behind(const void *own_code, const char *owner, uint32_t note_type) {
    struct before before = {own_code, owner, note_type, false};
    if (hak_os_find_beside(own_code, "malloc") == NULL) return false;
    dl_iterate_phdr(look_before, &before);
    return before.is_found;
}
