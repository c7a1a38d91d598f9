/* operator new and delete, all forms up to C++17, from C: the names below are what the C++ ABI calls them on machines
 * where size_t is unsigned long. The library does not link to a C++ runtime; if the program has one, its new-handler is
 * asked and its bad_alloc is thrown.
 *
 * A program may replace some forms and leave the others. By the standard those that are left call the replaced ones:
 * new[] calls new, nothrow new calls new and catches, delete with a size or a tag calls delete, delete[] calls delete;
 * the aligned forms likewise. At the end of that, new calls malloc, new with an alignment aligned_alloc, and delete
 * free, which may be those of the program, or of a tool before hakmem in LD_PRELOAD. So each form asks whether what it
 * would call is hakmem's own, by an address that the dynamic linker has written, and only then takes or frees the block
 * itself. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/override.h"
#include "front/front.h"
#include "observe/stack.h"
#include "os/libc.h"
#include "os/os.h"

#ifndef HAK_NO_OVERRIDE

_Static_assert(sizeof(size_t) == sizeof(unsigned long), "the letter m in the names");

/* std::get_new_handler() and std::__throw_bad_alloc(), NULL where the program was not started with a C++ runtime. One
 * that a plugin has brought is looked for when it is needed. */
typedef void new_handler(void);
extern new_handler *_ZSt15get_new_handlerv(void) __attribute__((weak));
extern void _ZSt17__throw_bad_allocv(void) __attribute__((weak));

/* api/new_handler.cpp: true when the handler returned, false when it threw. */
bool hak_call_new_handler(void (*handler)(void));

/* Also there: what the program's own new gives, NULL when it threw. */
void *hak_call_new(void *(*by)(size_t), size_t size);
void *hak_call_new_aligned(void *(*by)(size_t, size_t), size_t size, size_t alignment);

struct nothrow; /* std::nothrow_t, passed by reference and never looked at */

/* The forms that others call or ask for, by their public names: the program's, if it has them
 * (cmake/program_first.txt). */
extern void *public_new(size_t size) __asm__("_Znwm");
extern void *public_new_array(size_t size) __asm__("_Znam");
extern void *public_new_nothrow(size_t size, const struct nothrow *tag) __asm__("_ZnwmRKSt9nothrow_t");
extern void *public_new_array_nothrow(size_t size, const struct nothrow *tag) __asm__("_ZnamRKSt9nothrow_t");
extern void *public_new_aligned(size_t size, size_t alignment) __asm__("_ZnwmSt11align_val_t");
extern void *public_new_array_aligned(size_t size, size_t alignment) __asm__("_ZnamSt11align_val_t");
extern void *public_new_aligned_nothrow(size_t size, size_t alignment,
                                        const struct nothrow *tag) __asm__("_ZnwmSt11align_val_tRKSt9nothrow_t");
extern void *public_new_array_aligned_nothrow(size_t size, size_t alignment,
                                              const struct nothrow *tag) __asm__("_ZnamSt11align_val_tRKSt9nothrow_t");
extern void public_delete(void *block) __asm__("_ZdlPv");
extern void public_delete_array(void *block) __asm__("_ZdaPv");
extern void public_delete_sized(void *block, size_t size) __asm__("_ZdlPvm");
extern void public_delete_array_sized(void *block, size_t size) __asm__("_ZdaPvm");
extern void public_delete_tagged(void *block, const struct nothrow *tag) __asm__("_ZdlPvRKSt9nothrow_t");
extern void public_delete_array_tagged(void *block, const struct nothrow *tag) __asm__("_ZdaPvRKSt9nothrow_t");
extern void public_delete_aligned(void *block, size_t alignment) __asm__("_ZdlPvSt11align_val_t");
extern void public_delete_array_aligned(void *block, size_t alignment) __asm__("_ZdaPvSt11align_val_t");
extern void public_delete_sized_aligned(void *block, size_t size, size_t alignment) __asm__("_ZdlPvmSt11align_val_t");
extern void public_delete_array_sized_aligned(void *block, size_t size,
                                              size_t alignment) __asm__("_ZdaPvmSt11align_val_t");
extern void public_delete_aligned_tagged(void *block, size_t alignment,
                                         const struct nothrow *tag) __asm__("_ZdlPvSt11align_val_tRKSt9nothrow_t");
extern void
public_delete_array_aligned_tagged(void *block, size_t alignment,
                                   const struct nothrow *tag) __asm__("_ZdaPvSt11align_val_tRKSt9nothrow_t");
extern void *public_malloc(size_t size) __asm__("malloc");
extern void *public_aligned_alloc(size_t alignment, size_t size) __asm__("aligned_alloc");
extern void public_free(void *block) __asm__("free");

/* True when a public name is that of hakmem's own function. The compiler must not know which function that is: it would
 * take the two names for two functions, and the answer for known. */
HAK_INLINE bool is_own(void (*public)(void), void (*own)(void)) {
    HAK_IN_REGISTER(own);
    return HAK_LIKELY(public == own);
}
#define IS_OWN(public, own) is_own((void (*)(void))(public), (void (*)(void))(own))

/* The same of a program that isn't position-independent, too: where it takes a function's address, that is an entry of
 * its own, from which calls go to the first definition. */
#define IS_DEFINED_OWN(name, public, own) (IS_OWN(public, own) || hak_os_find_any(name) == (void *)(own))

/* A `new` that may throw looks in other libraries, too, which takes a lock of the dynamic linker's. A nothrow `new` can
 * do without: it returns NULL. */
static new_handler *get_new_handler(bool may_throw) {
    new_handler *(*get)(void) = _ZSt15get_new_handlerv;
    if (get == NULL && may_throw) get = (new_handler * (*)(void)) hak_os_find_in_libraries("_ZSt15get_new_handlerv");
    return get == NULL ? NULL : get();
}

static _Noreturn void throw_bad_alloc(void) {
    static const char line[] = "hakmem: operator new: no memory, and no C++ runtime to throw std::bad_alloc\n";
    void (*throw)(void) = _ZSt17__throw_bad_allocv;
    if (throw == NULL) throw = (void (*)(void))hak_os_find_in_libraries("_ZSt17__throw_bad_allocv");
    if (throw != NULL) throw();
    hak_os_write(STDERR_FILENO, line, sizeof line - 1);
    abort();
}

/* What the public names give, with the arguments that a C++ library passes to them: some return NULL for 0 bytes, or
 * want a multiple of the alignment. `alignment` is 0 for none in particular. */
static void *ask(size_t size, size_t alignment) {
    HAK_WALKABLE();
    if (size == 0) size = 1;
    if (alignment == 0) return public_malloc(size);
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return size > PTRDIFF_MAX ? NULL : public_aligned_alloc(alignment, hak_align_up(size, alignment));
}

static void *new_throwing(size_t size);
static void *new_array(size_t size);
static void *new_nothrow(size_t size, const struct nothrow *tag);
static void *new_array_nothrow(size_t size, const struct nothrow *tag);
static void *new_aligned_throwing(size_t size, size_t alignment);
static void *new_array_aligned(size_t size, size_t alignment);
static void *new_aligned_nothrow(size_t size, size_t alignment, const struct nothrow *tag);
static void *new_array_aligned_nothrow(size_t size, size_t alignment, const struct nothrow *tag);
static void delete_block(void *block);
static void delete_array(void *block);
static void delete_sized(void *block, size_t size);
static void delete_array_sized(void *block, size_t size);
static void delete_tagged(void *block, const struct nothrow *tag);
static void delete_array_tagged(void *block, const struct nothrow *tag);
static void delete_aligned(void *block, size_t alignment);
static void delete_array_aligned(void *block, size_t alignment);
static void delete_sized_aligned(void *block, size_t size, size_t alignment);
static void delete_array_sized_aligned(void *block, size_t size, size_t alignment);
static void delete_aligned_tagged(void *block, size_t alignment, const struct nothrow *tag);
static void delete_array_aligned_tagged(void *block, size_t alignment, const struct nothrow *tag);

/* True where all forms of new, new[] and the deletes are hakmem's, and malloc and free are. By the standard those that
 * a program leaves go by those that it replaces: a delete of hakmem's may get what the program's new had of malloc, or
 * its delete[] what hakmem's new[] made. A library with a C++ runtime linked into it calls that one's operators,
 * whatever is loaded before it; the program calls hakmem's, and they hand each other objects. */
static HAK_COLD bool find_family_own(void) {
    return IS_DEFINED_OWN("_Znwm", public_new, new_throwing) && IS_DEFINED_OWN("_Znam", public_new_array, new_array) &&
           IS_DEFINED_OWN("_ZnwmRKSt9nothrow_t", public_new_nothrow, new_nothrow) &&
           IS_DEFINED_OWN("_ZnamRKSt9nothrow_t", public_new_array_nothrow, new_array_nothrow) &&
           IS_DEFINED_OWN("_ZdlPv", public_delete, delete_block) &&
           IS_DEFINED_OWN("_ZdaPv", public_delete_array, delete_array) &&
           IS_DEFINED_OWN("_ZdlPvm", public_delete_sized, delete_sized) &&
           IS_DEFINED_OWN("_ZdaPvm", public_delete_array_sized, delete_array_sized) &&
           IS_DEFINED_OWN("_ZdlPvRKSt9nothrow_t", public_delete_tagged, delete_tagged) &&
           IS_DEFINED_OWN("_ZdaPvRKSt9nothrow_t", public_delete_array_tagged, delete_array_tagged) &&
           IS_DEFINED_OWN("malloc", public_malloc, hak_malloc) && IS_DEFINED_OWN("free", public_free, hak_free) &&
           !hak_os_is_new_linked_in();
}

static HAK_COLD bool find_aligned_family_own(void) {
    return IS_DEFINED_OWN("_ZnwmSt11align_val_t", public_new_aligned, new_aligned_throwing) &&
           IS_DEFINED_OWN("_ZnamSt11align_val_t", public_new_array_aligned, new_array_aligned) &&
           IS_DEFINED_OWN("_ZnwmSt11align_val_tRKSt9nothrow_t", public_new_aligned_nothrow, new_aligned_nothrow) &&
           IS_DEFINED_OWN("_ZnamSt11align_val_tRKSt9nothrow_t", public_new_array_aligned_nothrow,
                          new_array_aligned_nothrow) &&
           IS_DEFINED_OWN("_ZdlPvSt11align_val_t", public_delete_aligned, delete_aligned) &&
           IS_DEFINED_OWN("_ZdaPvSt11align_val_t", public_delete_array_aligned, delete_array_aligned) &&
           IS_DEFINED_OWN("_ZdlPvmSt11align_val_t", public_delete_sized_aligned, delete_sized_aligned) &&
           IS_DEFINED_OWN("_ZdaPvmSt11align_val_t", public_delete_array_sized_aligned, delete_array_sized_aligned) &&
           IS_DEFINED_OWN("_ZdlPvSt11align_val_tRKSt9nothrow_t", public_delete_aligned_tagged, delete_aligned_tagged) &&
           IS_DEFINED_OWN("_ZdaPvSt11align_val_tRKSt9nothrow_t", public_delete_array_aligned_tagged,
                          delete_array_aligned_tagged) &&
           IS_DEFINED_OWN("aligned_alloc", public_aligned_alloc, hak_aligned_alloc) && !hak_os_is_new_linked_in();
}

/* Found once: the dynamic linker has written the addresses before, and they stay. */
enum { UNKNOWN, BEING_FOUND, OWN, REPLACED };

/* Who asks while it is being found, as the program's own dl_iterate_phdr may, is told the careful answer, and so is
 * everybody after it. */
static HAK_COLD void find_own(HAK_ATOMIC(uint8_t) *answer, bool (*ask_all)(void)) {
    uint8_t state = UNKNOWN;
    if (hak_atomic_cas(answer, &state, BEING_FOUND, relaxed, relaxed)) {
        state = BEING_FOUND;
        hak_atomic_cas(answer, &state, ask_all() ? OWN : REPLACED, relaxed, relaxed);
    } else if (state == BEING_FOUND) {
        hak_atomic_cas(answer, &state, REPLACED, relaxed, relaxed);
    }
}

HAK_INLINE bool is_found_own(HAK_ATOMIC(uint8_t) *answer, bool (*ask_all)(void)) {
    if (HAK_UNLIKELY(hak_atomic_load(answer, relaxed) < OWN)) find_own(answer, ask_all);
    return hak_atomic_load(answer, relaxed) == OWN;
}

static HAK_ATOMIC(uint8_t) family, aligned_family; /* what was found */
static bool is_family_own(void) { return is_found_own(&family, find_family_own); }
static bool is_aligned_family_own(void) { return is_found_own(&aligned_family, find_aligned_family_own); }

/* Before main: later another thread may have the dynamic linker's lock. */
static __attribute__((constructor)) void find_families(void) {
    if (!HAK_SECURE) return;
    is_family_own();
    is_aligned_family_own();
}

/* What a block of the secure build says that it is from, and what its delete wants it to say: where the program has any
 * of the family, all are as malloc and free. */
static uint32_t from_new(void) { return HAK_SECURE && is_family_own() ? HAK_FROM_NEW : HAK_FROM_MALLOC; }
static uint32_t from_new_array(void) { return HAK_SECURE && is_family_own() ? HAK_FROM_NEW_ARRAY : HAK_FROM_MALLOC; }
static uint32_t from_aligned(uint32_t from, size_t alignment) {
    return HAK_SECURE && is_aligned_family_own() ? hak_from_aligned(from, alignment) : HAK_FROM_MALLOC;
}
static uint32_t from_new_aligned(size_t alignment) { return from_aligned(HAK_FROM_NEW, alignment); }
static uint32_t from_new_array_aligned(size_t alignment) { return from_aligned(HAK_FROM_NEW_ARRAY, alignment); }

/* True when what a form would call is hakmem's: so it is where the block is to say more than malloc's, whatever the
 * addresses are. */
#define CALLS_OWN(from, public, own) ((from) != HAK_FROM_MALLOC || IS_OWN(public, own))

/* Where the program was not started with a C++ runtime, but the library that wants memory was linked to one of its own:
 * the operator that came with it. NULL else. */
static void *find_new_beside(const void *caller, bool is_aligned) {
    if (_ZSt17__throw_bad_allocv != NULL) return NULL;
    void *found = hak_os_find_beside(caller, is_aligned ? "_ZnwmSt11align_val_t" : "_Znwm"),
         *own = is_aligned ? (void *)new_aligned_throwing : (void *)new_throwing;
    return found == own ? NULL : found;
}

/* Some block with an alignment is of such an operator, which asks for whole multiples of it. */
static HAK_ATOMIC(bool) has_asked_for_multiples;

/* It asks its own handler, and throws what its own code catches. */
static void *ask_beside(void *by, size_t size, size_t alignment) {
    HAK_WALKABLE();
    if (alignment == 0) return ((void *(*)(size_t))by)(size);
    hak_atomic_store(&has_asked_for_multiples, true, relaxed);
    return ((void *(*)(size_t, size_t))by)(size, alignment);
}

/* Again, by the call that has failed: its block is as large as its delete is told. */
static void *ask_again(size_t size, size_t alignment, uint32_t from) {
    HAK_WALKABLE();
    return from != HAK_FROM_MALLOC && alignment != 0 ? hak_aligned_alloc(alignment, size) : ask(size, alignment);
}

/* The first try has failed. Asks the new-handler for memory until there is some or it gives up, by throwing or by not
 * being there. */
static HAK_COLD void *new_failed(size_t size, size_t alignment, bool may_throw, const void *caller, uint32_t from) {
    void *beside = may_throw ? find_new_beside(caller, alignment != 0) : NULL;
    if (beside != NULL) return hak_front_say_from(ask_beside(beside, size, alignment), from);
    for (;;) {
        new_handler *handler = get_new_handler(may_throw);
        if (handler == NULL) break;
        if (may_throw) handler();
        else if (!hak_call_new_handler(handler)) return NULL;
        void *block = ask_again(size, alignment, from);
        if (block != NULL) return hak_front_say_from(block, from);
    }
    if (!may_throw) return NULL;
    throw_bad_alloc();
}

/* Of another malloc than hakmem's. A last act, as new_missed. */
static HAK_COLD void *new_asked(size_t size, size_t alignment, bool may_throw) {
    void *block = ask(size, alignment);
    return HAK_LIKELY(block != NULL) ? block : new_failed(size, alignment, may_throw, HAK_CALLER(), HAK_FROM_MALLOC);
}

static HAK_MISS void *new_missed(size_t size, bool may_throw, uint32_t from) {
    HAK_WALKABLE();
    void *block = hak_front_alloc_miss(size, HAK_CALLER()); /* new_missed is a last act */
    if (HAK_UNLIKELY(block == NULL)) return new_failed(size, 0, may_throw, HAK_CALLER(), from);
    return hak_front_say_from(block, from);
}

HAK_INLINE void *new_block(size_t size, bool may_throw, uint32_t from) {
    if (!CALLS_OWN(from, public_malloc, hak_malloc)) return new_asked(size, 0, may_throw);
    void *block = hak_front_take(size, from);
    return HAK_LIKELY(block != NULL) ? block : new_missed(size, may_throw, from);
}

static void *new_aligned(size_t size, size_t alignment, bool may_throw, uint32_t from) {
    HAK_WALKABLE();
    if (!CALLS_OWN(from, public_aligned_alloc, hak_aligned_alloc)) return new_asked(size, alignment, may_throw);
    void *block = hak_aligned_alloc(alignment, size);
    if (HAK_UNLIKELY(block == NULL)) return new_failed(size, alignment, may_throw, HAK_CALLER(), from);
    return hak_front_say_from(block, from);
}

/* ---- new --------------------------------------------------------------------------------------------------------- */

static void *new_throwing(size_t size) { return new_block(size, true, from_new()); }

static void *new_array(size_t size) {
    uint32_t from = from_new_array();
    if (!CALLS_OWN(from, public_new, new_throwing)) return public_new(size);
    return new_block(size, true, from);
}

static void *new_nothrow(size_t size, const struct nothrow *tag) {
    (void)tag;
    uint32_t from = from_new();
    if (!CALLS_OWN(from, public_new, new_throwing)) return hak_call_new(public_new, size);
    return new_block(size, false, from);
}

static void *new_array_nothrow(size_t size, const struct nothrow *tag) {
    (void)tag;
    uint32_t from = from_new_array();
    if (!CALLS_OWN(from, public_new_array, new_array) || !CALLS_OWN(from, public_new, new_throwing))
        return hak_call_new(public_new_array, size);
    return new_block(size, false, from);
}

static void *new_aligned_throwing(size_t size, size_t alignment) {
    return new_aligned(size, alignment, true, from_new_aligned(alignment));
}

static void *new_array_aligned(size_t size, size_t alignment) {
    uint32_t from = from_new_array_aligned(alignment);
    if (!CALLS_OWN(from, public_new_aligned, new_aligned_throwing)) return public_new_aligned(size, alignment);
    return new_aligned(size, alignment, true, from);
}

static void *new_aligned_nothrow(size_t size, size_t alignment, const struct nothrow *tag) {
    (void)tag;
    uint32_t from = from_new_aligned(alignment);
    if (!CALLS_OWN(from, public_new_aligned, new_aligned_throwing))
        return hak_call_new_aligned(public_new_aligned, size, alignment);
    return new_aligned(size, alignment, false, from);
}

static void *new_array_aligned_nothrow(size_t size, size_t alignment, const struct nothrow *tag) {
    (void)tag;
    uint32_t from = from_new_array_aligned(alignment);
    if (!CALLS_OWN(from, public_new_array_aligned, new_array_aligned) ||
        !CALLS_OWN(from, public_new_aligned, new_aligned_throwing))
        return hak_call_new_aligned(public_new_array_aligned, size, alignment);
    return new_aligned(size, alignment, false, from);
}

HAK_OVERRIDE(new_throwing, _Znwm, (size_t), void *);
HAK_OVERRIDE(new_array, _Znam, (size_t), void *);
HAK_OVERRIDE(new_nothrow, _ZnwmRKSt9nothrow_t, (size_t, const struct nothrow *), void *);
HAK_OVERRIDE(new_array_nothrow, _ZnamRKSt9nothrow_t, (size_t, const struct nothrow *), void *);
HAK_OVERRIDE(new_aligned_throwing, _ZnwmSt11align_val_t, (size_t, size_t), void *);
HAK_OVERRIDE(new_array_aligned, _ZnamSt11align_val_t, (size_t, size_t), void *);
HAK_OVERRIDE(new_aligned_nothrow, _ZnwmSt11align_val_tRKSt9nothrow_t, (size_t, size_t, const struct nothrow *), void *);
HAK_OVERRIDE(new_array_aligned_nothrow, _ZnamSt11align_val_tRKSt9nothrow_t, (size_t, size_t, const struct nothrow *),
             void *);

/* ---- new that tells the size ------------------------------------------------------------------------------------- */

/* As tcmalloc has them, and P0901 has proposed: at least the size, and how much it is. Any size from the one that was
 * asked for to the one that was told may be passed to delete. Those of hot and cold pass a byte more, a hint, which is
 * left where it is. */
struct sized_block {
    void *block;
    size_t bytes;
};

/* Of a `new` of the program's, or a malloc, nobody knows more than what was asked for. */
static struct sized_block tell_size(void *block, size_t size, bool is_ours) {
    struct hak_place place = hak_region_find((uintptr_t)block);
    bool is_known = is_ours && place.start == (uintptr_t)block;
    return (struct sized_block){block, is_known ? hak_front_usable_bytes(&place) : size};
}

static struct sized_block new_sized(size_t size) {
    HAK_WALKABLE();
    bool is_ours = IS_OWN(public_new, new_throwing) && IS_OWN(public_malloc, hak_malloc);
    return tell_size(public_new(size), size, is_ours);
}

static struct sized_block new_sized_aligned(size_t size, size_t alignment) {
    HAK_WALKABLE();
    bool is_ours = IS_OWN(public_new_aligned, new_aligned_throwing) && IS_OWN(public_aligned_alloc, hak_aligned_alloc);
    return tell_size(public_new_aligned(size, alignment), size, is_ours);
}

HAK_OVERRIDE(new_sized, __size_returning_new, (size_t), struct sized_block);
HAK_OVERRIDE(new_sized, __size_returning_new_hot_cold, (size_t), struct sized_block);
HAK_OVERRIDE(new_sized_aligned, __size_returning_new_aligned, (size_t, size_t), struct sized_block);
HAK_OVERRIDE(new_sized_aligned, __size_returning_new_aligned_hot_cold, (size_t, size_t), struct sized_block);

/* ---- delete ------------------------------------------------------------------------------------------------------ */

HAK_INLINE void hand_back(void *block, uint32_t from) {
    if (!CALLS_OWN(from, public_free, hak_free)) public_free(block);
    else hak_front_free(block, from);
}

static void delete_block(void *block) { hand_back(block, from_new()); }

/* True where a block may have another size than its delete is told: a program's own new may have asked for more. */
HAK_INLINE bool is_size_unknown(uint32_t from) { return HAK_SECURE && from == HAK_FROM_MALLOC; }

/* Where delete is hakmem's, but free is not, the size is of no use. */
HAK_INLINE void hand_back_sized(void *block, size_t size, uint32_t from) {
    if (!CALLS_OWN(from, public_free, hak_free)) public_free(block);
    else if (is_size_unknown(from)) hak_front_free(block, from);
    else hak_front_free_sized(block, size, from);
}

static void delete_array(void *block) {
    uint32_t from = from_new_array();
    if (!CALLS_OWN(from, public_delete, delete_block)) public_delete(block);
    else hand_back(block, from);
}

static void delete_sized(void *block, size_t size) {
    uint32_t from = from_new();
    if (!CALLS_OWN(from, public_delete, delete_block)) public_delete(block);
    else hand_back_sized(block, size, from);
}

static void delete_array_sized(void *block, size_t size) {
    uint32_t from = from_new_array();
    if (!CALLS_OWN(from, public_delete_array, delete_array) || !CALLS_OWN(from, public_delete, delete_block))
        public_delete_array(block);
    else hand_back_sized(block, size, from);
}

/* Of aligned_alloc: where this is hakmem's, so is the block, whoever has put a free before. */
HAK_INLINE bool is_from_others(uint32_t from) { return !CALLS_OWN(from, public_aligned_alloc, hak_aligned_alloc); }

HAK_INLINE void hand_back_aligned(void *block, uint32_t from) {
    if (is_from_others(from)) public_free(block);
    else hak_front_free(block, from);
}

static void delete_aligned(void *block, size_t alignment) { hand_back_aligned(block, from_new_aligned(alignment)); }

static void delete_array_aligned(void *block, size_t alignment) {
    uint32_t from = from_new_array_aligned(alignment);
    if (!CALLS_OWN(from, public_delete_aligned, delete_aligned)) public_delete_aligned(block, alignment);
    else hand_back_aligned(block, from);
}

/* With an alignment, the new of a library's runtime may have asked for more, too. */
static void hand_back_sized_aligned(void *block, size_t size, size_t alignment, uint32_t from) {
    if (is_from_others(from)) public_free(block);
    else if (is_size_unknown(from) || (HAK_SECURE && hak_atomic_load(&has_asked_for_multiples, relaxed)))
        hak_front_free(block, from);
    else hak_front_free_aligned_sized(block, alignment, size, from);
}

static void delete_sized_aligned(void *block, size_t size, size_t alignment) {
    uint32_t from = from_new_aligned(alignment);
    if (!CALLS_OWN(from, public_delete_aligned, delete_aligned)) public_delete_aligned(block, alignment);
    else hand_back_sized_aligned(block, size, alignment, from);
}

static void delete_array_sized_aligned(void *block, size_t size, size_t alignment) {
    uint32_t from = from_new_array_aligned(alignment);
    if (!CALLS_OWN(from, public_delete_array_aligned, delete_array_aligned) ||
        !CALLS_OWN(from, public_delete_aligned, delete_aligned))
        public_delete_array_aligned(block, alignment);
    else hand_back_sized_aligned(block, size, alignment, from);
}

/* Called where a constructor has thrown, and hardly ever. */

static void delete_tagged(void *block, const struct nothrow *tag) {
    (void)tag;
    public_delete(block);
}

static void delete_array_tagged(void *block, const struct nothrow *tag) {
    (void)tag;
    public_delete_array(block);
}

static void delete_aligned_tagged(void *block, size_t alignment, const struct nothrow *tag) {
    (void)tag;
    public_delete_aligned(block, alignment);
}

static void delete_array_aligned_tagged(void *block, size_t alignment, const struct nothrow *tag) {
    (void)tag;
    public_delete_array_aligned(block, alignment);
}

HAK_OVERRIDE(delete_block, _ZdlPv, (void *), void);
HAK_OVERRIDE(delete_array, _ZdaPv, (void *), void);
HAK_OVERRIDE(delete_sized, _ZdlPvm, (void *, size_t), void);
HAK_OVERRIDE(delete_array_sized, _ZdaPvm, (void *, size_t), void);
HAK_OVERRIDE(delete_tagged, _ZdlPvRKSt9nothrow_t, (void *, const struct nothrow *), void);
HAK_OVERRIDE(delete_array_tagged, _ZdaPvRKSt9nothrow_t, (void *, const struct nothrow *), void);
HAK_OVERRIDE(delete_aligned, _ZdlPvSt11align_val_t, (void *, size_t), void);
HAK_OVERRIDE(delete_array_aligned, _ZdaPvSt11align_val_t, (void *, size_t), void);
HAK_OVERRIDE(delete_aligned_tagged, _ZdlPvSt11align_val_tRKSt9nothrow_t, (void *, size_t, const struct nothrow *),
             void);
HAK_OVERRIDE(delete_array_aligned_tagged, _ZdaPvSt11align_val_tRKSt9nothrow_t, (void *, size_t, const struct nothrow *),
             void);
HAK_OVERRIDE(delete_sized_aligned, _ZdlPvmSt11align_val_t, (void *, size_t, size_t), void);
HAK_OVERRIDE(delete_array_sized_aligned, _ZdaPvmSt11align_val_t, (void *, size_t, size_t), void);

#endif
