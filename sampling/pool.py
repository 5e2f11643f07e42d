"""The sampling pool: any number of trajectories in flight, each at its own step.

There is no batch to wait for: a trajectory that ends is written and the next one starts, so the engine never idles
while work is left. Each trajectory has a content key; one that is on disk under its key is never sampled again, and
anything that would change the outcome (question, system, models, adapter, index, temperatures, seed) changes the key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ratchet.agents.core.episode import shown_passages, why_cut_off
from ratchet.agents.core.exploration import CURRICULUM, Rule, load_rules
from ratchet.agents.core.labels import with_constrained_label
from ratchet.agents.core.resources import Resources, open_resources
from ratchet.agents.core.system import System, load_system
from ratchet.agents.core.task import Job, RunContext
from ratchet.agents.core.tools import Answer, OutOfBudget, Tools, Unparsed
from ratchet.core.config import Config, ExploreConfig, SystemConfig, TeacherConfig
from ratchet.core.config.models import DEFAULT_CONCURRENCY
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.files import Segment
from ratchet.core.locks import WAIT_OF_JOB, Lock
from ratchet.core.progress import Progress
from ratchet.core.records import Event, Question, Status, Trajectory, content_key, questions_digest
from ratchet.core.tasks import gather_or_cancel, run_or_cancel
from ratchet.inference.adapters import checked_digest
from ratchet.inference.engine import Engine, EngineError, asking_about
from ratchet.inference.engines import close_engines, max_requests, open_engines
from ratchet.retrieval.index import store_of
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.retriever import Retriever, SourceError
from ratchet.sampling.store import FIRST_SEGMENT, Manifest, TrajectoryStore
from ratchet.sampling.work import Work

MAX_FAILURES = 20
"""Trajectories in a row that failed, or had a tool that did, after which sampling stops with an error."""


class Enough:
    """The questions that have so many good trajectories that none is sampled any more (`sampling.enough`)."""

    def __init__(self, number: int, is_good: Callable[[Question, Trajectory], Awaitable[bool]]) -> None:
        self._number, self._is_good = number, is_good
        self._good = Counter[str]()

    async def add(self, question: Question, trajectory: Trajectory) -> None:
        """Count a trajectory that was sampled."""
        self._good[question.id] += await self._is_good(question, trajectory)

    def has(self, question: Question) -> bool:
        """Whether the question has enough."""
        return self._good[question.id] >= self._number

    async def skipped(self, jobs: Sequence[Job], store: TrajectoryStore) -> set[str]:
        """Count what is on disk, and return the keys of the jobs that need not be done."""
        self._good.clear()
        free = {job.key: job for job in jobs if not job.learners}
        for trajectory in store.read(list(free)):
            await self.add(free[trajectory.key].question, trajectory)
        return {key for key in free.keys() - store.finished() if self.has(free[key].question)}


@dataclass(frozen=True)
class Pass:
    """One system under one policy on some questions: what one folder of trajectories holds."""

    system: SystemConfig
    context: RunContext
    questions: Sequence[Question]
    samples: int
    folder: Path
    group: int = 0
    """Passes of a lower group start first: those of one adapter together, where a server holds only a few."""
    segment: str = FIRST_SEGMENT
    """The file in the folder that this pass writes. Several passes, on several machines, may fill one folder."""
    part: tuple[int, int] = (0, 1)
    """(K, N): only every N-th of the questions, from the K-th on. All parts share one evidence memory."""
    seed_offset: int = 0
    """Added to the config's seed: the same pass with another offset has other seeds and keys."""
    first: int | None = None
    """Sample only so many of the questions now; all are planned."""
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    """How the last ones of a question's samples explore."""
    curriculum: Mapping[str, str] = field(default_factory=dict)
    """By role, the rule of a further sample of each question with gold documents, from which the role learns."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """Who plays the trainable roles in the first ones of a question's samples."""
    enough: Enough | None = None
    """When a question is not sampled any more. None: when it has all its samples."""

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the samples that explore. Raises UserError for one that cannot be loaded."""
        return load_rules(self.explore.rules) if self.explore.samples else ()


def with_memory_scope(
    one_pass: Pass,
    system: SystemConfig,
    questions: str,
    seed: int,
    models: dict[str, str],
    index: str,
    led: Sequence[str] = (),
) -> RunContext:
    """The pass's setting, its scope made the experiment's own: the name that the setting gives it, and a key.

    `system`: its `System.identity`; `questions`: their digest; `led`: the keys of samples that rules or a teacher lead.

    The key is of all that the trajectories depend on, the other questions and samples included, which leave evidence:
    a changed run starts with an empty memory, and the same command again resumes with its own.
    """
    sampled_by = {key: value for key, value in asdict(one_pass.context).items() if key != "adapter"}
    parts = (sampled_by, system, models, index, seed, questions, one_pass.samples)
    key = content_key("scope", *parts, led) if led else content_key("scope", *parts)
    return replace(one_pass.context, scope=f"{one_pass.context.scope} {key[:12]}")


def check_sequence(
    one_pass: Pass, jobs: Sequence[Job], done: Collection[str], resources: Resources, scope: str
) -> None:
    """Raises UserError where the claims of a pass cannot each find just what the earlier ones left."""
    if one_pass.part[1] > 1:
        raise UserError("memory.sequential: parts run side by side; sample without --part, or set it to false")
    assert resources.memory is not None, "a run always has a memory"
    expected = {job.question.id for job in jobs if job.key in done}
    # The evidence of a trajectory is there before the trajectory is.
    following = next((job.question.id for job in jobs if job.key not in done), None)
    if resources.memory.questions(scope) - expected - {following}:
        raise UserError(
            f"memory.sequential: {resources.memory.files.folder} already holds evidence of this experiment that is not "
            "of the trajectories on disk; delete the folder"
        )


@dataclass(frozen=True)
class Task:
    """A job, who does it, and where its trajectory is written."""

    job: Job
    system: System
    context: RunContext
    segment: Segment
    enough: Enough | None = None


def policy_name(adapter: Path | None) -> str:
    """'base', or the adapter's digest. UserError for an adapter that cannot be used, before a question is asked."""
    return "base" if adapter is None else checked_digest(adapter)


def sample(config: Config, passes: Sequence[Pass], title: str, work: Work | None = None) -> list[list[str]]:
    """Sample what is missing, all passes in one pool; the keys of what each pass samples itself, in their order.

    `work` counts what is sampled, also where that is interrupted.

    Group by group, and question by question over all passes of one: what two systems ask about one question begins
    alike, and is prefilled once.
    """
    systems = [load_system(one_pass.system) for one_pass in passes]
    roles = [{role: system.config.role(role).model for role in system.roles} for system in systems]
    used = {name for models_by_role in roles for name in models_by_role.values()}
    used = used.union(*(one_pass.teacher.models for one_pass in passes))
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(contextlib.closing(asyncio.Runner()))
        # Sources before models: what they lack (an index, a key) is said before a model is loaded for minutes.
        retriever = open_index(config.index)
        resources = open_resources(config, retriever)
        stack.callback(lambda: runner.run(resources.close()))
        engines = open_engines(config.models, used)
        stack.callback(lambda: runner.run(close_engines(engines)))
        for one_pass, system in zip(passes, systems, strict=True):
            check_led(one_pass, system, retriever)
        sequential = config.memory is not None and config.memory.sequential
        planned: list[list[Job]] = []
        limited: list[tuple[Enough, list[Job], TrajectoryStore, Manifest]] = []
        missing: list[tuple[tuple[int, int], Task]] = []
        for one_pass, system, models_by_role in zip(passes, systems, roles, strict=True):
            models = {role: engines[name].fingerprint for role, name in models_by_role.items()}
            asked = questions_digest(one_pass.questions)
            seed = config.seed + one_pass.seed_offset
            sources_digest = resources.part_of_keys(retriever.digest, system.spec.embeds)
            planned_by = (seed, system.identity, one_pass.context, models, sources_digest)
            free = plan_jobs(one_pass.questions, one_pass.samples, *planned_by)
            jobs = with_teacher(with_exploration(free, one_pass), one_pass.teacher, engines)
            jobs += plan_curriculum(free, one_pass, retriever)
            led = [job.key for job in jobs if job.rules or job.teacher]
            context = with_memory_scope(one_pass, system.identity, asked, seed, models, sources_digest, led)
            store = TrajectoryStore(one_pass.folder)
            manifest = Manifest(
                system=one_pass.system,
                setting=asdict(context),
                models=models,
                index=retriever.digest,
                sources={name: source.digest for name, source in resources.sources.items()},
                seed=seed,
                questions=asked,
                samples=one_pass.samples,
                keys=tuple(job.key for job in jobs),
            )
            skipped = set[str]()
            if one_pass.enough is not None:
                skipped = runner.run(one_pass.enough.skipped(jobs, store))
                limited.append((one_pass.enough, jobs, store, manifest))
            store.plan(manifest.without(skipped))
            part, parts = one_pass.part
            jobs = [job for job in jobs if job.key not in skipped]
            if sequential:
                check_sequence(one_pass, jobs, store.finished(), resources, context.scope)
            places = set(range(len(one_pass.questions))[part::parts][: one_pass.first])
            jobs = [job for job in jobs if job.place in places]
            planned.append(jobs)
            seen = _sizes(store)
            done = store.finished()
            if all(job.key in done for job in jobs):
                continue
            segment = stack.enter_context(store.open_segment(one_pass.segment))
            if _sizes(store) != seen:  # another writer added to it while we waited for the file
                done = store.finished()
                done |= runner.run(one_pass.enough.skipped(jobs, store)) if one_pass.enough else set()
            missing += [
                ((one_pass.group, job.place), Task(job, system, context, segment, one_pass.enough))
                for job in jobs
                if job.key not in done
            ]
        if missing:
            tasks = [task for _, task in sorted(missing, key=lambda pair: pair[0])]
            total = sum(map(len, planned))
            concurrency = config.sampling.concurrency or max(
                (max_requests(name, config.models[name]) for name in used), default=DEFAULT_CONCURRENCY
            )
            progress = stack.enter_context(Progress(title, total, total - len(tasks)))
            counts, problem = run_or_cancel(
                runner, run_pool(tasks, engines, retriever, concurrency, progress, resources, sequential, work=work)
            )
            # Programs that never reach the gateway may be fewer than MAX_FAILURES.
            if counts["failed"] == total and {system.name for system in systems} == {"external"}:
                raise UserError(
                    f"all {total} trajectories failed, the last one with: {problem}\nFix this and run the same command "
                    "again."
                )
        left = set[str]()
        for enough, jobs, store, manifest in limited:
            # By other commands too, which do parts of the pass: the last one has seen what all of them sampled.
            with Lock(store.folder / ".manifest.lock", str(store.manifest_path), wait=WAIT_OF_JOB):
                skipped = runner.run(enough.skipped(jobs, store))
                store.plan(manifest.without(skipped))
            left |= skipped
    return [[job.key for job in jobs if job.key not in left] for jobs in planned]


def _sizes(store: TrajectoryStore) -> dict[str, int]:
    return {str(file.path): file.size for file in store.segments}


def plan_jobs(
    questions: Sequence[Question],
    samples: int,
    seed: int,
    system: SystemConfig,
    context: RunContext,
    models: dict[str, str],
    index: str,
) -> list[Job]:
    """All jobs of a pass, question by question so that samples of one question share their prompt's cache.

    `system` is its `System.identity`, `models` maps role to model fingerprint, `index` is the digest of the index and
    of the other sources.
    """
    sampled_by = {key: value for key, value in asdict(context).items() if key not in ("adapter", "scope")}
    settings = system.model_dump(mode="json")
    jobs = []
    for place, question in enumerate(questions):
        for sample in range(samples):
            key = content_key("trajectory", question, settings, models, sampled_by, index, seed, sample)
            jobs.append(Job(question, sample, key, int(key[:12], 16), place))
    return jobs


def check_led(one_pass: Pass, system: System, retriever: Retriever) -> None:
    """Raises UserError for exploration or a curriculum that the system, its roles or the index are not made for."""
    curriculum = one_pass.curriculum
    check_rules(one_pass.rules, system, "sampling.explore")
    check_rules(CURRICULUM.values() if curriculum else (), system, "sampling.curriculum")
    for role in curriculum:
        if role not in system.roles:
            raise UserError(
                f"sampling.curriculum.{role}: {system.name} has no such role{did_you_mean(role, system.roles)}"
            )
        if not system.config.role(role).trainable:
            raise UserError(f"sampling.curriculum.{role}: this role is not trained (system.roles.{role}.trainable)")
    if curriculum and store_of(retriever) is None:
        raise UserError(
            "sampling.curriculum: it looks gold documents up by their ids in an index on this machine (index.path)"
        )


def check_rules(rules: Collection[Rule], system: System, key: str) -> None:
    """Raises UserError for rules that cannot narrow the system's actions: they are no JSON, or a rule needs to know
    which of their fields decide about searching."""
    if rules and getattr(system.settings, "actions", "") == "native":
        raise UserError(
            f"{key}: rules narrow actions in JSON, and {system.name} calls tools in the form of its model's template; "
            "set system.settings.actions: text"
        )
    for rule in rules:
        if rule.needs_fields and system.spec.searches is None:
            raise UserError(
                f"{key}: {rule.name} does not know the actions of {system.name}, whose SYSTEM declares no `searches` "
                "(docs/guides/extend.md); use a rule of your own, or another system"
            )


def with_exploration(jobs: Sequence[Job], one_pass: Pass) -> list[Job]:
    """The jobs of a pass, those that explore with their rules and with a key that tells them."""
    rules, first = one_pass.rules, one_pass.samples - one_pass.explore.samples
    return [_led(job, rules) if rules and job.sample >= first else job for job in jobs]


def plan_curriculum(jobs: Sequence[Job], one_pass: Pass, retriever: Retriever) -> list[Job]:
    """For each rule of the curriculum, a further job of each question with gold documents. `jobs`: the free ones, so
    that its keys do not depend on what else leads samples."""
    if not one_pass.curriculum:
        return []
    store = store_of(retriever)
    assert store is not None, "check_led has looked"
    first = [replace(job, gold=tuple(store.documents(job.question.gold_ids))) for job in jobs if job.sample == 0]
    if not any(job.gold for job in first):
        raise UserError("sampling.curriculum: no training question has gold_ids of documents in the index")
    learners: dict[str, tuple[str, ...]] = {}
    for role, rule in one_pass.curriculum.items():
        learners[rule] = (*learners.get(rule, ()), role)
    return [
        replace(_led(job, (CURRICULUM[rule],), roles), sample=one_pass.samples + number)
        for job in first
        for number, (rule, roles) in enumerate(learners.items())
        if job.gold
    ]


def with_teacher(jobs: Sequence[Job], teacher: TeacherConfig, engines: Mapping[str, Engine]) -> list[Job]:
    """The jobs of a pass, those of its teacher's samples with its name and with a key that tells its model."""
    return [_taught(job, teacher.model, engines) if job.sample < teacher.samples else job for job in jobs]


def _taught(job: Job, teacher: str, engines: Mapping[str, Engine]) -> Job:
    key = content_key("taught", job.key, engines[teacher].fingerprint)
    return replace(job, key=key, seed=int(key[:12], 16), teacher=teacher)


def _led(job: Job, rules: tuple[Rule, ...], learners: tuple[str, ...] = ()) -> Job:
    key = content_key("explored", job.key, [rule.name for rule in rules], learners)
    return replace(job, key=key, seed=int(key[:12], 16), rules=rules, learners=learners)


async def run_pool(
    tasks: Sequence[Task],
    engines: dict[str, Engine],
    retriever: Retriever,
    concurrency: int,
    progress: Progress,
    resources: Resources | None = None,
    sequential: bool = False,
    max_failures: int = MAX_FAILURES,
    work: Work | None = None,
) -> tuple[Counter[str], str]:
    """Run all tasks, `concurrency` at a time; each trajectory is on disk before it is counted. Returns (the number of
    trajectories of each status, what failed in the last one).

    `sequential`: those of one pass one after the other, as `memory.sequential` says, up to the first that failed: the
    later ones wait until it was sampled again, which a UserError says at the end. Raises UserError after `max_failures`
    trajectories in a row that failed, or had a tool that did: then it is a server or the setup, not the question.
    `work`: as for `sample`. Where a question may have enough (`Task.enough`), its trajectories follow each other.
    """
    counts: Counter[str] = Counter()
    work = work or Work()
    failed_in_row, problem = 0, ""
    stopped: list[str] = []
    chains: dict[str, list[Task]] = {}
    for task in tasks:
        follows = task.job.question.id if task.enough and not task.job.learners else task.job.key
        chains.setdefault(task.context.scope if sequential else follows, []).append(task)
    queue = iter(chains.values())

    async def worker() -> None:
        for chain in queue:
            for place, task in enumerate(chain, 1):
                if task.enough and not task.job.learners and task.enough.has(task.job.question):
                    progress.advance()
                    continue
                trajectory = await run_task(task)
                if task.enough and not task.job.learners:
                    await task.enough.add(task.job.question, trajectory)
                if sequential and trajectory.status == "failed" and place < len(chain):
                    what = f"{trajectory.question_id} failed with {trajectory.error!r}"
                    stopped.append(f"{task.context.scope}: {what}, {len(chain) - place} after it were not asked")
                    break

    async def run_task(task: Task) -> Trajectory:
        nonlocal failed_in_row, problem
        trajectory = await run_episode(task.job, task.system, engines, retriever, task.context, resources)
        task.segment.append(trajectory)
        counts[trajectory.status] += 1
        work.add(trajectory)
        problem = _failure(trajectory)
        failed_in_row = failed_in_row + 1 if problem else 0
        if failed_in_row >= max_failures:
            raise UserError(
                f"the last {failed_in_row} trajectories failed, or a tool of theirs did, the last one with: "
                f"{problem}\nFinished ones are kept; fix this and run the same command again."
            )
        progress.advance(note=_note(counts, work.new_tokens))
        return trajectory

    with work.timed():
        await gather_or_cancel([worker() for _ in range(min(concurrency, len(chains)))])
    if stopped:
        raise UserError(
            "memory.sequential: a claim that failed is asked again before those after it, so that each finds what all "
            "earlier ones left; run the same command again to go on.\n  " + "\n  ".join(stopped)
        )
    return counts, problem


def _failure(trajectory: Trajectory) -> str:
    """Name what failed in a trajectory: its server, or a tool of it; empty where nothing did."""
    if trajectory.status == "failed":
        return trajectory.error
    return next((f"{call.source}: {call.error}" for call in trajectory.failed_lookups), "")


def _note(counts: Counter[str], tokens: int) -> str:
    return f"{tokens} tokens  {', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}"


async def run_episode(
    job: Job,
    system: System,
    engines: Mapping[str, Engine],
    retriever: Retriever,
    context: RunContext,
    resources: Resources | None = None,
    watch: Callable[[Event], None] | None = None,
) -> Trajectory:
    """Let the system answer, and return the record of it.

    What a model or a server does wrong is the trajectory's status and error, never an exception here; a UserError
    (the config is wrong) passes through. A tool that fails is told to the agent, which may go on with others; where no
    lookup got an answer at all, the trajectory failed, however it ended. Where an action is malformed or a budget is
    used up, the answer is the one that the system had in hand (`tools.so_far`). An answer that ends where a reply was
    cut off is unparsed, and documents that no model was shown are no part of it. A failed trajectory has no answer: it
    is sampled again.
    `watch` is called with each event as it ends.
    """
    question, reach = job.question, resources or Resources()
    tools = Tools(job, system.config, system.prompts, engines, retriever, context, reach, watch, system.spec.searches)
    if job.teacher:
        tools.note(system.roles[0], f"the teacher {job.teacher} plays the roles that are trained")
    try:
        answer, status, error = await _solve(question, system, tools)
        with system.errors(question):
            trajectory = Trajectory(
                key=job.key,
                question_id=question.id,
                system=system.name,
                policy=context.policy,
                sample=job.sample,
                seed=job.seed,
                explored=tuple(rule.name for rule in job.rules),
                learners=job.learners,
                teacher=job.teacher,
                status=status,
                answer=answer.text,
                explanation=answer.explanation,
                error=error,
                passages=answer.passages,
                candidates=dict(answer.candidates),
                turns=tuple(tools.turns),
                stopped=answer.stopped,
                events=tools.events,
                conversations=tools.conversations,
                seconds=tools.seconds,
            )
        return _checked(trajectory, question, system, tools)
    finally:
        tools.close()


async def _solve(question: Question, system: System, tools: Tools) -> tuple[Answer, Status, str]:
    """(the answer, how the episode ended, why it did not finish)."""
    question = question.asked
    try:
        with asking_about(question.id), system.errors(question):
            solving = system.spec.solve(question, tools, system.settings)
            if question.labels and system.config.labels == "constrain":
                solving = with_constrained_label(question, tools, solving)
            answer = await solving
            if not isinstance(answer, Answer):
                raise TypeError(f"solve returned {type(answer).__name__} and not an Answer")
        ended: tuple[Answer, Status, str] = answer, answer.status, answer.error
    except Unparsed as problem:
        ended = tools.so_far, "unparsed", str(problem)
    except OutOfBudget as problem:
        ended = tools.so_far, "out_of_budget", str(problem)
    except (EngineError, SourceError) as problem:
        return Answer(""), "failed", str(problem)
    if outage := tools.outage:
        return Answer("", stopped=ended[0].stopped), "failed", outage
    return ended


def _checked(trajectory: Trajectory, question: Question, system: System, tools: Tools) -> Trajectory:
    """The trajectory without documents that no model was shown, and unparsed where its answer was cut off."""
    if trajectory.status == "finished" and (error := why_cut_off(question, trajectory)):
        trajectory = trajectory.model_copy(update={"status": "unparsed", "error": error})
    if trajectory.answer.strip() and not system.spec.names_evidence:
        shown = shown_passages(trajectory.passages, tools.shown)
        if left_out := len(trajectory.passages) - len(shown):
            tools.note(system.roles[0], f"left out {left_out} document(s) of the answer that no model was shown")
            trajectory = trajectory.model_copy(update={"passages": shown, "events": tools.events})
    return trajectory
