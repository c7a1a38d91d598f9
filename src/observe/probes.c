#include "observe/probes.h"

/* Tracers write to these, and find them by the notes only. */
#define SEMAPHORE __attribute__((used, section(".probes"))) HAK_ATOMIC(uint16_t)
SEMAPHORE hak_probe_alloc_semaphore;

#if defined(__x86_64__) || defined(__aarch64__)

SEMAPHORE hak_probe_free_semaphore;

/* Length of the owner's name, length of what follows it, type; owner; addresses of the probe, of the base, of the
 * semaphore; provider, name, arguments as size@place. If the file is moved after it was linked, the base tells by how
 * much; it is the one of all notes in the file. */
#define PROBE(name, semaphore, arguments, ...)                                                                         \
    __asm__ volatile("990: nop\n"                                                                                      \
                     ".pushsection .note.stapsdt, \"\", %%note\n"                                                      \
                     ".balign 4\n"                                                                                     \
                     ".4byte 992f - 991f, 994f - 993f, 3\n"                                                            \
                     "991: .asciz \"stapsdt\"\n"                                                                       \
                     "992: .balign 4\n"                                                                                \
                     "993: .8byte 990b, _.stapsdt.base, " #semaphore "\n"                                              \
                     ".asciz \"otel_memory\"\n"                                                                        \
                     ".asciz \"" name "\"\n"                                                                           \
                     ".asciz \"" arguments "\"\n"                                                                      \
                     "994: .balign 4\n"                                                                                \
                     ".popsection\n"                                                                                   \
                     ".ifndef _.stapsdt.base\n"                                                                        \
                     ".pushsection .stapsdt.base, \"aG\", %%progbits, .stapsdt.base, comdat\n"                         \
                     ".weak _.stapsdt.base\n"                                                                          \
                     ".hidden _.stapsdt.base\n"                                                                        \
                     "_.stapsdt.base: .space 1\n"                                                                      \
                     ".size _.stapsdt.base, 1\n"                                                                       \
                     ".popsection\n"                                                                                   \
                     ".endif\n" ::__VA_ARGS__)

/* Never inlined: one site each. */
HAK_COLD void hak_probe_alloc(const void *block, size_t size, uint64_t weight) {
    if (HAK_LIKELY(hak_atomic_load(&hak_probe_alloc_semaphore, relaxed) == 0)) return;
    PROBE("alloc", hak_probe_alloc_semaphore, "8@%0 8@%1 8@%2", "r"(block), "r"(size), "r"(weight));
}

HAK_COLD void hak_probe_free(const void *block) {
    if (HAK_LIKELY(hak_atomic_load(&hak_probe_free_semaphore, relaxed) == 0)) return;
    PROBE("free", hak_probe_free_semaphore, "8@%0", "r"(block));
}

#else

/* Never inlined: one site each. */
HAK_COLD void hak_probe_alloc(const void *block, size_t size, uint64_t weight) {
    (void)block, (void)size, (void)weight;
}
HAK_COLD void hak_probe_free(const void *block) { (void)block; }

#endif
