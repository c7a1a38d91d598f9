"""hakmem serve: statistics and profiles of running processes for tools that pull them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

LOOPBACK = ("127.0.0.1", "[::1]")


@click.command()
@click.option("--addr", "address", metavar="ADDRESS:PORT", help="Of this machine: 127.0.0.1 or [::1]; port 0: any.")
@click.option("--socket", type=click.Path(path_type=Path), help="A unix socket, which only you may open.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Its first line is what who asks must know; with --addr, one is made unless given.",
)
def command(address: str | None, socket: Path | None, token_file: Path | None) -> None:
    """Serves what your processes on hakmem say of themselves; of root, everybody's.

    \b
    /metrics            statistics of all, for Prometheus
    /debug/pprof/heap   heap profiles, for pprof, Parca, Pyroscope; ?pid=N: of one process
    /debug/pprof/pins   whose blocks hold the pages that can't go back

    Statistics come from processes that have a control thread (`hakmem ctl`), profiles from those that are sampled. Any
    user of the machine reaches an address, so who asks must send the token: as a bearer token, or as the password of
    any user in the URL.

    It runs until Ctrl-C, SIGTERM or SIGHUP. To end so is no failure of a server: its exit status is 0, then too.
    """
    import os
    import sys

    from hakmem import extras, files
    from hakmem.errors import LabError

    if (address is None) == (socket is None):
        raise LabError("expected one of --addr and --socket")
    extras.expect("serve", "hakmem serve")
    import waitress

    from hakmem import serve

    token: str | None = None
    if address is not None:
        host, _, port = address.rpartition(":")
        if host not in LOOPBACK or not port.isdecimal() or int(port[:6]) > 65535:
            raise LabError(f"--addr {address}: expected a port of this machine, such as 127.0.0.1:9470")
        token, is_made = serve.token_of(token_file)
    elif token_file is not None:
        token, is_made = serve.token_of(token_file)
    if socket is not None:
        files.expect_name(str(socket), "--socket")
        serve.expect_unserved(socket)
    os.umask(0o077)
    options = {"listen": address} if address is not None else {"unix_socket": str(socket), "unix_socket_perms": "600"}
    try:
        server = waitress.create_server(serve.Application(token), **serve.SERVER, **options)
    except (OSError, ValueError) as error:
        what = address or f"can't write {socket}"
        raise LabError(f"{what}: {getattr(error, 'strerror', None) or error}") from None
    with contextlib.suppress(KeyboardInterrupt):  # also before it runs
        if address is not None:
            host, port = server.socket.getsockname()[:2]
            print(f"hakmem: serving at http://{LOOPBACK[1] if ':' in host else host}:{port}", file=sys.stderr)
            if is_made:
                print(f"hakmem: token {token}", file=sys.stderr)
        else:
            print(f"hakmem: serving at {socket}", file=sys.stderr)
        server.run()
