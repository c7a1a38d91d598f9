#include "slab/size_class.h"

#include "base/check.h"

struct hak_size_class hak_size_classes[HAK_CLASS_LIMIT];

static uint32_t block_bytes_of(uint32_t size_class) {
    if (size_class <= HAK_FINE_CLASS_COUNT) return size_class * 16;
    uint32_t step = size_class - HAK_FINE_CLASS_COUNT - 1;
    uint32_t magnitude = 8 + step / 8;
    return (1u << magnitude) + (step % 8 + 1) * (1u << (magnitude - 3));
}

size_t hak_slab_guard;

void hak_size_class_initialize(size_t guard_page_bytes) {
    enum { SMALL_PART = 16 };
    hak_slab_guard = guard_page_bytes <= HAK_UNIT_BYTES / SMALL_PART ? guard_page_bytes : 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_size_class *size_class = &hak_size_classes[i];
        uint32_t bytes = block_bytes_of(i);
        uint32_t units = bytes <= 8192 ? 1 : bytes <= 16384 ? 2 : 4; /* 8 blocks at least, or 7 before a guard */
        size_class->block_bytes = bytes;
        size_class->unit_count = units;
        size_class->block_count = (uint32_t)((units * HAK_UNIT_BYTES - hak_slab_guard) / bytes);
        size_class->reciprocal = (uint32_t)((((uint64_t)1 << HAK_RECIPROCAL_SHIFT) + bytes - 1) / bytes);
        uint32_t grid = units == 1 ? bytes : (uint32_t)1 << hak_lowest_bit(bytes);
        size_class->grid_reciprocal = (uint32_t)((((uint64_t)1 << 32) + grid - 1) / grid);
        HAK_ASSERT(hak_class_of_block(bytes) == i);
        hak_size_classes[hak_sampled_class(i)] = *size_class;
    }
}

uint32_t hak_size_class_of_aligned(size_t alignment, size_t size) {
    if (alignment > HAK_BLOCK_MAX || size > HAK_SMALL_MAX) return HAK_CLASS_NONE;
    size_t bytes = size + HAK_CANARY_BYTES;
    uint32_t size_class = hak_class_of_block(bytes < alignment ? alignment : bytes);
    while (size_class <= HAK_SMALL_CLASS_COUNT && (hak_size_classes[size_class].block_bytes & (alignment - 1)) != 0)
        size_class++;
    return size_class <= HAK_SMALL_CLASS_COUNT ? size_class : HAK_CLASS_NONE;
}
