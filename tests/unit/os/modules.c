/* os/modules.h against the dynamic linker's own answer: as glibc tells, and by the list that debuggers read. */
#include "unit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/atomic.h"
#include "os/modules.c"

static uint32_t modules_seen;

/* Each module that has code, asked for by the middle of it. */
static int compare(struct dl_phdr_info *loaded, size_t bytes, void *context) {
    (void)bytes, (void)context;
    uintptr_t code = 0, frame_table = 0;
    for (size_t i = 0; i < loaded->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &loaded->dlpi_phdr[i];
        if (part->p_type == PT_GNU_EH_FRAME) frame_table = loaded->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0)
            code = loaded->dlpi_addr + part->p_vaddr + part->p_memsz / 2;
    }
    if (code == 0 || loaded->dlpi_addr == getauxval(AT_SYSINFO_EHDR)) return 0;
    struct hak_os_module module = {0};
    assert_true(hak_os_module_of(code, &module));
    assert_int_equal(module.frame_table, frame_table);
    assert_true(module.start <= code && code < module.end);
    assert_true(frame_table == 0 || (module.start < frame_table && frame_table < module.end));
    modules_seen++;
    return 0;
}

static void compare_all(void) {
    struct hak_os_module module;
    int local;
    modules_seen = 0;
    dl_iterate_phdr(compare, NULL);
    assert_false(hak_os_module_of((uintptr_t)&local, &module));
    assert_false(hak_os_module_of(0, &module));
    assert_false(hak_os_module_of(UINTPTR_MAX, &module));
}

static void as_the_linker_says(void **state) {
    (void)state;
    hak_os_modules_begin();
    compare_all();
    uint32_t at_first = modules_seen;
    if (dlopen("libresolv.so.2", RTLD_NOW) == NULL) skip();
    compare_all();
    assert_int_equal(modules_seen, at_first + 1);
}

static void by_the_list(void **state) {
    (void)state;
    hak_os_modules_begin();
    find_object = NULL;
    if (shown_list == NULL) skip(); /* linked statically */
    dlopen("libresolv.so.2", RTLD_NOW);
    compare_all();
    assert_true(modules_seen > 2);
}

static void before_it_begins(void **state) {
    (void)state;
    struct hak_os_module module;
    assert_true(hak_os_module_of((uintptr_t)before_it_begins, &module));
    assert_false(hak_os_module_of((uintptr_t)dlsym(RTLD_DEFAULT, "qsort"), &module));
}

/* As another thread may leave it: in a circle, or leading to what is not there. */
static void a_list_that_changes(void **state) {
    (void)state;
    struct hak_os_module module;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *gone = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct link_map circle[2] = {{.l_addr = (uintptr_t)gone, .l_next = &circle[1]}, {.l_next = circle}};
    const struct r_debug changed = {.r_map = circle};
    assert_int_equal(mprotect(gone + page, page, PROT_NONE), 0);
    shown_list = &changed;
    uintptr_t code = (uintptr_t)dlsym(RTLD_DEFAULT, "qsort");
    assert_false(hak_os_module_of(code, &module));
    /* A header at the end of what can be read. */
    ElfW(Ehdr) *header = (void *)(gone + page - sizeof *header);
    memcpy(header->e_ident, ELFMAG, SELFMAG);
    header->e_phoff = sizeof *header;
    header->e_phentsize = sizeof(ElfW(Phdr));
    header->e_phnum = 20;
    circle[0].l_addr = (uintptr_t)header;
    assert_false(hak_os_module_of(code, &module));
    circle[1].l_next = (void *)(gone + page);
    assert_false(hak_os_module_of(code, &module));
    circle[1].l_next = (void *)(gone + page - 8);
    assert_false(hak_os_module_of(code, &module));
    circle[1].l_next = (void *)1;
    assert_false(hak_os_module_of(code, &module));
}

static HAK_ATOMIC(bool) is_over;

static void *come_and_go(void *page) {
    for (int rights = PROT_NONE; !hak_atomic_load(&is_over, relaxed); rights ^= PROT_READ)
        mprotect(page, (size_t)sysconf(_SC_PAGESIZE), rights);
    return NULL;
}

/* A module that another thread unloads while it is looked at. */
static void one_that_is_unloaded(void **state) {
    (void)state;
    enum { LOOKS = 100000 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct hak_os_module module;
    pthread_t thread;
    ElfW(Ehdr) *header = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *header = (ElfW(Ehdr)){.e_ident = ELFMAG, .e_phoff = sizeof *header, .e_phnum = 20};
    header->e_phentsize = sizeof(ElfW(Phdr));
    struct link_map loaded = {.l_addr = (uintptr_t)header};
    const struct r_debug list = {.r_map = &loaded};
    shown_list = &list;
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, header), 0);
    for (int i = 0; i < LOOKS; i++) assert_false(hak_os_module_of((uintptr_t)&loaded, &module));
    hak_atomic_store(&is_over, true, relaxed);
    pthread_join(thread, NULL);
}

UNIT_MAIN(cmocka_unit_test(as_the_linker_says), cmocka_unit_test(by_the_list), cmocka_unit_test(before_it_begins),
          cmocka_unit_test(a_list_that_changes), cmocka_unit_test(one_that_is_unloaded))
