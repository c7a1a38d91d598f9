/* Routes: which bin serves which size. Malloc reads them in one table, hak_bin_offsets, which is made of two facts:
 *
 *   groups    A class takes a slab, of which a program with a few blocks of every size fills little: sizes above 1 KiB
 *             share the slabs of the widest class of their group. When a heap has several of these, what blocks have
 *             too much costs more than slabs that are not full, and each class of the group gets its own, for good.
 *   metering  While malloc is metered (front/meter.h), each size leads to the bin of its sampled class: a ration
 *             (pool/ration.h), and the miss at its end counts.
 *
 * Who changes a fact writes the table, or a part of it, until nobody has changed one meanwhile; there is no lock.
 */
#ifndef HAK_FRONT_ROUTES_H
#define HAK_FRONT_ROUTES_H

#include "front/front.h"

/* Before this all sizes lead to bin 0, which is always empty. */
void hak_routes_initialize(void);

/* The bin that serves a size now; size <= HAK_SMALL_MAX. Not before the process is initialised. */
HAK_INLINE uint32_t hak_routes_bin_of(size_t size) {
    return (uint32_t)(hak_atomic_load(&hak_bin_offsets[hak_route_index(size)], relaxed) / HAK_BIN_STRIDE);
}

/* The class of the blocks that a size gets. */
HAK_INLINE uint32_t hak_routes_class_of(size_t size) { return hak_plain_class(hak_routes_bin_of(size)); }

/* True for the widest class of a group that serves all of it. */
bool hak_routes_is_closed_group(uint32_t size_class);

/* Lets each class of the group of `size_class` serve its own sizes. */
void hak_routes_open_group(uint32_t size_class);

/* Malloc is metered from now on, or not. */
void hak_routes_meter(bool is_metered);

/* How many times that has changed: odd while malloc is metered. */
extern HAK_ATOMIC(uint32_t) hak_routes_turns;

#endif
