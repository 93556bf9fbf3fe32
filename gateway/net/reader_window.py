"""Tells whether a reader has taken what was sent: by the window that its kernel offers.

The receive buffer of a slow reader is a queue like our own, and the last one in which results grow
old: what is in there cannot be replaced by newer ones. Measured, 30 results of 50 kB a second for
a client that reads 1 MB/s: 99 % of them 0.14 s old at most, 0.17 s without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# While there is no room it is looked for this often, and so long is waited at most, because windows
# are told late and need not ever open wide.
POLL_S, WAIT_S = 0.005, 0.25


class ReaderWindow:
    """One connection's; ``read`` asks the kernel, and ``wake`` is called when to ask again."""

    def __init__(
        self,
        read: Callable[[], int | None],
        wake: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._read = read
        self._wake = wake
        self._loop = loop
        self._widest = 0  # that the peer has told
        self._narrow_since: float | None = None
        self._poll: asyncio.TimerHandle | None = None

    def is_open(self, now: float) -> bool:
        """Whether more than half of the reader's buffer is free, as far as is known.

        Then it need not tell of any more: Linux does when its room has doubled. To wait for
        acknowledgements instead would slow down whoever is far away.
        """
        window = self._read()
        if window is None:
            return True
        self._widest = max(self._widest, window)
        if 2 * window > self._widest:
            self._narrow_since = None
            return True
        if self._narrow_since is None:
            self._narrow_since = now
        elif now - self._narrow_since >= WAIT_S:
            self._narrow_since = None
            self._widest = window  # its buffer may have become smaller
            return True
        if self._poll is None:
            self._poll = self._loop.call_later(POLL_S, self._ask_again)
        return False

    def stop(self) -> None:
        """Call nobody any more; idempotent."""
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None

    def _ask_again(self) -> None:
        self._poll = None
        self._wake()
