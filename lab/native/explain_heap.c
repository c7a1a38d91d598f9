#include "explain_heap.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "pool/bin.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

enum { MOST_COPIES = 8, MOST_HEAPS = 1 << 16, MOST_PROGRAM_HEADERS = 64, MOST_NOTE_BYTES = 8192 };
#define ADDRESS_END ((uint64_t)1 << 56)

/* Room for one item more. */
#define ROOM_FOR_ONE(items, count)                                                                                     \
    (((count) & ((count)-1)) == 0 ? process_grow((items), (count) == 0 ? 1 : 2 * (count), sizeof *(items)) : (items))

/* ---- Notes in files ----------------------------------------------------------------------------------------------- */

struct note_kind {
    uint32_t type;
    const char *name;
};

static const struct note_kind landmarks_note = {HAK_LANDMARKS_NOTE, "hakmem"}, build_id_note = {NT_GNU_BUILD_ID, "GNU"};

/* The address of what a note says, 0: it isn't in this segment. */
static uint64_t find_note(const struct process *process, process_reader *read, const struct note_kind *kind,
                          uint64_t start, uint64_t bytes, uint64_t alignment, uint32_t *content_bytes) {
    _Alignas(8) char notes[MOST_NOTE_BYTES];
    if (bytes > sizeof notes || !read(process, start, notes, bytes)) {
        return 0;
    }
    alignment = alignment == 8 ? 8 : 4;
    for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= bytes;) {
        Elf64_Nhdr head;
        memcpy(&head, notes + at, sizeof head);
        uint64_t name = at + sizeof head, text = hak_align_up(name + head.n_namesz, alignment);
        uint64_t end = hak_align_up(text + head.n_descsz, alignment);
        if (end > bytes) {
            return 0;
        }
        size_t name_bytes = strlen(kind->name) + 1;
        if (head.n_type == kind->type && head.n_namesz == name_bytes &&
            memcmp(notes + name, kind->name, name_bytes) == 0) {
            *content_bytes = head.n_descsz;
            return start + text;
        }
        at = end;
    }
    return 0;
}

/* The same for an ELF file that is mapped from `base` on. */
static uint64_t find_in_file(const struct process *process, process_reader *read, const struct note_kind *kind,
                             uint64_t base, uint32_t *content_bytes) {
    Elf64_Ehdr head;
    Elf64_Phdr parts[MOST_PROGRAM_HEADERS];
    if (!read(process, base, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof parts[0] ||
        head.e_phnum > MOST_PROGRAM_HEADERS ||
        !read(process, base + head.e_phoff, parts, head.e_phnum * sizeof parts[0])) {
        return 0;
    }
    uint64_t bias = 0;
    for (uint32_t i = 0; i < head.e_phnum; i++) {
        if (parts[i].p_type == PT_LOAD && parts[i].p_offset < process->page_bytes) {
            bias = base - hak_align_down(parts[i].p_vaddr, process->page_bytes);
            break;
        }
    }
    for (uint32_t i = 0; i < head.e_phnum; i++) {
        if (parts[i].p_type == PT_NOTE) {
            uint64_t found = find_note(process, read, kind, bias + parts[i].p_vaddr, parts[i].p_filesz,
                                       parts[i].p_align, content_bytes);
            if (found != 0) {
                return found;
            }
        }
    }
    return 0;
}

/* What is shared may be a device, or memory that isn't there yet. */
static bool has_header(const struct mapping *mapping) {
    return mapping->inode != 0 && mapping->offset == 0 && mapping->permissions[0] == 'r' &&
           mapping->permissions[3] == 'p';
}

size_t heap_build_id(const struct process *process, const struct mapping *mapping, unsigned char *id, size_t capacity) {
    uint32_t bytes = 0;
    uint64_t found =
        has_header(mapping) ? find_in_file(process, process_read_anyway, &build_id_note, mapping->start, &bytes) : 0;
    return found != 0 && bytes <= capacity && process_read_anyway(process, found, id, bytes) ? bytes : 0;
}

/* ---- Finding hakmem ----------------------------------------------------------------------------------------------- */

static uint64_t find_landmarks(const struct process *process, process_reader *read, uint64_t base) {
    uint32_t bytes = 0;
    int64_t distance;
    uint64_t found = find_in_file(process, read, &landmarks_note, base, &bytes);
    bool is_read = found != 0 && bytes == sizeof distance && read(process, found, &distance, sizeof distance);
    return is_read ? found + (uint64_t)distance : 0;
}

static uint32_t find_copies(const struct process *process, process_reader *read, uint64_t *landmarks) {
    uint32_t count = 0;
    for (size_t i = 0; i < process->mapping_count && count < MOST_COPIES; i++) {
        const struct mapping *mapping = &process->mappings[i];
        if (has_header(mapping)) {
            landmarks[count] = find_landmarks(process, read, mapping->start);
            count += landmarks[count] != 0;
        }
    }
    return count;
}

/* ---- Address space ------------------------------------------------------------------------------------------------ */

static void add_owned(struct heap_view *view, uint64_t start, uint64_t end, int kind) {
    if (start >= end || end > ADDRESS_END) {
        return;
    }
    view->owned = ROOM_FOR_ONE(view->owned, view->owned_count);
    view->owned[view->owned_count++] = (struct owned){.start = start, .end = end, .kind = kind};
}

static int compare_owned(const void *first, const void *second) {
    const struct owned *a = first, *b = second;
    return a->start < b->start ? -1 : a->start > b->start;
}

/* Puts them in order. Overlaps are of different moments: the one that begins first has it. */
static void sort_owned(struct heap_view *view) {
    uint64_t end = 0;
    if (view->owned_count != 0) {
        qsort(view->owned, view->owned_count, sizeof *view->owned, compare_owned);
    }
    for (size_t i = 0; i < view->owned_count; i++) {
        struct owned *owned = &view->owned[i];
        owned->start = owned->start < end ? end : owned->start;
        owned->end = owned->end < owned->start ? owned->start : owned->end;
        end = owned->end;
    }
}

static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* For how many SuperSlabs it has tables. */
static uint64_t tables_of(const struct hak_range *range) { return hak_atomic_load(&range->table_super_slabs, relaxed); }

static bool is_sound_range(const struct hak_range *range) {
    return range->start % HAK_SUPER_SLAB_BYTES == 0 && range->start != 0 && range->start < ADDRESS_END &&
           tables_of(range) <= HAK_RANGE_MOST_SUPER_SLABS &&
           hak_atomic_load(&range->super_slab_count, relaxed) <= tables_of(range);
}

static void own_table(struct heap_view *view, uint64_t start, uint64_t bytes) {
    if (start < ADDRESS_END) {
        add_owned(view, start, hak_align_up(start + bytes, view->process->page_bytes), OWNED_METADATA);
    }
}

static void own_range(struct heap_view *view, uint64_t address, const struct hak_range *range) {
    uint64_t super_slabs = tables_of(range), units = super_slabs * HAK_UNITS_PER_SUPER_SLAB;
    uint64_t groups = (super_slabs + HAK_SUPER_SLABS_PER_GROUP - 1) / HAK_SUPER_SLABS_PER_GROUP;
    add_owned(view, range->start,
              range->start + hak_atomic_load(&range->super_slab_count, relaxed) * HAK_SUPER_SLAB_BYTES, OWNED_HEAP);
    uint64_t summaries = (groups + 63) / 64;
    uint64_t tops = address_of(range->tops);
    own_table(view, tops, address - tops);
    own_table(view, address, address_of(range->summaries + summaries) - address);
    own_table(view, address_of((const void *)range->page_map), units * sizeof *range->page_map);
    own_table(view, address_of(range->groups), groups * sizeof *range->groups);
    own_table(view, address_of(range->super_slabs), super_slabs * sizeof *range->super_slabs);
    own_table(view, address_of(range->slabs), units * sizeof *range->slabs);
    own_table(view, address_of((const void *)range->bit_rows), units * sizeof *range->bit_rows);
}

static void own_large_objects(struct heap_view *view, const struct hak_landmarks *landmarks) {
    enum { LEAVES = 1 << HAK_DIRECTORY_ROOT_SHIFT, ENTRIES = 1 << HAK_DIRECTORY_LEAF_SHIFT };
    static uint64_t leaves[LEAVES], entries[ENTRIES], places[HAK_KEPT_MAPPINGS];
    uint64_t root = 0, kept = 0;
    if (process_read_anyway(view->process, address_of(landmarks->directory), &root, sizeof root)) {
        process_read(view->process, root, leaves, sizeof leaves);
    }
    for (uint64_t i = 0; i < LEAVES; i++) {
        if (leaves[i] == 0 || !process_read(view->process, leaves[i], entries, sizeof entries)) {
            continue;
        }
        add_owned(view, leaves[i], leaves[i] + hak_align_up(sizeof entries, view->process->page_bytes), OWNED_METADATA);
        for (uint64_t j = 0; j < ENTRIES; j++) {
            if ((entries[j] & HAK_ENTRY_KIND_MASK) == HAK_ENTRY_MAPPING) {
                uint64_t start = (i << HAK_DIRECTORY_LEAF_SHIFT | j) << HAK_GRANULE_SHIFT;
                add_owned(view, start, start + hak_entry_mapping_bytes(entries[j]), OWNED_BLOCK);
                view->live_mappings_count++;
            }
        }
    }
    if (process_read_anyway(view->process, address_of(landmarks->kept_mappings), &kept, sizeof kept)) {
        process_read(view->process, kept, places, sizeof places);
    }
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t start = hak_kept_start(places[i]);
        add_owned(view, start, start + hak_kept_pages(places[i]) * view->process->page_bytes, OWNED_KEPT);
    }
}

/* The tables of the heap profile, which begin with their size. */
static void own_profile(struct heap_view *view, const struct hak_landmarks *landmarks) {
    uint64_t tables = 0, bytes = 0;
    if (process_read_anyway(view->process, address_of(landmarks->profile), &tables, sizeof tables) && tables != 0 &&
        process_read(view->process, tables, &bytes, sizeof bytes) && bytes < ADDRESS_END - tables) {
        view->profile = tables;
        add_owned(view, tables, tables + bytes, OWNED_METADATA);
    }
}

/* ---- What threads keep -------------------------------------------------------------------------------------------- */

static void add_kept(struct heap_view *view, uint64_t address, bool is_unit) {
    view->kept = ROOM_FOR_ONE(view->kept, view->kept_count);
    view->kept[view->kept_count++] =
        (struct kept){.address = address, .heap = (uint32_t)view->heap_count - 1, .is_unit = is_unit};
}

static int compare_kept(const void *first, const void *second) {
    const struct kept *a = first, *b = second;
    return a->address < b->address ? -1 : a->address > b->address;
}

/* The first at `address` or above. */
static size_t first_kept(const struct heap_view *view, uint64_t address) {
    size_t low = 0, high = view->kept_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (view->kept[middle].address >= address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static void look_at_bins(struct heap_view *view, uint64_t address, const char *memory) {
    const struct hak_heap *heap = (const void *)memory;
    for (uint32_t i = 1; i <= HAK_SLAB_CLASS_COUNT; i++) {
        uint64_t base = address_of(hak_heap_lowest(heap, i)) - address,
                 top = address_of(hak_owned_peek(&heap->bins[i].top)) - address;
        if (base < sizeof *heap || base >= top || top > HAK_HEAP_BYTES || (base | top) % sizeof(void *) != 0) {
            continue;
        }
        for (; base < top; base += sizeof(uint64_t)) {
            uint64_t block;
            memcpy(&block, memory + base, sizeof block);
            if (block != 0) {
                add_kept(view, block, false);
            }
        }
    }
}

/* The unit that a record describes: its range is the one whose records it lies among. */
static void look_at_empty_slabs(struct heap_view *view, const struct hak_heap *heap, const struct hak_range *ranges,
                                uint32_t range_count) {
    for (uint32_t i = 0; i < heap->empty_count && i < HAK_EMPTY_SLABS; i++) {
        for (uint32_t j = 0; j < range_count; j++) {
            uint64_t offset = address_of(heap->empty_slabs[i]) - address_of(ranges[j].slabs);
            uint64_t unit = offset / sizeof(struct hak_slab);
            if (offset % sizeof(struct hak_slab) == 0 && unit < tables_of(&ranges[j]) * HAK_UNITS_PER_SUPER_SLAB) {
                add_kept(view, ranges[j].start + (unit << HAK_UNIT_SHIFT), true);
                break;
            }
        }
    }
}

static bool is_known_heap(const struct heap_view *view, uint64_t address) {
    for (size_t i = 0; i < view->heap_count; i++) {
        if (view->heaps[i].address == address) {
            return true;
        }
    }
    return false;
}

static void look_at_heaps(struct heap_view *view, const struct hak_landmarks *landmarks, const struct hak_range *ranges,
                          uint32_t range_count) {
    char *memory = process_grow(NULL, 1, HAK_HEAP_BYTES);
    const struct hak_heap *heap = (const void *)memory;
    uint64_t at = 0;
    process_read(view->process, address_of(landmarks->heaps), &at, sizeof at);
    for (uint32_t i = 0; at != 0 && i < MOST_HEAPS && process_read(view->process, at, memory, HAK_HEAP_BYTES); i++) {
        if (heap->number == 0 || is_known_heap(view, at)) {
            break;
        }
        add_owned(view, at, at + hak_align_up(HAK_HEAP_BYTES, view->process->page_bytes), OWNED_METADATA);
        view->heaps = ROOM_FOR_ONE(view->heaps, view->heap_count);
        view->heaps[view->heap_count++] = (struct heap_tally){.address = at,
                                                              .number = heap->number,
                                                              .thread_id = hak_atomic_load(&heap->thread_id, relaxed),
                                                              .in_use = hak_atomic_load(&heap->in_use, relaxed)};
        look_at_bins(view, at, memory);
        look_at_empty_slabs(view, heap, ranges, range_count);
        at = address_of(heap->next);
    }
    free(memory);
}

/* ---- Slabs -------------------------------------------------------------------------------------------------------- */

enum { BLOCK_LIVE, BLOCK_FREE, BLOCK_CACHED, MOST_PIECES = 4 * HAK_UNIT_BYTES / 4096 };

/* A slab as it is being counted. Offsets are from its start. */
struct slab_view {
    const struct hak_size_class *facts;
    uint64_t start, bytes, piece_bytes; /* a piece is a page of the usual size */
    uint8_t pieces[MOST_PIECES];        /* as process_pages tells */
    bool is_counted[MOST_PIECES];       /* resident, for its blocks' sake */
    uint64_t before[MOST_PIECES + 1];   /* counted bytes below the piece */
    uint8_t blocks[HAK_SLAB_MAX_BLOCKS];
};

static uint64_t counted_below(const struct slab_view *slab, uint64_t offset) {
    uint64_t piece = offset / slab->piece_bytes, rest = offset % slab->piece_bytes;
    return slab->before[piece] + (rest != 0 && slab->is_counted[piece] ? rest : 0);
}

static uint64_t counted_of_block(const struct slab_view *slab, uint32_t block) {
    uint64_t start = (uint64_t)block * slab->facts->block_bytes;
    return counted_below(slab, start + slab->facts->block_bytes) - counted_below(slab, start);
}

/* Which blocks are free; claimed ones are, for their holder (S7). */
static void read_blocks(struct slab_view *slab, const struct hak_slab *record, const uint64_t *words) {
    for (uint32_t i = 0; i < slab->facts->block_count; i++) {
        uint64_t word = words[i / 64] | hak_slab_claimed_in(record, slab->facts->block_count, i / 64);
        slab->blocks[i] = (word >> i % 64 & 1) != 0 ? BLOCK_FREE : BLOCK_LIVE;
    }
}

/* The block that a bin has, which is the slab's; block_count for none. */
static uint32_t block_kept(const struct slab_view *slab, const struct kept *kept) {
    uint32_t offset = (uint32_t)(kept->address - slab->start);
    uint32_t block = hak_block_index(offset, slab->facts->reciprocal);
    bool is_block = !kept->is_unit && block < slab->facts->block_count && block * slab->facts->block_bytes == offset;
    return is_block ? block : slab->facts->block_count;
}

static void mark_cached(const struct heap_view *view, struct slab_view *slab) {
    uint64_t end = slab->start + slab->bytes;
    for (size_t i = first_kept(view, slab->start); i < view->kept_count && view->kept[i].address < end; i++) {
        uint32_t block = block_kept(slab, &view->kept[i]);
        if (block < slab->facts->block_count && slab->blocks[block] == BLOCK_LIVE) {
            slab->blocks[block] = BLOCK_CACHED;
        }
    }
}

/* Pieces that blocks in use keep, and how many of these lie on each. */
static void count_held(struct heap_view *view, const struct slab_view *slab, uint32_t size_class) {
    uint64_t live[MOST_PIECES] = {0};
    for (uint32_t i = 0; i < slab->facts->block_count; i++) {
        uint64_t start = (uint64_t)i * slab->facts->block_bytes, last = start + slab->facts->block_bytes - 1;
        for (uint64_t piece = start / slab->piece_bytes; piece <= last / slab->piece_bytes; piece++) {
            live[piece] += slab->blocks[i] == BLOCK_LIVE;
        }
    }
    for (uint64_t i = 0; i < slab->bytes / slab->piece_bytes; i++) {
        if (live[i] == 0 || !slab->is_counted[i]) {
            continue;
        }
        view->classes[size_class].held += slab->piece_bytes;
        if (size_class > HAK_SMALL_CLASS_COUNT) {
            view->held = ROOM_FOR_ONE(view->held, view->held_count);
            view->held[view->held_count++] =
                (struct held_page){slab->start + i * slab->piece_bytes, slab->facts->block_bytes, live[i]};
        }
    }
}

/* Says of each piece whether it counts for its blocks. One without a block in use or in a bin may be there for another reason. */
static void judge_pieces(struct heap_view *view, struct slab_view *slab, const struct hak_slab *record) {
    uint32_t count = (uint32_t)(slab->bytes / slab->piece_bytes);
    uint64_t purged = hak_atomic_load(&record->purged_pages, relaxed);
    bool is_used[MOST_PIECES] = {false};
    for (uint32_t i = 0; i < slab->facts->block_count; i++) {
        if (slab->blocks[i] == BLOCK_FREE) {
            continue;
        }
        uint64_t start = (uint64_t)i * slab->facts->block_bytes, last = start + slab->facts->block_bytes - 1;
        for (uint64_t piece = start / slab->piece_bytes; piece <= last / slab->piece_bytes; piece++) {
            is_used[piece] = true;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        bool is_resident = (slab->pieces[i] & PAGE_RESIDENT) != 0;
        bool is_bloat = is_resident && !is_used[i] && (slab->pieces[i] & PAGE_HUGE) != 0;
        bool is_lazy = is_resident && !is_used[i] && !is_bloat && view->has_lazy_pages && (purged >> i % 64 & 1) != 0;
        view->causes.huge_bloat += is_bloat ? slab->piece_bytes : 0;
        view->causes.lazily_freed += is_lazy ? slab->piece_bytes : 0;
        slab->is_counted[i] = is_resident && !is_bloat && !is_lazy;
        slab->before[i + 1] = slab->before[i] + (slab->is_counted[i] ? slab->piece_bytes : 0);
    }
}

/* Bytes are counted once per block, also if two bins say that they have it. */
static void count_cached(struct heap_view *view, struct slab_view *slab) {
    uint64_t end = slab->start + slab->bytes;
    for (size_t i = first_kept(view, slab->start); i < view->kept_count && view->kept[i].address < end; i++) {
        uint32_t block = block_kept(slab, &view->kept[i]);
        if (block == slab->facts->block_count || slab->blocks[block] != BLOCK_CACHED) {
            continue;
        }
        struct heap_tally *heap = &view->heaps[view->kept[i].heap];
        heap->cached_blocks++;
        heap->cached += counted_of_block(slab, block);
        slab->blocks[block] = BLOCK_FREE;
    }
}

static void count_slab(struct heap_view *view, struct slab_view *slab, uint32_t size_class) {
    struct class_tally *tally = &view->classes[size_class], here = {.slabs = 1};
    for (uint32_t i = 0; i < slab->facts->block_count; i++) {
        uint64_t bytes = counted_of_block(slab, i);
        here.live_blocks += slab->blocks[i] == BLOCK_LIVE;
        *(slab->blocks[i] == BLOCK_LIVE   ? &here.live
          : slab->blocks[i] == BLOCK_FREE ? &here.free
                                          : &here.cached) += bytes;
    }
    count_cached(view, slab);
    view->causes.live_small += here.live;
    view->causes.free_blocks += here.free;
    view->causes.cached += here.cached;
    view->causes.remainders += counted_below(slab, slab->bytes) -
                               counted_below(slab, (uint64_t)slab->facts->block_count * slab->facts->block_bytes);
    tally->slabs += here.slabs;
    tally->live_blocks += here.live_blocks;
    tally->live += here.live;
    tally->free += here.free;
    tally->cached += here.cached;
}

static void explain_slab(struct heap_view *view, uint64_t start, uint32_t size_class, const struct hak_slab *record,
                         const uint64_t *words, bool is_huge) {
    static struct slab_view slab;
    slab.facts = &hak_size_classes[size_class];
    slab.start = start;
    slab.bytes = slab.facts->unit_count * HAK_UNIT_BYTES;
    slab.piece_bytes = view->process->page_bytes;
    process_pages(view->process, start, slab.bytes / slab.piece_bytes, slab.pieces);
    for (uint32_t i = 0; is_huge && i < slab.bytes / slab.piece_bytes; i++) {
        slab.pieces[i] |= PAGE_HUGE;
    }
    read_blocks(&slab, record, words);
    mark_cached(view, &slab);
    judge_pieces(view, &slab, record);
    count_held(view, &slab, size_class);
    count_slab(view, &slab, size_class);
}

/* ---- SuperSlabs --------------------------------------------------------------------------------------------------- */

/* What is read of one. */
struct super_slab_view {
    uint64_t start, free_units;
    bool is_huge;   /* where the kernel doesn't tell of pages: it may be, and is there as a whole */
    bool is_unused; /* nothing lives in it, so that no huge page of it holds what is free */
    uint16_t classes[HAK_UNITS_PER_SUPER_SLAB];
    struct hak_slab records[HAK_UNITS_PER_SUPER_SLAB];
};

static void explain_free_unit(struct heap_view *view, const struct super_slab_view *super, uint32_t unit) {
    uint64_t start = super->start + ((uint64_t)unit << HAK_UNIT_SHIFT), page = view->process->page_bytes;
    uint8_t pieces[HAK_UNIT_BYTES / 4096];
    uint64_t huge = 0, plain = 0;
    process_pages(view->process, start, HAK_UNIT_BYTES / page, pieces);
    for (uint32_t i = 0; i < HAK_UNIT_BYTES / page; i++) {
        bool is_huge = super->is_huge || (pieces[i] & PAGE_HUGE) != 0;
        *(is_huge ? &huge : &plain) += (pieces[i] & PAGE_RESIDENT) != 0 ? page : 0;
    }
    bool is_fresh = (super->free_units >> (32 + unit) & 1) != 0,
         is_dirty = !is_fresh && (super->free_units >> unit & 1) != 0;
    if (is_dirty && super->is_unused) { /* it was used, and goes back when its time has come */
        plain += huge;
        huge = 0;
    }
    view->causes.huge_bloat += huge;
    if (is_dirty) {
        view->causes.dirty_units += plain;
    } else if (is_fresh) {
        *(view->has_lazy_pages ? &view->causes.lazily_freed : &view->causes.given_back) += plain;
    } else {
        size_t i = first_kept(view, start);
        if (i < view->kept_count && view->kept[i].address == start && view->kept[i].is_unit) {
            view->heaps[view->kept[i].heap].kept_units += plain;
            view->causes.kept_units += plain;
        } else {
            view->causes.in_hand += plain;
        }
    }
}

/* Returns its units, as many as lie in the range. */
static uint32_t explain_run(struct heap_view *view, uint64_t start, const struct hak_slab *record, uint64_t range_end) {
    uint64_t page = view->process->page_bytes, bytes = hak_atomic_load(&record->run_pages, relaxed) * page;
    if (bytes == 0 || bytes > range_end - start) { /* of different moments */
        return 1;
    }
    uint64_t end = start + hak_align_up(bytes, HAK_UNIT_BYTES);
    view->causes.live_runs += process_resident(view->process, start, start + bytes);
    view->causes.remainders += process_resident(view->process, start + bytes, end);
    view->rounding_most += page - 1;
    view->live_runs_count++;
    return (uint32_t)((end - start) >> HAK_UNIT_SHIFT);
}

/* A slab's units are all of its class, which is one of blocks. */
static bool is_whole_slab(const struct super_slab_view *super, uint32_t unit, uint32_t size_class) {
    uint32_t count = size_class < HAK_CLASS_LIMIT ? hak_size_classes[size_class].unit_count : 0;
    for (uint32_t i = 0; i < count; i++) {
        if (unit % count != 0 || super->classes[unit + i] != size_class) {
            return false;
        }
    }
    return count != 0;
}

/* From the first unit on that no run from below covers; returns how many units of the next SuperSlabs one covers. */
static uint32_t explain_units(struct heap_view *view, const struct hak_range *range, uint32_t number,
                              const struct super_slab_view *super, uint32_t unit, uint64_t range_end) {
    while (unit < HAK_UNITS_PER_SUPER_SLAB) {
        uint32_t size_class = super->classes[unit];
        const struct hak_slab *record = &super->records[unit];
        uint64_t start = super->start + ((uint64_t)unit << HAK_UNIT_SHIFT);
        if (size_class == HAK_CLASS_NONE) {
            explain_free_unit(view, super, unit++);
        } else if (size_class == HAK_CLASS_RUN_HEAD) {
            unit += explain_run(view, start, record, range_end);
        } else if (is_whole_slab(super, unit, size_class)) {
            uint64_t words[HAK_SLAB_MAX_WORDS] = {0};
            bool is_inline = hak_size_classes[size_class].block_count <= HAK_SLAB_INLINE_WORDS * 64;
            uint64_t row = (uint64_t)number * HAK_UNITS_PER_SUPER_SLAB + unit;
            if (is_inline) {
                memcpy(words, (const void *)record->inline_bits, sizeof record->inline_bits);
            } else {
                process_read(view->process, address_of(range->bit_rows) + row * sizeof words, words, sizeof words);
            }
            explain_slab(view, start, size_class, record, words, super->is_huge);
            unit += hak_size_classes[size_class].unit_count;
        } else {
            unit++; /* of different moments */
        }
    }
    return unit - HAK_UNITS_PER_SUPER_SLAB;
}

/* What says of which class the units are, and which of them are free. */
static void read_uses(const struct process *process, const struct hak_range *range, uint32_t number,
                      struct super_slab_view *super) {
    process_read(process, address_of((const void *)range->page_map) + (uint64_t)number * sizeof super->classes,
                 super->classes, sizeof super->classes);
    for (uint32_t unit = 0; unit < HAK_UNITS_PER_SUPER_SLAB; unit++) {
        super->classes[unit] /= HAK_BIN_STRIDE;
    }
    process_read(process, address_of(range->super_slabs) + number * sizeof(struct hak_super_slab), &super->free_units,
                 sizeof super->free_units);
}

static bool is_unused(const struct super_slab_view *super) {
    for (uint32_t unit = 0; unit < HAK_UNITS_PER_SUPER_SLAB; unit++) {
        if (super->classes[unit] != HAK_CLASS_NONE) {
            return false;
        }
    }
    return true;
}

/* A record that got its memory after the pages were looked at has one all the same, if its unit is used. */
static void read_records(const struct process *process, const struct hak_range *range, uint32_t number,
                         struct super_slab_view *super) {
    uint64_t start = address_of(range->slabs) + (uint64_t)number * sizeof super->records,
             each = sizeof(struct hak_slab);
    process_read(process, start, super->records, sizeof super->records);
    for (uint32_t unit = 0; unit < HAK_UNITS_PER_SUPER_SLAB; unit++) {
        uint64_t at = start + unit * each;
        if (super->classes[unit] != HAK_CLASS_NONE && process_resident(process, at, at + each) == 0) {
            process_read_anyway(process, at, &super->records[unit], each);
        }
    }
}

/* Uses and records are of one moment, unless they change each time that they are read. */
static void read_super_slab(const struct process *process, const struct hak_range *range, uint32_t number,
                            struct super_slab_view *super) {
    enum { MOST_READS = 8 };
    struct super_slab_view again;
    read_uses(process, range, number, &again);
    for (int reads = 0; reads < MOST_READS; reads++) {
        super->free_units = again.free_units;
        memcpy(super->classes, again.classes, sizeof super->classes);
        read_records(process, range, number, super);
        read_uses(process, range, number, &again);
        if (super->free_units == again.free_units &&
            memcmp(super->classes, again.classes, sizeof super->classes) == 0) {
            return;
        }
    }
}

static void explain_range(struct heap_view *view, const struct hak_range *range) {
    const struct process *process = view->process;
    uint32_t count = hak_atomic_load(&range->super_slab_count, relaxed), covered = 0;
    uint64_t range_end = range->start + (uint64_t)count * HAK_SUPER_SLAB_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        static struct super_slab_view super;
        uint64_t huge = 0;
        super.start = range->start + (uint64_t)i * HAK_SUPER_SLAB_BYTES;
        if (covered >= HAK_UNITS_PER_SUPER_SLAB) {
            covered -= HAK_UNITS_PER_SUPER_SLAB;
            continue;
        }
        read_super_slab(process, range, i, &super);
        process_read(process,
                     address_of(range->groups) + i / HAK_SUPER_SLABS_PER_GROUP * sizeof *range->groups +
                         offsetof(struct hak_super_slab_group, huge),
                     &huge, sizeof huge);
        super.is_huge =
            !process->sees_huge_pages && (huge >> i % 64 & 1) != 0 &&
            process_resident(process, super.start, super.start + HAK_SUPER_SLAB_BYTES) == HAK_SUPER_SLAB_BYTES;
        super.is_unused = is_unused(&super);
        covered = explain_units(view, range, i, &super, covered, range_end);
    }
}

/* ---- All of it ---------------------------------------------------------------------------------------------------- */

static uint32_t read_ranges(const struct heap_view *view, const struct hak_landmarks *landmarks,
                            struct hak_range *ranges, uint64_t *addresses) {
    uint32_t count = 0;
    process_read(view->process, address_of(landmarks->ranges), addresses, HAK_RANGE_LIMIT * sizeof addresses[0]);
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && addresses[i] != 0; i++) {
        bool is_read = process_read(view->process, addresses[i], &ranges[count], sizeof ranges[count]);
        addresses[count] = addresses[i];
        count += is_read && is_sound_range(&ranges[count]);
    }
    return count;
}

static void explain_copy(struct heap_view *view, const struct hak_landmarks *landmarks) {
    static struct hak_range ranges[HAK_RANGE_LIMIT];
    static uint64_t addresses[HAK_RANGE_LIMIT];
    hak_size_class_initialize(landmarks->is_secure ? view->process->page_bytes : 0);
    uint32_t count = read_ranges(view, landmarks, ranges, addresses);
    for (uint32_t i = 0; i < count; i++) {
        own_range(view, addresses[i], &ranges[i]);
    }
    own_large_objects(view, landmarks);
    own_profile(view, landmarks);
    view->kept_count = 0;
    look_at_heaps(view, landmarks, ranges, count);
    if (view->kept_count != 0) {
        qsort(view->kept, view->kept_count, sizeof *view->kept, compare_kept);
    }
    for (uint32_t i = 0; i < count; i++) {
        explain_range(view, &ranges[i]);
    }
}

static void check_landmarks(const struct heap_view *view, uint64_t address, const char *version,
                            struct hak_landmarks *landmarks) {
    static const uint32_t layout[HAK_LAYOUT_COUNT] = HAK_LAYOUT;
    int id = (int)view->process->id;
    if (!process_read_anyway(view->process, address, landmarks, sizeof *landmarks)) {
        process_fail("process %d: hakmem's landmarks can't be read", id);
    }
    landmarks->version[HAK_VERSION_BYTES - 1] = '\0';
    if (strncmp(landmarks->version, version, HAK_VERSION_BYTES) != 0) {
        process_fail("process %d runs on hakmem %.*s, and this explains %s", id, HAK_VERSION_BYTES, landmarks->version,
                     version);
    }
    if (memcmp(landmarks->layout, layout, sizeof layout) != 0) {
        process_fail("process %d runs on another build of hakmem %s, whose structures differ", id, version);
    }
}

static void count_owned(struct heap_view *view) {
    for (size_t i = 0; i < view->owned_count; i++) {
        const struct owned *owned = &view->owned[i];
        if (owned->kind != OWNED_HEAP) {
            uint64_t bytes = process_resident(view->process, owned->start, owned->end);
            *(owned->kind == OWNED_METADATA ? &view->causes.metadata
              : owned->kind == OWNED_BLOCK  ? &view->causes.live_mappings
                                            : &view->causes.large_cache) += bytes;
        }
    }
}

/* The widest class of a group serves all its sizes. */
static uint32_t first_served_by(uint32_t size_class) {
    uint32_t in_groups = size_class - HAK_SINGLE_CLASS_COUNT;
    bool is_widest = size_class > HAK_SINGLE_CLASS_COUNT && in_groups % HAK_GROUP_CLASSES == 0;
    return is_widest ? size_class - HAK_GROUP_CLASSES + 1 : size_class;
}

static void bound_rounding(struct heap_view *view) {
    for (uint32_t i = 1; i < HAK_CLASS_LIMIT; i++) {
        uint64_t bytes = hak_size_classes[i].block_bytes;
        if (bytes != 0) {
            uint64_t below = hak_size_classes[first_served_by(hak_size_class_of(bytes)) - 1].block_bytes,
                     least = below == 0 ? 0 : below + 1;
            view->rounding_most += view->classes[i].live * (bytes - least) / bytes;
        }
    }
    view->rounding_most += view->live_mappings_count * (view->process->page_bytes - 1);
}

void heap_explain(struct heap_view *view, struct process *process, const char *version) {
    uint64_t addresses[MOST_COPIES + 1];
    *view = (struct heap_view){.process = process};
    view->copies = find_copies(process, process_read, addresses);
    if (view->copies == 0) {
        view->copies = find_copies(process, process_read_anyway, addresses);
    }
    if (view->copies == 0) {
        process_fail("process %d does not run on hakmem", (int)process->id);
    }
    for (size_t i = 0; i < process->mapping_count; i++) {
        view->has_lazy_pages |= process->mappings[i].lazy_bytes != 0;
    }
    for (uint32_t i = 0; i < view->copies; i++) {
        struct hak_landmarks landmarks;
        check_landmarks(view, addresses[i], version, &landmarks);
        memcpy(view->version, landmarks.version, sizeof view->version);
        explain_copy(view, &landmarks);
    }
    sort_owned(view);
    count_owned(view);
    bound_rounding(view);
}
