"""A config's experiment from Python: `from ratchet import Experiment`.

    with Experiment("configs/demo.yaml") as experiment:
        print(experiment.ask("Who built the ferry Oarabel?").answer)

`await experiment.aask(...)` asks several questions at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.core.tasks import run_outside_event_loop
from ratchet.questions.manifest import open_run

if TYPE_CHECKING:  # these packages stand above this one, and are imported when a method needs them
    import pyarrow as pa

    from ratchet.core.records import Event, Passage, Question, Trajectory
    from ratchet.evaluation.results import Results
    from ratchet.retrieval.retriever import Retriever
    from ratchet.sampling.ask import SystemRunner

T = TypeVar("T")


class Experiment:
    """The experiment of a config. Index and models are opened by the first call that needs them and stay open until
    `close`, or the end of a `with` block.

    Its methods may be called where an event loop runs already, as in a notebook. What is wrong with a config or a
    folder is a UserError. `sample` and `evaluate` run the stages, which open models for themselves and resume what is
    on disk.
    """

    def __init__(self, config: str | Path | Config, overrides: Sequence[str] = ()) -> None:
        """`config` is a file, or a config that was read. `overrides`: as `--set`, such as "sampling.samples=4"."""
        from ratchet.commands.config import open_config  # late: an import does no work

        self.config = config if isinstance(config, Config) else open_config(config, overrides)
        self._lock = threading.Lock()
        self._index: Retriever | None = None
        self._runner: SystemRunner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.config.folder)

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str, k: int = 5) -> list[Passage]:
        """The best `k` passages of the index for a query."""
        with self._lock:
            if self._index is None:
                from ratchet.retrieval.opening import open_index

                self._index = open_index(self.config.index)
        return self._index.search(query, k)

    def ask(
        self,
        question: str | Question,
        adapter: str | Path | None = None,
        *,
        sample: bool = False,
        watch: Callable[[Event], None] | None = None,
    ) -> Trajectory:
        """Let the system answer a question, and return all of its work, as `SystemRunner.ask` does."""
        return self._submit(self._ask(question, adapter, sample, watch)).result()

    async def aask(
        self,
        question: str | Question,
        adapter: str | Path | None = None,
        *,
        sample: bool = False,
        watch: Callable[[Event], None] | None = None,
    ) -> Trajectory:
        """`ask`; several questions may be asked at once."""
        return await asyncio.wrap_future(self._submit(self._ask(question, adapter, sample, watch)))

    def sample(self, n: int | None = None, *, round: int = 1, adapter: str | Path | None = None) -> list[Trajectory]:
        """Sample the trajectories of a round into the run folder, as `ratchet sample` does, and return them.

        With `n`, those of the first `n` training questions. What is on disk is not sampled again.
        """
        return run_outside_event_loop(lambda: self._sample(n, round, adapter))

    def trajectories(self, round: int | None = None) -> pa.Table:
        """The sampled trajectories of the run with their scores, one a row: `ratchet.read_run`."""
        from ratchet.report.run_table import read_run

        return read_run(self.config.folder, round)

    def evaluate(
        self, adapter: str | Path | None = None, *, round: int = 1, splits: Sequence[str] = ()
    ) -> list[Results]:
        """Measure the base model, an adapter and the baselines, as `ratchet evaluate` does: one result for each split.

        The default adapter is the round's, or none where the round has none; the default splits are the config's.
        """
        return run_outside_event_loop(lambda: self._evaluate(adapter, round, splits))

    def close(self) -> None:
        """Close the index and the models. A later call opens them again."""
        with self._lock:
            loop, thread, self._loop, self._thread, self._index = self._loop, self._thread, None, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close_runner(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the event loop that the models belong to, which has a thread of its own."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="ratchet-experiment", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _ask(
        self,
        question: str | Question,
        adapter: str | Path | None,
        sample: bool,
        watch: Callable[[Event], None] | None,
    ) -> Trajectory:
        if self._runner is None:
            from ratchet.commands.ask import open_runner

            self._runner = open_runner(self.config)
        return await self._runner.ask(question, adapter, sample=sample, watch=watch)

    async def _close_runner(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.close()

    def _sample(self, n: int | None, round: int, adapter: str | Path | None) -> list[Trajectory]:
        from ratchet.commands.sample import sample_round
        from ratchet.sampling.store import TrajectoryStore

        if n is not None and n < 1:
            raise UserError(f"sample: n={n}; give the number of questions, at least 1")
        sampled = sample_round(self.config, round, adapter, first=n)
        found = {trajectory.key: trajectory for trajectory in TrajectoryStore(sampled.folder).read(sampled.keys)}
        return [found[key] for key in sampled.keys]

    def _evaluate(self, adapter: str | Path | None, round: int, splits: Sequence[str]) -> list[Results]:
        from ratchet.evaluation.round_arms import evaluate
        from ratchet.inference.adapters import is_adapter

        splits = splits or self.config.evaluation.question_sets
        folder = open_run(self.config, splits).round(round)
        chosen = Path(adapter) if adapter is not None else folder.adapter
        has_adapter = is_adapter(chosen)
        if adapter is not None and not has_adapter:
            raise UserError(f"{adapter}: there is no adapter here")
        return evaluate(self.config, folder, splits, chosen if has_adapter else None)
