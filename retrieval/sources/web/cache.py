"""Responses on disk, one JSON file a request: the same request gets the same response, which makes a run repeatable.

The file's name is a digest of service, address and request, without key or contact. Nothing expires: a run that is to
see today's web has a folder of its own. A damaged file counts as none (replay says which one it is).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from ratchet.core.files import read_json_file, write_json
from ratchet.core.records import content_key
from ratchet.retrieval.errors import SourceError

Mode = Literal["live", "replay"]
"""live: from the disk, else fetched and stored. replay: from the disk."""


class ResponseCache:
    """Stores every response, and returns it for an equal request."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self._folder, self._mode = folder, mode
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, service: str, request: dict[str, Any], query: str, fetch: Callable[[], Awaitable[str]]) -> str:
        """The response's text. Of equal requests at once, one is sent and the others wait for it. SourceError."""
        key = content_key(service, request)
        path = self._folder / service / f"{key}.json"
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            stored = await asyncio.to_thread(_read, path, request)
            if stored is not None:
                return stored
            if self._mode == "replay":
                what = "is damaged" if path.exists() else "is not there"
                raise SourceError(
                    f"{service}: mode: replay has no stored answer for {query!r} ({path} {what}); mode: live would "
                    "fetch and store it"
                )
            text = await fetch()
            entry = {"request": request, "fetched": datetime.now(UTC).isoformat(timespec="seconds"), "response": text}
            await asyncio.to_thread(write_json, path, entry)
            return text


def _read(path: Path, request: dict[str, Any]) -> str | None:
    try:
        entry = read_json_file(path)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("request") != request:
        return None
    text = entry.get("response")
    return text if isinstance(text, str) else None
