"""A bar for commands that search for as many seconds as they are told."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tqdm import tqdm

LEAST_SECONDS = 2.0  # that need a bar
_FORM = "{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"


@contextmanager
def time_bar(seconds: float) -> Iterator[None]:
    """Show on stderr how much of the seconds is over while the body runs, if stderr is a terminal."""
    if seconds <= LEAST_SECONDS or not sys.stderr.isatty():
        yield
        return
    is_over = Event()
    began = time.monotonic()
    with tqdm(total=seconds, bar_format=_FORM, leave=False) as bar:

        def move() -> None:
            while not is_over.wait(0.1):
                bar.n = min(time.monotonic() - began, seconds)
                bar.refresh()

        mover = Thread(target=move, daemon=True)
        mover.start()
        try:
            yield
        finally:
            is_over.set()
            mover.join()
