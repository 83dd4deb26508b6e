"""`dcfl watch`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from dcfl.errors import ConfigError
from dcfl.system.printable import printable
from dcfl.system.processes import handlers_put_back, stop_when_signalled

Watched = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        show_default=False,
        help="Run folders, or folders of them; they need not exist yet.",
    ),
]
Port = Annotated[int, typer.Option(metavar="N", help="On this port; by default any free one.")]
Open = Annotated[bool, typer.Option("--open", help="Open it in a browser.")]


def watch(folders: Watched, port: Port = 0, open_browser: Open = False) -> None:
    """A page that follows runs as they go, on this machine alone. Ctrl-C ends it.

    It may begin before the runs do, and it goes on when they end, stop or are resumed.
    """
    from dcfl.report.watch import watching

    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder")
    ended = threading.Event()
    with handlers_put_back(), watching(folders, port) as server:
        stop_when_signalled(ended.set)
        print(printable(f"watching  {server.address}  (Ctrl-C ends it)"), flush=True)
        if open_browser:
            import webbrowser

            webbrowser.open(server.address)
        ended.wait()
