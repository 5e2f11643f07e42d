"""The callback around the steps: it writes log.jsonl and the line of progress, decides when to evaluate and save,
keeps the evaluated adapters, and ends at a request to stop."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_log, write_atomic
from ratchet.core.progress import Progress
from ratchet.training.checkpoints import EvaluatedAdapters, seal
from ratchet.training.processes import adapter_weights

SAVE_SECONDS = 600.0
"""The longest time between checkpoints, and so the work that a kill costs: steps may take minutes."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Requests to stop, as clusters send them: training saves a checkpoint after the step and ends."""


class StopRequest:
    """Within the block the first of SIGNALS is remembered; when the block ends, the process stops as for a SIGTERM.

    `commands.arguments` turns that into the exit status 143. Further signals change nothing, since SLURM sends some
    more than once; Ctrl-C and SIGKILL end training at once, and it resumes from the checkpoint before.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: dict[signal.Signals, Any] = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            name = signal.Signals(number).name
            print(f"\n{name}: training ends after this step, with a checkpoint", file=sys.stderr, flush=True)
        self.received = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python handles signals there alone
            self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()
        if self.received and kind is None:
            signal.raise_signal(signal.SIGTERM)

    def end(self) -> None:
        """Stop the process within the block, where there is nothing to save first."""
        self._restore()
        signal.raise_signal(signal.SIGTERM)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class TrainingCallback(TrainerCallback):
    """Callback of one training. Every process has one; only the main one writes."""

    def __init__(self, folder: Path, eval_steps: int, has_dev: bool, first: int = 1) -> None:
        """`first`: the first step that changes the adapter; before it there is nothing to keep."""
        self.folder, self.eval_steps, self.has_dev, self.first = folder, eval_steps, has_dev, first
        self.log = folder / "log.jsonl"
        self.evaluated = EvaluatedAdapters(folder)
        self.stop_request = StopRequest()
        self._segment: Segment | None = None
        self._progress: Progress | None = None
        self._seconds = self._began = 0.0
        self._saved = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._saved = time.monotonic()
        if not state.is_world_process_zero:
            return
        # Lines of steps after the checkpoint are written again as those steps are done again.
        kept = [line for line in read_log(self.log) if line["step"] <= state.global_step] if state.global_step else []
        write_atomic(self.log, "".join(json.dumps(line) + "\n" for line in kept))
        self._segment = Segment(self.log)
        self._progress = Progress("training", state.max_steps, done=state.global_step).__enter__()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize()  # the last backward pass may still run
        self._seconds += time.monotonic() - self._began
        due = self._is_due(state)
        overdue, told = self._agree()
        control.should_log = True
        control.should_evaluate = self.has_dev and due
        control.should_save = state.global_step >= self.first and (due or overdue or told)
        if told:
            self.stop_request.received = control.should_training_stop = True  # it may be another process that was told

    def _is_due(self, state: TrainerState) -> bool:
        """True where an adapter is evaluated at this step."""
        return state.global_step >= state.max_steps or state.global_step % self.eval_steps == 0

    def _agree(self) -> tuple[bool, bool]:
        """(whether a checkpoint is overdue, whether training was told to stop), the same in all processes: saving is a
        joint act. The main process's clock decides, and a signal to any of them."""
        answers = [(time.monotonic() - self._saved > SAVE_SECONDS, self.stop_request.received)]
        if PartialState().num_processes > 1:
            answers = gather_object(answers)
        return answers[0][0], any(told for _, told in answers)

    def end_if_told(self) -> None:
        """End before the first step where any process was told to stop; all processes have to ask."""
        if self._agree()[1]:
            self.stop_request.end()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        loss = logs["loss"]
        self._check_finite("training", loss, state.global_step)
        line = {
            "step": state.global_step,
            "loss": loss,
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm"),
            "tokens": int(logs["tokens"]),
            "tokens_per_second": round(logs["tokens"] / max(self._seconds, 1e-9), 1),
        }
        note = f"loss {loss:.4f}  {line['tokens_per_second']:.0f} tokens/s"
        self._seconds = 0.0
        if self._segment and self._progress:
            self._segment.append(line)
            self._progress.advance(note=note)

    def _check_finite(self, which: str, loss: float, step: int) -> None:
        if not math.isfinite(loss):
            raise UserError(
                f"the {which} loss is {loss} at step {step}: lower training.learning_rate, and delete {self.folder} to "
                "start again"
            )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        dev_loss = (metrics or {})["eval_loss"]
        self._check_finite("dev", dev_loss, state.global_step)
        weights = adapter_weights(model)
        if not self._segment:
            return
        self._segment.append({"step": state.global_step, "dev_loss": dev_loss})
        if state.global_step >= self.first:
            self.evaluated.keep(model, weights, state.global_step, dev_loss)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        weights = adapter_weights(model)
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            if not self.has_dev and self._is_due(state):
                self.evaluated.keep(model, weights, state.global_step, None)
            seal(self.folder / f"checkpoint-{state.global_step}")
        PartialState().wait_for_everyone()  # the first process to end may end the others, as srun does
        self._saved = time.monotonic()

    def close(self) -> None:
        if self._segment:
            self._segment.close()
        if self._progress:
            self._progress.close()
