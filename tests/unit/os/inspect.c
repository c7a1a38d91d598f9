/* os/inspect.h against the kernel this runs on. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/inspect.h"
#include "os/notes.h"
#include "os/os.h"

struct sought {
    uintptr_t address;
    struct hak_os_mapping found;
    size_t name_length;
    uintptr_t last_end;
    size_t count, most;
};

static bool look(const struct hak_os_mapping *mapping, void *context) {
    struct sought *sought = context;
    assert_true(mapping->start >= sought->last_end && mapping->end > mapping->start);
    assert_int_equal(strlen(mapping->rights), 4);
    sought->last_end = mapping->end;
    if (sought->address >= mapping->start && sought->address < mapping->end) {
        sought->found = *mapping;
        sought->name_length = strlen(mapping->name);
    }
    return ++sought->count < sought->most;
}

static struct sought seek(const void *address, size_t most) {
    struct sought sought = {.address = (uintptr_t)address, .most = most};
    errno = 1234;
    assert_true(hak_os_for_each_mapping(look, &sought));
    assert_int_equal(errno, 1234);
    return sought;
}

static void mappings(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *start = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(mprotect(start + page, page, PROT_READ), 0);
    struct sought sought = seek(start + page + 7, SIZE_MAX);
    assert_int_equal(sought.found.start, (uintptr_t)start + page);
    assert_int_equal(sought.found.end, (uintptr_t)start + 2 * page);
    assert_string_equal(sought.found.rights, "r--p");
    assert_int_equal(sought.found.offset, 0);
    assert_int_equal(sought.name_length, 0);
    sought = seek((void *)(uintptr_t)mappings, SIZE_MAX);
    assert_int_equal(sought.found.rights[2], 'x');
    assert_true(sought.name_length > strlen("/unit_os.inspect") - 1);
    assert_true(sought.count > 5);
    assert_int_equal(seek(start, 3).count, 3);
}

/* More lines than a buffer holds, and one that is longer than it. */
static void long_lists_and_names(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char folder[] = "unit-inspect-XXXXXX", name[201], here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (int depth = 0; depth < 10; depth++) {
        assert_int_equal(mkdir(name, 0700), 0);
        assert_int_equal(chdir(name), 0);
    }
    FILE *file = fopen("file", "we");
    for (size_t i = 0; i < 2 * page; i++) fputc('x', file);
    fclose(file);
    file = fopen("file", "re");
    char *long_name = mmap(NULL, page, PROT_READ, MAP_PRIVATE, fileno(file), (off_t)page);
    assert_ptr_not_equal(long_name, MAP_FAILED);
    fclose(file);
    char *many = mmap(NULL, 401 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 1; i < 400; i += 2) assert_int_equal(mprotect(many + i * page, page, PROT_READ), 0);
    struct sought sought = seek(long_name, SIZE_MAX);
    assert_int_equal(sought.found.start, (uintptr_t)long_name);
    assert_int_equal(sought.found.offset, page);
    assert_in_range(sought.name_length, 500, 1023);
    assert_true(sought.count > 400);
    for (size_t i = 1; i < 400; i += 38) {
        sought = seek(many + i * page, SIZE_MAX);
        assert_int_equal(sought.found.start, (uintptr_t)many + i * page);
        assert_string_equal(sought.found.rights, "r--p");
    }
    assert_int_equal(unlink("file"), 0);
    for (int depth = 0; depth < 10; depth++) {
        assert_int_equal(chdir(".."), 0);
        assert_int_equal(rmdir(name), 0);
    }
    assert_int_equal(chdir(here), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void copy_what_is_there(bool (*read)(uintptr_t from, void *to, size_t bytes)) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *start = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), copy[16];
    memcpy(start + page - 16, "0123456789abcdef", 16);
    assert_int_equal(mprotect(start + page, page, PROT_NONE), 0);
    errno = 1234;
    assert_true(read((uintptr_t)start + page - 16, copy, 16));
    assert_memory_equal(copy, "0123456789abcdef", 16);
    assert_false(read((uintptr_t)start + page - 8, copy, 16));
    assert_false(read((uintptr_t)start + page, copy, 1));
    assert_false(read(0, copy, 8));
    assert_false(read(UINTPTR_MAX - 15, copy, 16));
    assert_int_equal(errno, 1234);
}

/* A kernel that knows no process_vm_readv. */
static void refuse_to_copy(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof steps / sizeof steps[0], .filter = steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) skip();
}

static void memory_that_may_not_be_there(void **state) {
    (void)state;
    copy_what_is_there(hak_os_read_memory);
    copy_what_is_there(hak_os_peek_memory);
    refuse_to_copy();
    copy_what_is_there(hak_os_read_memory);
    copy_what_is_there(hak_os_peek_memory);
}

static void threads(void **state) {
    (void)state;
    char name[HAK_THREAD_NAME_BYTES];
    assert_int_equal(prctl(PR_SET_NAME, "a b) \"c"), 0);
    errno = 1234;
    hak_os_thread_name((int)syscall(SYS_gettid), name);
    assert_string_equal(name, "a b) \"c");
    assert_int_equal(prctl(PR_SET_NAME, "longer than fifteen"), 0);
    hak_os_thread_name((int)syscall(SYS_gettid), name);
    assert_string_equal(name, "longer than fif");
    hak_os_thread_name(-1, name);
    assert_string_equal(name, "");
    assert_int_equal(errno, 1234);
}

/* As the kernel tells where the program's notes are. */
static void build_ids(void **state) {
    (void)state;
    unsigned char expected[HAK_BUILD_ID_BYTES], found[HAK_BUILD_ID_BYTES];
    size_t bytes = hak_os_build_id(expected, sizeof expected), page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t header = getauxval(AT_PHDR) - sizeof(ElfW(Ehdr));
    int memory = open("/proc/self/mem", O_RDONLY);
    assert_true(bytes >= 8);
    assert_int_equal(hak_os_build_id_at(memory, header, found, sizeof found), bytes);
    assert_memory_equal(found, expected, bytes);
    assert_int_equal(hak_os_build_id_at(memory, header, found, 4), 4);
    char *none = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(hak_os_build_id_at(memory, (uintptr_t)none, found, sizeof found), 0);
    /* A header whose table would lie where nothing is; notes that don't end. */
    memcpy(none, (const void *)header, page);
    assert_int_equal(munmap(none + page, page), 0);
    ((ElfW(Ehdr) *)(void *)none)->e_phoff = page;
    assert_int_equal(hak_os_build_id_at(memory, (uintptr_t)none, found, sizeof found), 0);
    ElfW(Nhdr) endless = {4, UINT32_MAX - 2, NT_GNU_BUILD_ID};
    assert_int_equal(hak_os_build_id_in(&endless, sizeof endless, found, sizeof found), 0);
    assert_null(hak_os_find_note(&endless, sizeof endless, "GNU", NT_GNU_BUILD_ID, &(size_t){0}));
    assert_int_equal(munmap(none, page), 0);
    errno = 1234;
    assert_int_equal(hak_os_build_id_at(memory, (uintptr_t)none, found, sizeof found), 0);
    assert_int_equal(errno, 1234);
    close(memory);
}

/* Notes that lie elsewhere in memory than in the file, as patchelf leaves them, of a program with its own address:
 * whichever of the table's parts come first. */
static void build_ids_of_moved_notes(void **state) {
    (void)state;
    enum { ADDRESS = 0x400000, BYTES = 8 };
    struct {
        ElfW(Nhdr) head;
        char name[4];
        unsigned char id[BYTES];
    } note = {{4, BYTES, NT_GNU_BUILD_ID}, "GNU", "its own"}, other = {{4, BYTES, NT_GNU_BUILD_ID}, "GNU", "another"};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char found[HAK_BUILD_ID_BYTES];
    char *file = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int memory = open("/proc/self/mem", O_RDONLY);
    ElfW(Ehdr) elf = {.e_ident = ELFMAG, .e_phoff = sizeof elf, .e_phnum = 3, .e_phentsize = sizeof(ElfW(Phdr))};
    ElfW(Phdr) code = {.p_type = PT_LOAD, .p_vaddr = ADDRESS, .p_filesz = page, .p_memsz = page},
               last = {.p_type = PT_LOAD, .p_offset = page, .p_vaddr = ADDRESS + 2 * page},
               notes = {.p_type = PT_NOTE, .p_offset = page, .p_vaddr = ADDRESS + 2 * page, .p_filesz = sizeof note};
    memcpy(file, &elf, sizeof elf);
    memcpy(file + page, &other, sizeof other);
    memcpy(file + 2 * page, &note, sizeof note);
    assert_int_equal(munmap(file + 3 * page, page), 0);
    uintptr_t addresses[] = {notes.p_vaddr, notes.p_vaddr + page, notes.p_vaddr + page - 8, UINTPTR_MAX - 8};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        notes.p_vaddr = addresses[i];
        ElfW(Phdr) tables[2][3] = {{code, last, notes}, {notes, code, last}};
        for (size_t table = 0; table < 2; table++) {
            memcpy(file + sizeof elf, tables[table], sizeof tables[table]);
            errno = 1234;
            size_t bytes = hak_os_build_id_at(memory, (uintptr_t)file, found, sizeof found);
            assert_int_equal(bytes, i == 0 ? BYTES : 0);
            if (i == 0) assert_memory_equal(found, note.id, BYTES);
            assert_int_equal(errno, 1234);
        }
    }
    elf.e_phnum = 0;
    memcpy(file, &elf, sizeof elf);
    assert_int_equal(hak_os_build_id_at(memory, (uintptr_t)file, found, sizeof found), 0);
    assert_int_equal(munmap(file, 3 * page), 0);
    close(memory);
}

UNIT_MAIN(cmocka_unit_test(mappings), cmocka_unit_test(build_ids), cmocka_unit_test(build_ids_of_moved_notes),
          cmocka_unit_test(long_lists_and_names), cmocka_unit_test(memory_that_may_not_be_there),
          cmocka_unit_test(threads))
