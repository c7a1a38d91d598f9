"""Where the rounds of a measurement run: on this machine, or on those of a cluster (--on)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from hakmem import extras
from hakmem.measure import Here, Place

SSH = "ssh:"


def _on(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        extras.expect("cluster", "--on")
    return value


# --on, as argument on.
option = click.option(
    "--on",
    metavar="ADDRESS",
    callback=_on,
    help="run the rounds on the machines of a Dask cluster: tcp://SCHEDULER:8786, or ssh:FILE with a host a line",
)


@contextlib.contextmanager
def opened(on: str | None) -> Iterator[Place]:
    """LabError when there is no such cluster, or none of its machines can measure."""
    if on is None:
        yield Here()
        return
    from hakmem import cluster

    with cluster.over_ssh(on.removeprefix(SSH)) if on.startswith(SSH) else contextlib.nullcontext(on) as address:
        with cluster.connected(address) as place:
            yield place
