"""Heap profiles in the format of pprof: profile.proto, gzipped, which `go tool pprof`, Parca and Pyroscope read."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hakmem.profile import Frame, Profile
from hakmem.symbols import Mapping

# github.com/google/pprof/proto/profile.proto: fields by message, as name, number, type; [] is repeated.
MESSAGES = {
    "ValueType": [("type", 1, "int64"), ("unit", 2, "int64")],
    "Label": [("key", 1, "int64"), ("str", 2, "int64"), ("num", 3, "int64"), ("num_unit", 4, "int64")],
    "Sample": [("location_id", 1, "uint64[]"), ("value", 2, "int64[]"), ("label", 3, "Label[]")],
    "Mapping": [
        ("id", 1, "uint64"),
        ("memory_start", 2, "uint64"),
        ("memory_limit", 3, "uint64"),
        ("file_offset", 4, "uint64"),
        ("filename", 5, "int64"),
        ("build_id", 6, "int64"),
        ("has_functions", 7, "bool"),
    ],
    "Line": [("function_id", 1, "uint64"), ("line", 2, "int64")],
    "Location": [("id", 1, "uint64"), ("mapping_id", 2, "uint64"), ("address", 3, "uint64"), ("line", 4, "Line[]")],
    "Function": [("id", 1, "uint64"), ("name", 2, "int64"), ("system_name", 3, "int64"), ("filename", 4, "int64")],
    "Profile": [
        ("sample_type", 1, "ValueType[]"),
        ("sample", 2, "Sample[]"),
        ("mapping", 3, "Mapping[]"),
        ("location", 4, "Location[]"),
        ("function", 5, "Function[]"),
        ("string_table", 6, "string[]"),
        ("time_nanos", 9, "int64"),
        ("duration_nanos", 10, "int64"),
        ("period_type", 11, "ValueType"),
        ("period", 12, "int64"),
        ("comment", 13, "int64[]"),
        ("default_sample_type", 14, "int64"),
    ],
}


@cache
def profile_class() -> Any:
    """The message Profile."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for title, fields in MESSAGES.items():
        message = file.message_type.add(name=title)
        for name, number, words in fields:
            kind = words.removesuffix("[]")
            added = message.field.add(name=name, number=number)
            added.label = kinds.LABEL_REPEATED if words.endswith("[]") else kinds.LABEL_OPTIONAL
            added.type = getattr(kinds, f"TYPE_{kind.upper()}", kinds.TYPE_MESSAGE)
            if added.type == kinds.TYPE_MESSAGE:
                added.type_name = f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


class _Builder:
    """Numbers for strings, functions, locations and mappings, each given once."""

    def __init__(self) -> None:
        self.message = profile_class()()
        self.strings: dict[str, int] = {}
        self.functions: dict[tuple[str, str], int] = {}
        self.locations: dict[Frame, int] = {}
        self.mappings: dict[Mapping, int] = {}
        self.string("")

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings)
            self.message.string_table.append(text)
        return self.strings[text]

    def mapping(self, mapping: Mapping) -> int:
        if mapping not in self.mappings:
            self.mappings[mapping] = len(self.mappings) + 1
            self.message.mapping.add(
                id=self.mappings[mapping],
                memory_start=mapping.start,
                memory_limit=mapping.end,
                file_offset=mapping.offset,
                filename=self.string(mapping.path),
                has_functions=True,
            )
        return self.mappings[mapping]

    def function(self, frame: Frame) -> int:
        key = (frame.module, frame.name)
        if key not in self.functions:
            self.functions[key] = len(self.functions) + 1
            name = self.string(frame.name)
            # Where both names are the same, pprof takes <module> for a template's arguments, and drops it.
            system_name = 0 if frame.is_of_python else name
            self.message.function.add(
                id=self.functions[key], name=name, system_name=system_name, filename=self.string(frame.module)
            )
        return self.functions[key]

    def location(self, frame: Frame) -> int:
        if frame not in self.locations:
            self.locations[frame] = len(self.locations) + 1
            added = self.message.location.add(id=self.locations[frame], address=frame.address)
            if frame.mapping:
                added.mapping_id = self.mapping(frame.mapping)
            added.line.add(function_id=self.function(frame), line=frame.line or 0)
        return self.locations[frame]


SAMPLE_TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)


@dataclass(frozen=True)
class Row:
    """A sample: its stack, the innermost frame first, a value of each type, the mean size of its blocks; and labels."""

    frames: tuple[Frame, ...]
    values: tuple[float, ...]
    size: float
    labels: tuple[tuple[str, str], ...] = ()


def encode(profile: Profile) -> bytes:
    rows, interval, elapsed_s = rows_of(profile), profile.interval_bytes, profile.elapsed_s
    return encode_rows(rows, SAMPLE_TYPES, "inuse_space", interval, elapsed_s, profile.nameless)


def rows_of(profile: Profile) -> list[Row]:
    return [
        Row(
            site.frames,
            (figures.total_count, figures.total_bytes, figures.live_count, figures.live_bytes),
            figures.mean_size,
        )
        for site in sorted(profile.sites, key=lambda site: -abs(site.figures.live_bytes))
        for figures in (site.figures,)
    ]


def _within(number: float) -> int:
    return max(-(1 << 63), min(round(number), (1 << 63) - 1))


def encode_rows(
    rows: Iterable[Row],
    types: Iterable[tuple[str, str]],
    default: str,
    interval_bytes: int,
    elapsed_s: float,
    remarks: Iterable[str] = (),
) -> bytes:
    """`types` are names and units of the values, of which `default` is shown first; `remarks` are lines to be shown
    with them. Numbers of a spoiled process are kept within what the format has."""
    builder = _Builder()
    message = builder.message
    for name, unit in types:
        message.sample_type.add(type=builder.string(name), unit=builder.string(unit))
    message.default_sample_type = builder.string(default)
    message.comment.extend(map(builder.string, remarks))
    message.period_type.type, message.period_type.unit = builder.string("space"), builder.string("bytes")
    message.period = _within(interval_bytes)
    message.duration_nanos = _within(elapsed_s * 1e9)
    for row in rows:
        sample = message.sample.add()
        sample.location_id.extend(builder.location(frame) for frame in row.frames)
        sample.value.extend(map(_within, row.values))
        sample.label.add(key=builder.string("bytes"), num=_within(row.size), num_unit=builder.string("bytes"))
        for key, text in row.labels:
            sample.label.add(key=builder.string(key), str=builder.string(text))
    return gzip.compress(message.SerializeToString(), mtime=0)
