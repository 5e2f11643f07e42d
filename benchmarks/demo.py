"""Where each second of a self-training run goes, by stage and kind of work.

    pip install '.[benchmark]'
    python -m benchmarks.demo [--config configs/demo.yaml] [--run runs/demo_profile] [--set KEY=VALUE] [--rate 50]
    python -m benchmarks.demo --other CHECKOUT          instead: the same run by another checkout, then by this one

Every stage of the run that is not done runs under py-spy, which looks at the Python stacks of all its processes and
threads and counts those that compute: each for the first of RULES that fits its stack. Threads that a library starts
on its own (for a matrix product, say) have no Python stack: only the row of CPU time, which the operating system
counts, includes them. A stack does not say whether a forward pass prefills or decodes, since a step does both, nor, in
training, whether a linear layer is the model's or the adapter's.

RUN/profile holds the stacks of each stage in the format of flame graphs. Stages that were done before are shown as they
were measured then.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from commands import selftrain
from commands.arguments import run_command
from ratchet.errors import UserError
from ratchet.files import read_record, write_record
from ratchet.records import Record
from ratchet.runfolder import RunFolder
from ratchet.tables import new_table, print_table

RULES: tuple[tuple[str, str], ...] = (
    ("importing", r"<frozen importlib|importlib/__init__"),
    ("compiling kernels", r"numba/core|llvmlite/"),
    ("loading models", r"load_causal_model|load_tokenizer|from_pretrained|get_peft_model"),
    ("optimizer", r"Optimizer\.\w*step|torch/optim|clip_grad"),
    ("backward pass", r"_engine_run_backward"),
    ("adapter", r"inference/local/lora\.py"),
    ("attention", r"attend_tiles|paged_attention|sdpa_attention|prompt_attention|scaled_dot_product"),
    (
        "output head",
        r"Head\.forward|"
        r"ForCausalLM\.forward [^;]*;([^;]*nn/modules/module\.py[^;]*;)*Linear\.forward|cross_entropy",
    ),
    ("linear layers", r"Linear\.forward|Product\.__call__"),
    ("norms, activations, rotary", r"modeling_\w+\.py|Decoder\."),
    ("choosing tokens", r"Scheduler\._sample_next"),
    ("engine, between steps", r"inference/local/"),
    ("search", r"retrieval/|index_build/"),
    ("agents, records, asyncio", r""),
)
"""Kinds of work, each with a pattern of the frames (outermost first, joined by ';') that belong to it; the first that
fits counts."""


class StageProfile(Record):
    """What one stage took."""

    title: str
    wall: float
    """Seconds."""
    cpu: float
    """CPU seconds of all its processes."""


def main(words: Sequence[str] | None = None) -> None:
    """Run what is not done under the profiler, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", default="configs/demo.yaml", help="default: %(default)s")
    parser.add_argument("--run", type=Path, default=Path("runs/demo_profile"), help="default: %(default)s")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rate", type=int, default=50, help="looks a second (default: %(default)s)")
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="time its stages and these, without a profiler")
    options = parser.parse_args(words)
    if options.other:
        compare(options.other.resolve(), options.config, options.run, options.overrides)
        return
    folder = RunFolder(options.run).path / "profile"
    profiler = Profiler(folder, options.rate)
    selftrain.run_stage = profiler.run_stage
    overrides = [word for one in (*options.overrides, f"run={options.run}") for word in ("--set", one)]
    selftrain.main(["--config", options.config, *overrides])
    show(folder, options.rate)


class Profiler:
    """Runs stages under py-spy, and keeps what each took in `folder`."""

    def __init__(self, folder: Path, rate: int) -> None:
        found = Path(sys.executable).with_name("py-spy")
        tool = str(found) if found.exists() else shutil.which("py-spy")
        if tool is None:
            raise UserError("py-spy is not installed: pip install '.[benchmark]'")
        self._start = (tool, "record", "--format=raw", "--threads", "--subprocesses", f"--rate={rate}")
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def run_stage(self, command: tuple[str, ...]) -> int:
        """In place of `selftrain.run_stage`. A stage that was interrupted and goes on replaces its earlier profile."""
        title = " ".join(Path(word).stem for word in command[1:] if word != "-m").partition(" --config")[0]
        name = f"{len(list(self._folder.glob('*.json'))):02d}-{re.sub(r'[^a-z]+', '-', title.lower())}"
        profile, used = self._folder / f"{name}.txt", self._folder / f"{name}.cpu"
        began = time.monotonic()
        status = _run_stage(
            (*self._start, f"--output={profile}", "--", sys.executable, "-c", TIMED, str(used), *command)
        )
        stage = StageProfile(title=title, wall=time.monotonic() - began, cpu=float(used.read_text()))
        write_record(self._folder / f"{name}.json", stage)
        used.unlink()
        return status


_run_stage = selftrain.run_stage


TIMED = """
import pathlib, resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
pathlib.Path(sys.argv[1]).write_text(str(used.ru_utime + used.ru_stime))
sys.exit(status)
"""
"""Runs a command and writes its CPU seconds to a file; py-spy does not wait for what it runs, so it cannot be asked."""


def kind_of(stack: str) -> str:
    """The kind of work of a stack, frames joined by ';' from the outermost."""
    return next(kind for kind, pattern in COMPILED if pattern.search(stack))


COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in RULES)


def seconds_by_kind(text: str, rate: int) -> Counter[str]:
    """Thread seconds by kind, of stacks in py-spy's raw format: frames, a blank and a count a line."""
    found: Counter[str] = Counter()
    for stack, count in re.findall(r"(.*?) (\d+)\n", text, re.DOTALL):  # a process's command may have several lines
        found[kind_of(stack)] += int(count)
    return Counter({kind: count / rate for kind, count in found.items()})


def compare(other: Path, config: str, run: Path, overrides: Sequence[str]) -> None:
    """Run everything by the other checkout and by this one, one after the other, and print the ratios of the stages."""
    said = []
    for name, checkout in (("before", other), ("now", Path.cwd())):
        words = [f"run={Path(f'{run}-{name}').resolve()}", *overrides]
        command = [sys.executable, "selftrain.py", "--config", config, *(w for one in words for w in ("--set", one))]
        print(f"== {name}: {checkout}", flush=True)
        ended = subprocess.run(
            command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, stdout=subprocess.PIPE, text=True
        )
        if ended.returncode:
            raise UserError(f"{' '.join(command)} in {checkout} ended with status {ended.returncode}:\n{ended.stdout}")
        said.append(ended.stdout)
    print_table(compare_stages(*map(stage_seconds, said)))


def stage_seconds(said: str) -> dict[str, int]:
    """What each stage took, by the lines that selftrain.py prints when it begins one and at the end."""
    found: dict[str, int] = {}
    stage, before = "", 0
    lines = r"^(?:== \d+/\d+ (.*?) \(|done in )(?:(\d+)m)?(\d+)s"
    for title, minutes, seconds in re.findall(lines, said, re.MULTILINE):
        now = 60 * int(minutes or 0) + int(seconds)
        if stage:
            found[stage] = now - before
        stage, before = title, now
    return {**found, "all": before}


def compare_stages(before: dict[str, int], now: dict[str, int]) -> Table:
    """Seconds of each stage that both have, and their ratio."""
    table = new_table(f"seconds, {os.cpu_count() or 1} cores", ["stage"], ["before", "now", "now / before"])
    for stage in now:
        if stage in before:
            ratio = f"{now[stage] / before[stage]:.2f}" if before[stage] else ""
            table.add_row(stage, str(before[stage]), str(now[stage]), ratio)
    return table


def show(folder: Path, rate: int) -> None:
    """Print seconds by kind (rows) and stage (columns)."""
    stages, kinds = [], []
    for path in sorted(folder.glob("*.json")):
        if (stage := read_record(path, StageProfile, "delete it")) is not None:
            stages.append(stage)
            kinds.append(seconds_by_kind(path.with_suffix(".txt").read_text(), rate))
    cores = os.cpu_count() or 1
    table = new_table(f"seconds, {cores} cores", ["kind"], [*(stage.title for stage in stages), "all"])
    row = lambda name, values, form="{:.1f}": table.add_row(name, *map(form.format, values))  # noqa: E731
    for kind, _ in RULES:
        row(kind, [*(found[kind] for found in kinds), sum(found[kind] for found in kinds)])
    walls, cpus = [one.wall for one in stages], [one.cpu for one in stages]
    row("wall time", [*walls, sum(walls)])
    row("CPU time, with library threads", [*cpus, sum(cpus)])
    row("cores in use", [c / w for c, w in zip([*cpus, sum(cpus)], [*walls, sum(walls)], strict=True)], "{:.2f}")
    print_table(table)


if __name__ == "__main__":
    run_command(main)
