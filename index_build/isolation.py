"""HTML and PDF files read in a process of their own, with limits of time and memory that a hostile file meets."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from ratchet.core.errors import UserError
from ratchet.index_build.markup import read_markup

SECONDS = 120
"""For one file. pypdf reads some 20 to 100 pages a second."""
MEMORY_BYTES = 4 << 30
"""Of address space, for all of the process."""


class MarkupReader:
    """Reads one file after the other in a process, which starts with the first file and ends with the `with` block."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def read(self, path: Path) -> tuple[str, str]:
        """(title, text), as `read_markup` gives them. Raises UserError, also for a file that takes too long."""
        connection = self._connection or self._start()
        try:
            connection.send_bytes(str(path).encode())
            if not connection.poll(SECONDS):
                raise UserError(
                    f"{path}: takes longer than {SECONDS} s to read; divide it, or remove it from the folder"
                )
            answer = json.loads(connection.recv_bytes())
        except (EOFError, OSError, ValueError) as error:
            self.close()
            raise UserError(f"{path}: the process that read it ended; remove it from the folder") from error
        except BaseException:
            self.close()
            raise
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["title"], answer["text"]

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        return self._connection

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None and self._connection is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = self._connection = None

    def __enter__(self) -> MarkupReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    with contextlib.suppress(ValueError, OSError):  # where the system has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(EOFError, OSError):
        while True:
            path = Path(connection.recv_bytes().decode())
            try:
                title, text = read_markup(path)
                answer = {"title": title, "text": text}
            except UserError as error:
                answer = {"error": str(error)}
            except MemoryError:
                answer = {"error": f"{path}: takes more than {MEMORY_BYTES >> 30} GB of memory to read; divide it"}
            # JSON: what comes back is data, also from a hostile file.
            connection.send_bytes(json.dumps(answer).encode())
