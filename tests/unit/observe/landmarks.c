/* observe/landmarks.h: the note of this program leads to them, and from them everything is found. */
#include "heap_fixture.h"

#include "allowance.h"

#include <link.h>

#include "observe/landmarks.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

static uintptr_t address_in_note; /* 0: there is none */
static uint32_t note_count;

static void look_at_note(const char *note) {
    ElfW(Nhdr) head;
    int64_t distance;
    memcpy(&head, note, sizeof head);
    const char *text = note + sizeof head + hak_align_up(head.n_namesz, 4);
    if (head.n_type != HAK_LANDMARKS_NOTE || head.n_descsz != sizeof distance) return;
    assert_string_equal(note + sizeof head, "hakmem");
    memcpy(&distance, text, sizeof distance);
    address_in_note = (uintptr_t)text + (uintptr_t)distance;
    note_count++;
}

static int look_at_file(struct dl_phdr_info *file, size_t size, void *unused) {
    (void)size, (void)unused;
    for (size_t i = 0; i < file->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &file->dlpi_phdr[i];
        if (part->p_type != PT_NOTE || part->p_align == 8) continue; /* ours is aligned to 4 */
        const char *at = (const char *)(file->dlpi_addr + part->p_vaddr), *end = at + part->p_memsz;
        while (at < end) {
            ElfW(Nhdr) head;
            memcpy(&head, at, sizeof head);
            look_at_note(at);
            at += sizeof head + hak_align_up(head.n_namesz, 4) + hak_align_up(head.n_descsz, 4);
        }
    }
    return 0;
}

static void the_note_leads_to_them(void **state) {
    (void)state;
    dl_iterate_phdr(look_at_file, NULL);
    assert_int_equal(note_count, 1);
    assert_int_equal(address_in_note, (uintptr_t)&hak_landmarks);
}

static void they_tell_of_this_build(void **state) {
    (void)state;
    static const uint32_t layout[HAK_LAYOUT_COUNT] = HAK_LAYOUT;
    assert_string_equal(hak_landmarks.version, hak_version());
    assert_memory_equal(hak_landmarks.layout, layout, sizeof layout);
}

static void they_lead_to_the_heap(void **state) {
    (void)state;
    allow_free_memory_of_programs();
    void *small = hak_malloc(100), *mapping = hak_malloc(40 * HAK_MIB), *kept = hak_malloc(50 * HAK_MIB);
    hak_free(kept);
    struct hak_range *const *ranges = hak_landmarks.ranges;
    assert_ptr_equal(ranges[0], hak_region_range(0));
    struct hak_heap *const *heaps = hak_landmarks.heaps;
    assert_int_equal(hak_atomic_load(&(*heaps)->thread_id, relaxed), hak_os_thread_id());
    const uint64_t *const *const *directory = hak_landmarks.directory;
    uint64_t granule = (uint64_t)(uintptr_t)mapping >> HAK_GRANULE_SHIFT;
    const uint64_t *leaf = (*directory)[granule >> HAK_DIRECTORY_LEAF_SHIFT];
    assert_int_equal(leaf[granule & hak_low_bits(HAK_DIRECTORY_LEAF_SHIFT)], hak_entry_for_mapping(40 * HAK_MIB));
    const uint64_t *const *places = hak_landmarks.kept_mappings;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        if ((*places)[i] == 0) continue;
        assert_int_equal(hak_kept_start((*places)[i]), (uintptr_t)kept);
        bytes += hak_kept_pages((*places)[i]) * hak_os_page_bytes();
    }
    assert_int_equal(bytes, 50 * HAK_MIB);
    hak_free(mapping);
    hak_free(small);
}

UNIT_MAIN(cmocka_unit_test(the_note_leads_to_them), cmocka_unit_test(they_tell_of_this_build),
          cmocka_unit_test(they_lead_to_the_heap))
