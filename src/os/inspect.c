#include "os/inspect.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/format.h"
#include "os/kernel.h"
#include "os/notes.h"
#include "os/os.h"

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

/* The number in base 16 at *text, which is moved behind it and the character that follows. */
static uint64_t take_hex(const char **text) {
    uint64_t number = 0;
    for (;; (*text)++) {
        char c = **text;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                                                : 16;
        if (digit == 16) break;
        number = number * 16 + digit;
    }
    if (**text != '\0') (*text)++;
    return number;
}

/* The words that follow, up to `count` of them, are passed over with the blanks behind. */
static const char *skip_words(const char *text, uint32_t count) {
    for (; count > 0; count--) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return text;
}

/* START-END RIGHTS OFFSET DEVICE INODE NAME */
static struct hak_os_mapping parse_mapping(const char *line) {
    struct hak_os_mapping mapping = {.start = take_hex(&line)};
    mapping.end = take_hex(&line);
    for (uint32_t i = 0; i < 4 && *line != '\0'; i++) mapping.rights[i] = *line++;
    line = skip_words(line, 1);
    mapping.offset = take_hex(&line);
    mapping.name = skip_words(line, 2);
    return mapping;
}

/* Splits what is read into lines. */
struct line_reader {
    int descriptor;
    size_t length; /* of what `text` holds */
    bool skipping; /* the rest of a line that didn't fit */
    char text[1024];
};

static bool visit_lines(struct line_reader *reader, bool (*visit)(const struct hak_os_mapping *mapping, void *context),
                        void *context) {
    char *line = reader->text, *end = reader->text + reader->length, *newline;
    bool goes_on = true;
    while (goes_on && (newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        *newline = '\0';
        struct hak_os_mapping mapping = parse_mapping(line);
        goes_on = reader->skipping || visit(&mapping, context);
        reader->skipping = false;
        line = newline + 1;
    }
    reader->length = (size_t)(end - line);
    memmove(reader->text, line, reader->length);
    if (!goes_on || reader->length < sizeof reader->text - 1) return goes_on;
    /* The beginning of a line that is longer than the buffer. */
    reader->text[reader->length] = '\0';
    struct hak_os_mapping mapping = parse_mapping(reader->text);
    goes_on = reader->skipping || visit(&mapping, context);
    reader->skipping = true;
    reader->length = 0;
    return goes_on;
}

static size_t read_more(struct line_reader *reader) {
    return hak_os_read(reader->descriptor, reader->text + reader->length, sizeof reader->text - 1 - reader->length);
}

bool hak_os_for_each_mapping(bool (*visit)(const struct hak_os_mapping *mapping, void *context), void *context) {
    int saved_errno = errno;
    struct line_reader reader;
    reader.length = 0;
    reader.skipping = false;
    reader.descriptor = hak_os_open_own("maps");
    if (reader.descriptor >= 0) {
        size_t got;
        while ((got = read_more(&reader)) > 0) {
            reader.length += got;
            if (!visit_lines(&reader, visit, context)) break;
        }
        hak_os_close(reader.descriptor);
    }
    errno = saved_errno;
    return reader.descriptor >= 0;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* By way of a pipe: the kernel says EFAULT where there is nothing to read. */
static bool read_by_pipe(uintptr_t from, void *to, size_t bytes) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    bool done =
        write(ends[1], (const void *)from, bytes) == (ssize_t)bytes && read(ends[0], to, bytes) == (ssize_t)bytes;
    close(ends[0]);
    close(ends[1]);
    return done;
}

/* By a call that old sandboxes refuse, and emulators don't know: `errno` is something else than EFAULT then. */
static bool read_by_kernel(uintptr_t from, void *to, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)from, bytes};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

static bool read_after_look(uintptr_t from, void *to, size_t bytes) {
    bool can_read = from % sizeof(uint64_t) == 0 && hak_os_is_readable((const void *)from) &&
                    hak_os_is_readable((const void *)hak_align_down(from + bytes - 1, sizeof(uint64_t)));
    if (can_read) memcpy(to, (const void *)from, bytes);
    return can_read;
}

/* The other way is for where the kernel refuses the call, not for where there is nothing to read. */
static bool read_or(uintptr_t from, void *to, size_t bytes, bool (*read_otherwise)(uintptr_t, void *, size_t)) {
    int saved_errno = errno;
    bool done = read_by_kernel(from, to, bytes);
    if (!done && errno != EFAULT) done = read_otherwise(from, to, bytes);
    errno = saved_errno;
    return done;
}

bool hak_os_read_memory(uintptr_t from, void *to, size_t bytes) { return read_or(from, to, bytes, read_by_pipe); }

bool hak_os_peek_memory(uintptr_t from, void *to, size_t bytes) { return read_or(from, to, bytes, read_after_look); }

/* ---- Build ids --------------------------------------------------------------------------------------------------- */

static bool read_at(int memory, uintptr_t from, void *to, size_t bytes) {
    return HAK_SYSTEM_CALL(SYS_pread64, memory, to, bytes, from) == (long)bytes; /* libc's may end a thread */
}

/* The next part of that type in the table of the file that begins at `start`; `next` is where to look on. */
static bool find_part(int memory, uintptr_t start, const ElfW(Ehdr) * elf, uint32_t type, size_t *next,
                      ElfW(Phdr) * part) {
    while (*next < elf->e_phnum) {
        if (!read_at(memory, start + elf->e_phoff + (*next)++ * sizeof *part, part, sizeof *part)) return false;
        if (part->p_type == type) return true;
    }
    return false;
}

size_t hak_os_build_id_at(int memory, uintptr_t start, unsigned char *id, size_t capacity) {
    _Alignas(8) char notes[512]; /* or their beginning: build ids stand in front */
    ElfW(Ehdr) elf;
    ElfW(Phdr) part;
    size_t bytes = 0, first = 0, next = 0;
    int saved_errno = errno;
    bool is_elf = read_at(memory, start, &elf, sizeof elf) && memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0 &&
                  elf.e_phentsize == sizeof part;
    if (is_elf && find_part(memory, start, &elf, PT_LOAD, &first, &part)) {
        uintptr_t base = start - (part.p_vaddr - part.p_offset); /* notes may lie elsewhere than in the file */
        while (bytes == 0 && find_part(memory, start, &elf, PT_NOTE, &next, &part)) {
            size_t length = part.p_filesz < sizeof notes ? part.p_filesz : sizeof notes;
            if (read_at(memory, base + part.p_vaddr, notes, length))
                bytes = hak_os_build_id_in(notes, length, id, capacity);
        }
    }
    errno = saved_errno;
    return bytes;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

void hak_os_thread_name(int thread, char name[HAK_THREAD_NAME_BYTES]) {
    int saved_errno = errno;
    char path_buffer[64];
    struct hak_text path = hak_text_in(path_buffer, sizeof path_buffer);
    hak_text_add(&path, "/proc/self/task/%d/comm", thread);
    int descriptor = hak_os_open_file(path.start);
    size_t length = descriptor < 0 ? 0 : hak_os_read(descriptor, name, HAK_THREAD_NAME_BYTES - 1);
    if (descriptor >= 0) hak_os_close(descriptor);
    name[length] = '\0';
    name[strcspn(name, "\n")] = '\0';
    errno = saved_errno;
}
