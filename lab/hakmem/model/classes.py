"""Size classes of a policy, and which one serves a request (src/slab/size_class.c, src/front/routes.c)."""

from __future__ import annotations

from hakmem.model.policy import Policy

ALIGNMENT = 16
SMALL_MAX = 32768
SINGLE_MAX = 1024  # larger sizes are served in groups at first
LEAST_BLOCKS = 8  # of a slab, if that takes no more units than the largest class has
LARGEST_SLAB_BYTES = 256 << 10


class Classes:
    """Classes are numbered from 1. `routes` has the class for each multiple of 16 bytes, rounded up. Where a policy
    tells blocks by their lifetime, each class has a twin for those that live long, `twins` numbers above."""

    def __init__(self, policy: Policy) -> None:
        self.block_bytes = [0, *_block_sizes(policy.class_steps)]
        self.twins = len(self.block_bytes) - 1 if policy.apart_after < 1 else 0
        self.plain_count = len(self.block_bytes) - 1
        self.block_bytes += self.block_bytes[1 : self.twins + 1]
        self.unit_count = [0] + [_units(size, policy.unit_bytes) for size in self.block_bytes[1:]]
        slabs = zip(self.block_bytes, self.unit_count, strict=True)
        self.block_count = [units * policy.unit_bytes // size if size else 0 for size, units in slabs]
        self.exact = [0] * (SMALL_MAX // ALIGNMENT + 1)  # the narrowest class that holds so many times 16 bytes
        size_class = 1
        for index in range(len(self.exact)):
            while self.block_bytes[size_class] < index * ALIGNMENT:
                size_class += 1
            self.exact[index] = size_class
        self.single_count = self.block_bytes.index(SINGLE_MAX)
        self.group_classes = policy.group_classes
        self.open_groups: set[int] = set()  # by their widest class
        self.routes = [self._serving_exact(size_class) for size_class in self.exact]

    def __len__(self) -> int:
        return len(self.block_bytes)

    def widest_of_group(self, size_class: int) -> int:
        if size_class <= self.single_count or self.group_classes == 1:
            return size_class
        position = size_class - self.single_count - 1
        return self.single_count + position // self.group_classes * self.group_classes + self.group_classes

    def _serving_exact(self, size_class: int) -> int:
        widest = self.widest_of_group(size_class)
        return size_class if widest in self.open_groups else widest

    def is_closed_group(self, size_class: int) -> bool:
        return (
            self.group_classes > 1
            and self.single_count < size_class <= self.plain_count
            and self.widest_of_group(size_class) == size_class
            and size_class not in self.open_groups
        )

    def open_group(self, widest: int) -> None:
        self.open_groups.add(widest)
        self.routes = [self._serving_exact(size_class) for size_class in self.exact]

    def serving(self, size: int, alignment: int) -> int:
        """The class that serves a request; 0 when none does."""
        if alignment > ALIGNMENT:
            return self._serving_aligned(size, alignment)
        return self.routes[(size + ALIGNMENT - 1) // ALIGNMENT] if size <= SMALL_MAX else 0

    def _serving_aligned(self, size: int, alignment: int) -> int:
        if alignment > SMALL_MAX or size > SMALL_MAX:
            return 0
        size_class = self.exact[-(-max(size, alignment) // ALIGNMENT)]
        while size_class <= self.plain_count and self.block_bytes[size_class] % alignment:
            size_class += 1
        return self.routes[self.block_bytes[size_class] // ALIGNMENT] if size_class <= self.plain_count else 0


def _block_sizes(steps: int) -> list[int]:
    sizes = list(range(ALIGNMENT, 257, ALIGNMENT))
    for magnitude in range(8, 15):
        step = max(ALIGNMENT, (1 << magnitude) // steps)
        sizes += range((1 << magnitude) + step, (2 << magnitude) + 1, step)
    return sizes


def _units(block_bytes: int, unit_bytes: int) -> int:
    units = 1
    while units * unit_bytes < min(LEAST_BLOCKS * block_bytes, LARGEST_SLAB_BYTES):
        units *= 2
    return units
