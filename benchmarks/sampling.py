"""The sampling pool against a barrier of fixed batches, on the same engine and the same work, in one run.

    python benchmarks/sampling.py [--config configs/demo.yaml] [--questions 10] [--places 16] [--json FILE]
    python benchmarks/sampling.py --url http://127.0.0.1:8000/v1      a vLLM server, with VLLM_SERVER_DEV_MODE=1

benchmarks/sampling_barriers.py has the three ways to run: the pool; fixed batches, as published code has them; and
batches that make one step at a time together. Every way has the same trajectories to sample (equal content keys, so
equal questions, seeds and settings), the same number of places, and an engine whose prefix cache is empty. Each comes
twice, the second time in the opposite order, so that what drifts on the machine meets all alike. Equal seeds do not
give equal tokens here (other neighbours in a batch, other rounding), so tokens are counted as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

# First in the path: this file is called sampling, and so is the package.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from agents.core.resources import open_resources
from agents.core.system import RunContext, load_system
from benchmarks.sampling_barriers import WAYS, Gauge, run
from commands.arguments import run_command
from inference.engines import close_engines, open_engines
from questions.load import load_questions
from ratchet.config import Config, load_config
from ratchet.errors import UserError
from ratchet.files import Segment, read_segments, write_json
from ratchet.progress import Progress
from ratchet.records import Question, Trajectory
from retrieval.loader import open_index
from sampling.pool import Task, plan_jobs


@dataclass(frozen=True)
class RunMeasurement:
    """One run of all trajectories."""

    way: str
    seconds: float
    cpu_seconds: float
    """Of this process: the work of an engine that runs in it, whatever else the machine does meanwhile."""
    trajectories: int
    statuses: dict[str, int]
    idle: float
    """Share of the time in which no request was at the engine."""
    in_flight: float
    """Requests at the engine, mean over the time, as a share of the places."""
    calls: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    load: float
    """The machine's load average before it: what else runs here."""

    @property
    def per_hour(self) -> float:
        return 3600 * self.trajectories / self.seconds


ROWS: tuple[tuple[str, Callable[[RunMeasurement], float], str], ...] = (
    ("trajectories an hour", lambda m: m.per_hour, ",.0f"),
    ("new tokens a second", lambda m: m.new_tokens / m.seconds, ",.0f"),
    ("engine without a request, of the time", lambda m: m.idle, ".1%"),
    ("requests in flight, of the places", lambda m: m.in_flight, ".0%"),
    ("prompt tokens from the prefix cache", lambda m: m.cached_tokens / max(1, m.prompt_tokens), ".1%"),
    ("model calls", lambda m: m.calls, ",.0f"),
    ("prompt tokens", lambda m: m.prompt_tokens, ",.0f"),
    ("new tokens", lambda m: m.new_tokens, ",.0f"),
    ("finished", lambda m: m.statuses.get("finished", 0), ",.0f"),
    ("seconds", lambda m: m.seconds, ",.0f"),
    ("CPU seconds of this process", lambda m: m.cpu_seconds, ",.0f"),
)


def measure(config: Config, questions: Sequence[Question], way: str, folder: Path) -> tuple[RunMeasurement, set[str]]:
    """Run all trajectories one way on engines that are opened for it; also their keys."""
    config = config.model_copy(update={"run": str(folder)})  # memory and caches of sources are each run's own
    system, places = load_system(config.system), config.sampling.concurrency
    assert places is not None, "--places sets it"
    setting = RunContext(
        config.sampling.temperature, config.sampling.frozen_temperature, config.sampling.top_p, None, "base"
    )
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(contextlib.closing(asyncio.Runner()))
        engines = open_engines(config.models, system.models)
        stack.callback(lambda: runner.run(close_engines(engines)))
        retriever = open_index(config.index)
        resources = open_resources(config.environment, retriever)
        stack.callback(lambda: runner.run(resources.close()))
        models = {role: engines[system.config.role(role).model].fingerprint for role in system.roles}
        jobs = plan_jobs(
            questions, config.sampling.samples, config.seed, config.system, setting, models, retriever.digest
        )
        segment = stack.enter_context(Segment(folder / "part-0.jsonl"))
        tasks = [Task(job, system, setting, segment) for job in jobs]
        empty_caches(config, system.models)
        load = os.getloadavg()[0]
        with Progress(way, len(tasks)) as progress:
            gauge, began, worked = Gauge(), time.perf_counter(), time.process_time()
            runner.run(run(way, tasks, engines, retriever, places, progress, gauge, resources))
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
            gauge.change(0)
    made = list(read_segments(folder, Trajectory))
    if {job.key for job in jobs} != {t.key for t in made} or len(made) != len(jobs):
        raise AssertionError(f"{way} did other work than was planned")
    calls = [call for trajectory in made for call in trajectory.model_calls]
    measured = RunMeasurement(
        way=way,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        trajectories=len(made),
        statuses=dict(Counter(t.status for t in made)),
        idle=gauge.idle / seconds,
        in_flight=gauge.request_seconds / seconds / places,
        calls=len(calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        new_tokens=sum(call.new_tokens for call in calls),
        load=load,
    )
    return measured, {t.key for t in made}


def empty_caches(config: Config, names: set[str]) -> None:
    """An engine of this process was just opened; a server is asked to forget what the run before left."""
    for model in (config.models[name] for name in names):
        for url in (model.url,) if isinstance(model.url, str) else model.url or ():
            address = url.rstrip("/").removesuffix("/v1") + "/reset_prefix_cache"
            key = os.environ.get(model.api_key_env, "")
            try:
                answer = httpx.post(address, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=60)
            except httpx.HTTPError as error:
                raise UserError(f"{address}: no answer ({error})") from None
            if not answer.is_success or not answer.json().get("success", True):
                raise UserError(
                    f"{address} answered {answer.status_code}: without an empty prefix cache the later runs would be "
                    "ahead; start the server with VLLM_SERVER_DEV_MODE=1 in its environment, for this benchmark alone"
                )


def table(runs: Sequence[RunMeasurement]) -> str:
    """A column a way: the mean of its runs, and of the speed also each run; ratios to the pool under it."""
    by_way = {way: [measured for measured in runs if measured.way == way] for way in WAYS}
    lines = [f"{'':40}" + "".join(f"{way:>22}" for way in by_way)]
    for title, value, form in ROWS:
        cells = []
        for found in by_way.values():
            values = [value(measured) for measured in found]
            each = f" ({', '.join(format(v, form) for v in values)})" if title == ROWS[0][0] else ""
            cells.append(f"{format(fmean(values), form)}{each}")
        lines.append(f"{title:40}" + "".join(f"{cell:>22}" for cell in cells))
        if title == ROWS[0][0]:
            pool = fmean(m.per_hour for m in by_way["pool"])
            ratios = [pool / fmean(m.per_hour for m in found) for found in by_way.values()]
            lines.append(f"{'the pool is faster, times':40}" + "".join(f"{ratio:>22.2f}" for ratio in ratios))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="the sampling pool against a barrier of fixed batches")
    parser.add_argument("--config", default="configs/demo.yaml")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--questions", type=int, default=10, help="training questions, the first ones (default 10)")
    parser.add_argument("--places", type=int, default=16, help="width of the pool, size of a batch (default 16)")
    parser.add_argument("--repetitions", type=int, default=2, help="of each way (default 2)")
    parser.add_argument("--url", help="a vLLM server that serves the config's models, in place of their engines")
    parser.add_argument("--json", help="write every run's numbers to this file")
    options = parser.parse_args()
    config = load_config(options.config, [*options.overrides, f"sampling.concurrency={options.places}"])
    if options.url:
        served = {
            name: model.model_copy(update={"engine": "vllm", "url": options.url})
            for name, model in config.models.items()
        }
        config = config.model_copy(update={"models": served})
    questions = load_questions(config.questions.train, config.seed)[: options.questions]
    what = describe(config, questions)
    print(what, flush=True)
    runs: list[RunMeasurement] = []
    keys: list[set[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        small = config.model_copy(update={"sampling": config.sampling.model_copy(update={"samples": 2})})
        measure(small, questions[:2], "pool", Path(folder) / "warm-up")  # kernels compiled, files read once
        for number in range(options.repetitions):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                measured, made = measure(config, questions, way, Path(folder) / f"{number}-{way}")
                runs.append(measured)
                keys.append(made)
                print(f"{way}: {measured.per_hour:,.0f} trajectories an hour, {measured.seconds:,.0f} s", flush=True)
    if any(made != keys[0] for made in keys):
        raise AssertionError("the ways did not do the same work")
    print(table(runs))
    print(f"the same {len(keys[0])} content keys in each of {len(runs)} runs; load before each: {_loads(runs)}")
    if options.json:
        write_json(Path(options.json), {"what": what, "runs": [asdict(measured) for measured in runs]})


def describe(config: Config, questions: Sequence[Question]) -> str:
    names = load_system(config.system).models
    engines = ", ".join(sorted({f"{config.models[n].engine} engine, {config.models[n].path}" for n in names}))
    return (
        f"{config.system.name}, {len(questions)} questions x {config.sampling.samples} samples, "
        f"{config.sampling.concurrency} places; {engines}; {os.cpu_count()} cores"
    )


def _loads(runs: Sequence[RunMeasurement]) -> str:
    return ", ".join(f"{measured.load:.1f}" for measured in runs)


if __name__ == "__main__":
    run_command(main)
