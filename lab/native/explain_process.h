/* Another process as the kernel shows it: its mappings, which of its pages have memory, and what is in them.
 *
 * Nothing is stopped or changed. A page that has no memory is not read, because reading would give it some: it counts as zero.
 * The process runs on, so any two things read here may be of different moments; what is read must be distrusted, and nothing
 * here ends in a loop or a crash because of it. Trouble ends the program with one line, see process_fail. */
#ifndef HAK_LAB_EXPLAIN_PROCESS_H
#define HAK_LAB_EXPLAIN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A line of /proc/PID/smaps with its figures. */
struct mapping {
    uint64_t start, end, offset, inode;
    uint64_t resident_bytes, swapped_bytes, lazy_bytes;
    uint64_t page_bytes; /* larger than usual: reserved huge pages, which are not part of RSS */
    char permissions[8];
    char *name;
};

/* Neighbouring pages that have memory of the same kind. */
struct stretch {
    uint64_t start, end;
    bool is_resident; /* else swapped out, or the kernel's page of zeros */
    bool is_huge;
};

struct process {
    pid_t id;
    uint64_t page_bytes;
    uint64_t resident_bytes; /* RSS */
    struct mapping *mappings;
    size_t mapping_count;
    struct stretch *stretches; /* in order of addresses */
    size_t stretch_count;
    bool sees_huge_pages; /* the kernel told which pages are huge, and which are its page of zeros */
};

/* Writes one line to standard error, and exits with 2. */
_Noreturn void process_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Allocates, or fails. */
void *process_grow(void *block, size_t count, size_t item_bytes);

/* Takes the picture: mappings, then pages. RSS is the mean of what the kernel says right before and right after the pages, and the
 * picture is taken again, a few times, while the two differ much. */
void process_look(struct process *process, pid_t id);

/* Copies from the process. What has no memory is zero. False when a part of it could not be read; it is zero then too. */
typedef bool process_reader(const struct process *process, uint64_t start, void *copy, size_t bytes);
process_reader process_read;

/* The same, but what has no memory gets some: for a page of a file that is needed. */
process_reader process_read_anyway;

/* Resident bytes of start..end. */
uint64_t process_resident(const struct process *process, uint64_t start, uint64_t end);

/* A byte per page from `start` on. */
enum { PAGE_RESIDENT = 1, PAGE_HUGE = 2 };
void process_pages(const struct process *process, uint64_t start, size_t count, uint8_t *pages);

#endif
