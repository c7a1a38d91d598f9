"""Every rule of scripts/lint.py: small trees that break it and others that keep it."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import lint  # noqa: E402

NOTE = "TO" + "DO"
MACHINE = "/wor" + "k/main"


def findings(files: dict[str, str]) -> list[str]:
    """PATH:LINE:RULE of what lint says about a tree of these files."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return [f"{found.path}:{found.line}:{found.rule}" for found in lint.lint(root)]


class RuleTest(unittest.TestCase):
    def good(self, files: dict[str, str]) -> None:
        self.assertEqual(findings(files), [])

    def bad(self, files: dict[str, str], *expected: str) -> None:
        self.assertEqual(findings(files), sorted(expected))


class Columns(RuleTest):
    def test_long_lines(self) -> None:
        self.good({"src/os/x.h": f"/* {'é' * 114} */\n", "src/os/x.def": "x" * 200})
        self.bad({"src/os/x.h": f"/* {'x' * 115} */\n", "include/y.h": f"/* */\nint {'y' * 120};\n"},
                 "src/os/x.h:1:columns", "include/y.h:2:columns")


class KernelHeaders(RuleTest):
    def test_headers_that_only_some_c_libraries_come_with(self) -> None:
        self.bad({"src/os/x.c": "#include <sched.h>\n# include <linux/capability.h>\n", "src/api/y.c": "#include <asm/prctl.h>\n"},
                 "src/os/x.c:2:kernel", "src/api/y.c:1:kernel")


class Layers(RuleTest):
    headers = {f"src/{layer}/x.h": "/* x */\n" for layer in lint.LAYERS}

    def test_lower_and_own_layers_may_be_included(self) -> None:
        includes = '#include "pool/x.h"\n#include "x.h"\n#include "base/x.h"\n#include <stdio.h>\n'
        self.good({**self.headers, "src/pool/x.c": includes})

    def test_a_higher_layer_may_not(self) -> None:
        self.bad({**self.headers, "src/pool/x.c": '\n#include "front/x.h"\n'}, "src/pool/x.c:2:layer")
        self.bad({**self.headers, "src/pool/x.c": '#include "../api/x.h"\n'}, "src/pool/x.c:1:layer")

    def test_slab_knows_base_only(self) -> None:
        self.bad({**self.headers, "src/slab/x.c": '#include "base/x.h"\n#include "os/x.h"\n'}, "src/slab/x.c:2:layer")

    def test_the_public_header_may_be_included_everywhere(self) -> None:
        self.good({"include/hakmem/hakmem.h": "/* x */\n", "src/base/x.c": '#include "hakmem/hakmem.h"\n'})

    def test_nothing_outside_the_tree_may_be_included(self) -> None:
        self.bad({"src/api/x.c": '#include "tests/fake.h"\n', "tests/fake.h": ""}, "src/api/x.c:1:layer")

    def test_a_commented_include_does_not_count(self) -> None:
        self.good({**self.headers, "src/os/x.c": '/* not\n#include "front/x.h"\n*/\n'})

    def test_the_release_object_includes_bottom_up(self) -> None:
        self.good({**self.headers, "src/hakmem.c": '#include "base/x.h"\n#include "os/x.h"\n#include "os/x.h"\n'})
        self.bad({**self.headers, "src/hakmem.c": '#include "os/x.h"\n#include "base/x.h"\n'}, "src/hakmem.c:2:layer")

    def test_an_unknown_layer(self) -> None:
        self.bad({"src/misc/x.c": "int x;\n"}, "src/misc/x.c:1:layer")


class CallsUp(RuleTest):
    """A name of front, used in pool without a header of front."""

    def in_pool(self, use: str, definition: str) -> dict[str, str]:
        return {"src/pool/x.c": use, "src/front/y.c": definition}

    def test_a_function_declared_below(self) -> None:
        use = "void hak_up(int count);\nvoid hak_x(void) { hak_up(1); }\n"
        for definition in ("void hak_up(int count) { }\n", "void\nhak_up(int count) {\n}\n",
                           "#define SOME 1\nHAK_COLD void hak_up(int (*f)(int)) { f(1); }\n"):
            with self.subTest(definition):
                self.bad(self.in_pool(use, definition), "src/pool/x.c:1:up", "src/pool/x.c:2:up")

    def test_a_variable_declared_below(self) -> None:
        use = "extern HAK_ATOMIC(int) hak_up;\n"
        for definition in ("HAK_ATOMIC(int) hak_up;\n", "HAK_ATOMIC(int) hak_up = 1;\n", "int hak_up[3];\n",
                           "HAK_ATOMIC(struct x *) hak_up[LIMIT];\n"):
            with self.subTest(definition):
                self.bad(self.in_pool(use, definition), "src/pool/x.c:1:up")

    def test_what_is_defined_here_or_below(self) -> None:
        self.good({"src/pool/x.c": "int hak_own = 1;\nint f(void) { return hak_own + hak_low(); }\n",
                   "src/os/y.c": "int hak_low(void) { return 1; }\n"})
        self.good({"src/front/x.c": "int f(void) { return hak_low(); }\n",
                   "src/os/y.c": "int hak_low(void) { return 1; }\n"})

    def test_one_of_several_definitions_is_below(self) -> None:
        self.good({"src/pool/x.c": "int f(void) { return hak_it(); }\n",
                   "src/os/y.c": "int hak_it(void) { return 1; }\n",
                   "src/front/z.c": "int hak_it(void) { return 2; }\n"})

    def test_declarations_and_uses_define_nothing(self) -> None:
        use = "int hak_here = 1;\nint f(void) { return hak_here; }\n"
        self.good(self.in_pool(use, "extern int hak_here;\nint g(void) { hak_here = 2; return hak_here; }\n"))

    def test_what_base_promises_and_os_does(self) -> None:
        self.good({"src/base/x.c": "void hak_misuse(int kind);\n", "src/os/y.c": "void hak_misuse(int kind) { }\n"})
        self.bad({"src/base/x.c": "void hak_misuse(int kind);\n", "src/api/y.c": "void hak_misuse(int kind) { }\n"},
                 "src/base/x.c:1:up")

    def test_a_pointer_that_can_be_set(self) -> None:
        for text in ("extern void (*hak_hook)(void);\n", "static int (*hook)(int count);\n",
                     "void (*hak_hooks[3])(void) = {0};\n"):
            with self.subTest(text):
                self.bad({"src/pool/x.c": text}, "src/pool/x.c:1:up")
        for text in ("void hak_each(void (*visit)(int), int count) { visit(count); }\n",
                     "static void (*const start)(void) = begin;\n", "typedef void (*action)(void);\n",
                     "void hak_each(void (*visit)(int));\n"):
            with self.subTest(text):
                self.good({"src/pool/x.c": text})
        self.good({"src/os/signals.c": "static void (*report)(int signal);\n"})


class Circles(RuleTest):
    def tree(self, layer: str, *pairs: str) -> dict[str, str]:
        """Files a, b, ... of which the first of each pair calls the second."""
        texts = {name: f"int hak_{name}(void) {{ return 1; }}\n" for pair in pairs for name in pair}
        for caller, called in pairs:
            texts[caller] += f"int {caller}_{called}(void) {{ return hak_{called}(); }}\n"
        return {f"src/{layer}/{name}.c": text for name, text in texts.items()}

    def test_a_circle(self) -> None:
        self.bad(self.tree("region", "ab", "ba"), "src/region/a.c:2:circle", "src/region/b.c:2:circle")
        self.bad(self.tree("region", "ad", "ab", "bc", "ca"),
                 "src/region/a.c:3:circle", "src/region/b.c:2:circle", "src/region/c.c:2:circle")

    def test_no_circle(self) -> None:
        self.good(self.tree("region", "aa", "ab", "bc", "ac"))

    def test_a_header_only_declares(self) -> None:
        common = {"src/region/all.h": "/* x */\nint hak_a(void);\nint hak_b(void);\n"
                                      "static inline int hak_all(void) { return 1; }\n"}
        self.good({**common, **self.tree("region", "ab"),
                   "src/region/c.c": "int c(void) { return hak_all() + hak_a(); }\n"})

    def test_what_a_files_own_header_defines_is_the_file_s(self) -> None:
        self.bad({"src/region/a.h": "/* x */\nstatic inline int hak_a(void) { return 1; }\n",
                  "src/region/a.c": "int a(void) { return hak_b(); }\n",
                  "src/region/b.c": "int hak_b(void) { return hak_a(); }\n"},
                 "src/region/a.c:1:circle", "src/region/b.c:1:circle")

    def test_known_ones(self) -> None:
        self.good(self.tree("front", "ab", "ba"))


class Atomics(RuleTest):
    def in_pool(self, text: str) -> dict[str, str]:
        return {"src/pool/x.c": text, "src/base/atomic.h": "/* the door */\n#define hak_atomic_x _Atomic\n"}

    def test_relaxed_needs_no_comment(self) -> None:
        self.good(self.in_pool("int f(void) { return hak_atomic_load(&x, relaxed); }\n"))
        self.good(self.in_pool("int f(void) { return hak_atomic_cas(&x, &y, z, relaxed, relaxed); }\n"))

    def test_an_order_needs_a_comment(self) -> None:
        self.bad(self.in_pool("int f(void) { return hak_atomic_load(&x, acquire); }\n"), "src/pool/x.c:1:atomic")
        self.bad(self.in_pool("\n\n\n\n\nbool b = hak_atomic_cas(&x,\n &y, g(1, 2), acq_rel, relaxed);\n"),
                 "src/pool/x.c:6:atomic")

    def test_the_comment_is_on_the_line_or_in_the_three_above(self) -> None:
        self.good(self.in_pool("hak_atomic_store(&x, 1, release); /* pairs with f */\n"))
        self.good(self.in_pool("/* pairs\n * with f */\n\nhak_atomic_store(&x, 1, release);\n"))
        self.bad(self.in_pool("/* far */\n\n\n\nhak_atomic_store(&x, 1, release);\n"), "src/pool/x.c:5:atomic")

    def test_a_string_is_no_comment(self) -> None:
        self.bad(self.in_pool('f("/* x */", hak_atomic_load(&x, acquire));\n'), "src/pool/x.c:1:atomic")

    def test_the_order_is_a_literal_word(self) -> None:
        self.bad(self.in_pool("/* x */ hak_atomic_fence(order);\n"), "src/pool/x.c:1:atomic")

    def test_raw_atomics_live_in_one_header(self) -> None:
        self.bad(self.in_pool("#include <stdatomic.h>\n_Atomic int x;\nint y = __atomic_load_n(&x, 0);\n"),
                 "src/pool/x.c:1:atomic", "src/pool/x.c:2:atomic", "src/pool/x.c:3:atomic")


class Names(RuleTest):
    def test_reserved_names(self) -> None:
        for text in ("struct slab_t { int x; };", "typedef struct slab slab_t;", "typedef struct { int x; } slab_t;",
                     "typedef void (*flush_t)(void);", "typedef char name_t[8];", "#define _LIMIT 3", "int _x = 1;",
                     "void *_block;", "static void _flush(void) {}", "int f(int _count) { return 0; }"):
            with self.subTest(text):
                self.bad({"src/slab/x.c": text + "\n"}, "src/slab/x.c:1:name")

    def test_names_that_are_given(self) -> None:
        for text in ("typedef uint32_t index;", "size_t n = sizeof(uint64_t);", "struct slab { uint8_t *at; };",
                     "void *_Znwm(size_t n) { return 0; }", "void *__libc_malloc(size_t n);", "#define _GNU_SOURCE 1",
                     "static __thread int x;", "int f(void) __attribute__((cold));",
                     "int g(void) { return __builtin_ctz(1); }",
                     "#if A && __GLIBC_PREREQ(2, 34)", "int h(void) { return _start(1); }",
                     "_Static_assert(1, \"x\");", "/* int _x; */", "const char *c = \"int _x;\";"):
            with self.subTest(text):
                self.good({"src/slab/x.c": text + "\n"})


class System(RuleTest):
    def test_memory_calls_belong_to_os(self) -> None:
        call = "int f(void) { return munmap(0, 1); }\n"
        self.good({"src/os/x.c": call})
        self.bad({"src/region/x.c": call}, "src/region/x.c:1:system")
        self.bad({"src/region/x.c": "long l = syscall(SYS_madvise, 0);\n"}, "src/region/x.c:1:system")

    def test_names_that_only_look_alike(self) -> None:
        self.good({"src/region/x.c": "int f(void) { return os->munmap(0) + hak_os_mmap(1); } /* mmap() */\n"})


class Environment(RuleTest):
    def test_one_reader(self) -> None:
        self.good({"src/api/x.c": 'char *c = getenv("A"); extern char **environ;\n'})
        self.bad({"src/api/x.c": 'char *c = getenv("A");\n', "src/os/y.c": "extern char **environ;\n"},
                 "src/api/x.c:1:environment", "src/os/y.c:1:environment")


class Comments(RuleTest):
    def test_a_header_begins_with_a_comment(self) -> None:
        self.bad({"src/os/x.h": "#ifndef X\n"}, "src/os/x.h:1:comment")

    def test_names_in_comments_exist(self) -> None:
        text = "/* calls hak_flush; all of hak_os_* and hak_<module>_<verb> */\nvoid hak_flush(void);\n"
        self.good({"src/os/x.c": text})
        self.bad({"src/os/x.c": "\n/* calls hak_flush */\n"}, "src/os/x.c:2:comment")


class Text(RuleTest):
    def test_markers(self) -> None:
        self.bad({"bench/x.py": f"x = 1  # {NOTE}: more\n"}, "bench/x.py:1:marker")
        self.good({"bench/x.py": 'x = "/tmp/fileXXXXXX"\n'})

    def test_paths_of_one_machine(self) -> None:
        self.bad({"docs/x.md": f"see {MACHINE}\n"}, "docs/x.md:1:path")
        self.good({"docs/x.md": "see framework/main and ${X}/work/main\n"})

    def test_other_folders_are_left_alone(self) -> None:
        self.good({"build/x.md": MACHINE, ".git/x.md": MACHINE, "docs/x.png": MACHINE})


if __name__ == "__main__":
    unittest.main()
