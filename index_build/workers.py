"""Several processes that build shards side by side."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.progress import Progress
from ratchet.index_build.chunks import Chunker
from ratchet.index_build.content import ContentFactory, drop_encoded_parts, encoding_folder, open_content_factory
from ratchet.index_build.plan import PlannedShard, shard_name
from ratchet.index_build.shard import build_shard
from ratchet.retrieval.layout import SHARDS, IndexSettings

PR_SET_PDEATHSIG = 1
_done: Any = None
_contents: ContentFactory | None = None


def build_planned_shard(
    target: Path,
    number: int,
    piece: PlannedShard,
    settings: str,
    chunker: Chunker,
    contents: ContentFactory,
    advance: Callable[[int], None],
) -> None:
    """Build one shard of the plan, and delete its encoded parts when it is finished."""
    shard = target / SHARDS / shard_name(number)
    kept = encoding_folder(shard)
    build_shard(shard, piece, settings, chunker, lambda folder: contents.make(folder, kept), advance)
    drop_encoded_parts(shard)


def build_with_workers(
    config: IndexConfig,
    chunker: Chunker,
    settings: IndexSettings,
    pieces: Sequence[tuple[int, PlannedShard]],
    workers: int,
    progress: Progress,
) -> None:
    """Build some shards in `workers` processes. They end with this one, however it ends."""
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        min(workers, len(pieces)), context, initializer=_start, initargs=(done, os.getpid())
    ) as pool:
        left: set[Future[None]] = set()
        try:
            with _delay_ctrl_c():
                left.update(pool.submit(_build, config, chunker, settings, n, piece) for n, piece in pieces)
            while left:
                finished, left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION)
                _drain(done, progress)
                for future in finished:
                    future.result()
        except BrokenProcessPool as error:
            left = set()  # the pool fails them itself, and does not bear that they are cancelled meanwhile
            raise UserError(
                "a worker was killed, most likely for want of memory; run the same command again with fewer --workers"
            ) from error
        except KeyboardInterrupt:
            for process in set(multiprocessing.active_children()) - before:
                process.kill()  # they would otherwise finish their shards first
            left = set()  # as above
            raise
        finally:
            for future in left:
                future.cancel()
    _drain(done, progress)


@contextmanager
def _delay_ctrl_c() -> Iterator[None]:
    """Delay SIGINT until the block ends. Processes that start in the block have SIGINT blocked from their start."""
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))  # our threads do not block
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # what the processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _drain(done: Any, progress: Progress) -> None:
    while True:
        try:
            progress.advance(done.get_nowait())
        except queue.Empty:
            return


def _start(done: Any, parent: int) -> None:
    global _done
    _done = done
    # Linux kills us when the parent goes; elsewhere a killed parent's workers finish their shard first.
    with_prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if with_prctl is not None:
        with_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _build(
    config: IndexConfig,
    chunker: Chunker,
    settings: IndexSettings,
    number: int,
    piece: PlannedShard,
) -> None:
    global _contents
    if _contents is None:  # an encoder is loaded once
        _contents = open_content_factory(config)
    build_planned_shard(Path(config.path), number, piece, settings.key, chunker, _contents, _done.put)
