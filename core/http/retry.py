"""Retries of requests: only for what is transient, with exponential backoff."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

T = TypeVar("T")

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be gone on the next try; any other 4xx says that the request itself is wrong."""
AWAY = frozenset({502, 503})
"""Those that say that nobody is there to answer now."""


@dataclass(frozen=True)
class Backoff:
    """Waits of 0 to `first`, 0 to 2 `first`, 0 to 4 `first`... seconds ("full jitter"), none above `longest`."""

    tries: int = 7
    first: float = 1.0
    longest: float = 30.0

    def wait(self, failed: int, retry_after: float | None = None) -> float:
        """Seconds to wait after `failed` tries; never less than the server's own Retry-After."""
        wait = random.uniform(0, min(self.longest, self.first * 2.0 ** (failed - 1)))
        return max(wait, retry_after or 0.0)


class TryAgain(Exception):
    """An attempt failed for a reason that may be gone on the next one."""

    def __init__(self, problem: str, retry_after: float | None = None) -> None:
        super().__init__(problem)
        self.retry_after = retry_after


def retry(attempt: Callable[[], T], backoff: Backoff) -> T:
    """Return what `attempt` returns; it is called again while it raises TryAgain, which its last failure raises too.

    Where the server asks for a longer wait than the longest, there is no further attempt.
    """
    failed = 0
    while True:
        try:
            return attempt()
        except TryAgain as fault:
            failed += 1
            if failed >= backoff.tries or (fault.retry_after or 0) > backoff.longest:
                raise TryAgain(f"{fault} (after {failed} tries)") from fault
            time.sleep(backoff.wait(failed, fault.retry_after))


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the seconds of an answer's Retry-After: a number or an HTTP date, which counts from the answer's own Date;
    None for neither."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        moment = _http_date(value)
        if moment is None:
            return None
        seconds = (moment - (_http_date(headers.get("date", "")) or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
