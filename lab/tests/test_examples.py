"""The examples do what they say: the header that answers redis and valkey in jemalloc's place."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hakmem import native

ROOT = Path(__file__).resolve().parents[2]

# As redis does: the hint is declared again; figures, hints, moves past the thread cache; then valkey's question.
DEFRAGMENTS = """
#include <jemalloc/jemalloc.h>
#include <stdlib.h>
#ifndef JEMALLOC_FRAG_HINT
#error "redis would not defragment"
#endif
int je_get_defrag_hint(void *ptr);
enum { COUNT = 200000, EVERY = 8 };
static void *blocks[COUNT];
static size_t statistic(const char *name) {
    size_t value = 0, bytes = sizeof value;
    uint64_t epoch = 1;
    size_t epoch_bytes = sizeof epoch;
    je_mallctl("epoch", &epoch, &epoch_bytes, &epoch, epoch_bytes);
    if (je_mallctl(name, &value, &bytes, NULL, 0) != 0) abort();
    return value;
}
int main(void) {
    unsigned arenas = 0;
    size_t bytes = sizeof arenas;
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = je_malloc(200), i, 200);
    for (int i = 0; i < COUNT; i++) if (i % EVERY != 0) je_free(blocks[i]);
    if (je_mallctl("arenas.narenas", &arenas, &bytes, NULL, 0) != 0 || arenas != 1) return 2;
    if (je_mallctl("arena.1.purge", NULL, 0, NULL, 0) != 0) return 3;
    size_t before = statistic("stats.active"), agreed = 0, asked = 0;
    if (before < statistic("stats.allocated") * 2) return 4;
    for (int pass = 0; pass < 12; pass++)
        for (int i = 0; i < COUNT; i += EVERY) {
            size_t figures[3], figure_bytes = sizeof figures;
            int hint = je_get_defrag_hint(blocks[i]);
            if (je_mallctl("experimental.utilization.batch_query", figures, &figure_bytes, &blocks[i],
                           sizeof blocks[i]) != 0) return 5;
            asked++;
            agreed += (figures[0] != 0) == (hint != 0) && figures[0] < figures[1];
            if (!hint) continue;
            size_t size = je_malloc_usable_size(blocks[i]);
            void *moved = je_mallocx(size, MALLOCX_TCACHE_NONE);
            memcpy(moved, blocks[i], size);
            je_dallocx(blocks[i], MALLOCX_TCACHE_NONE);
            blocks[i] = moved;
        }
    if (agreed < asked * 99 / 100) return 6;
    je_mallctl("arena.1.purge", NULL, 0, NULL, 0);
    for (int i = 0; i < COUNT; i += EVERY) if (*(unsigned char *)blocks[i] != (unsigned char)i) return 7;
    if (statistic("stats.active") > before / 2) return 8;
    if (je_mallctl("no.such", NULL, NULL, NULL, 0) == 0) return 9;
    return 0;
}
"""


def test_redis_is_told_which_blocks_to_move(tmp_path: Path) -> None:
    folder = native.library().parent
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(DEFRAGMENTS)
    words = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)]
    words += [f"-I{ROOT / 'examples' / 'redis'}", f"-I{ROOT / 'include'}"]
    words += [f"-L{folder}", "-lhakmem", f"-Wl,-rpath,{folder}"]
    subprocess.run(words, check=True)
    done = subprocess.run([program], env={"HAKMEM_BACKGROUND": "0"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done
