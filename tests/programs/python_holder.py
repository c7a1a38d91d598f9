"""python_holder.py: holds memory from many places, and prints whence: for each block its size, and the functions that
lead there, the innermost first, as the interpreter's own frames have them. For python_frames.py; any Python runs it.
"""

import asyncio
import functools
import json
import sys
import tempfile
import threading

STEP, expected, kept, lock = 1 << 20, {}, [], threading.Lock()


def stack():
    frame, found = sys._getframe(2), []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return found


def note():
    """The size of a block that no other has: its caller is about to ask for it, on the same line."""
    with lock:
        size = 2 * STEP + len(expected) * 4096
        expected[size + 1] = stack()  # a bytearray asks for one more
    return size


def hold(*_):
    kept.append(bytearray(note()))
    return len(kept)


def down(depth):
    if depth == 0:
        return hold()
    return down(depth - 1)


class Shelf:
    def put(self):
        kept.append(
            bytearray(note())  # in a call that spans lines
        )

    @staticmethod
    def decorated(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return function(*arguments)

        return wrapper

    def __del__(self):
        hold()


@Shelf.decorated
def größe():
    hold()


def numbers():
    for _ in range(3):
        hold()
        yield 1


def through():
    yield from numbers()


async def later(depth):
    await asyncio.sleep(0)
    if depth > 0:
        return await later(depth - 1)
    hold()
    return kept.append(bytearray(note()))


def by_c():
    return sorted([3, 1, 2], key=hold), functools.reduce(lambda x, y: hold(), [1, 2, 3]), list(map(hold, [1, 2]))


def by_comprehension():
    return [hold(x) for x in range(2)], {x: hold(x) for x in range(2)}, [*(hold(x) for x in range(2))]


def by_exception():
    try:
        raise ValueError
    except ValueError:
        hold()
    finally:
        hold()


def by_source():
    """Functions that are freed, and made anew where they were."""
    for number in range(20):
        lines = "\n" * number + "def made():\n    hold()\nmade()\n"
        exec(compile(lines, f"<made {number}>", "exec"), {"hold": hold})


def by_import():
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/holds_at_import.py", "w") as file:
            file.write("import __main__\n\n\n__main__.hold()\nclass Inner:\n    __main__.hold()\n")
        sys.path.insert(0, folder)
        import holds_at_import  # noqa: F401


def in_threads():
    threads = [threading.Thread(target=down, args=(depth,)) for depth in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_long_function():
    source = "def long():\n" + "".join(f"    x{i} = {i}\n" for i in range(3000)) + "    hold()\n"
    names = {"hold": hold}
    exec(compile(source, "long.py", "exec"), names)
    names["long"]()


def main():
    hold(), down(1), down(20)
    Shelf().put()
    größe()
    list(through())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(later(3))
    loop.close()
    by_c(), by_comprehension(), by_exception(), by_source(), by_import(), in_threads(), in_a_long_function()
    sys.setrecursionlimit(3000)
    down(600)
    (lambda: hold())()


main()
print(json.dumps(expected))
