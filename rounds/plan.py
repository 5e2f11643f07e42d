"""The calls and tokens that a run asks of its models, by stage, and the seconds that they take; the memory of each part
on a GPU.

Calls, tokens, searches and kept trajectories are the means of a run that has been sampled and scored: twenty questions
of it will do. Before that, calls and passages are those that each system declares (`SystemSpec.calls`), and the rest
are the constants below, which `ratchet plan` prints. The sums of memory are those by which servers are placed
(inference/serving/memory.py) and those of training/memory.py. For training, an allocator's gaps and the CUDA context
come on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from ratchet.agents.core.system import Calls, System, load_system
from ratchet.core.config import Config, EncoderConfig, IndexConfig, SystemConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file, read_segment
from ratchet.core.plugins import short_name
from ratchet.core.records import Score, Search, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import arm_store
from ratchet.inference.footprint import footprint, read_shape
from ratchet.inference.serving.cards import A100, Rates, Tokens
from ratchet.inference.serving.specs import GB, ModelUse
from ratchet.retrieval.footprint import encoder_shape
from ratchet.rewards.nuggets import NuggetSet
from ratchet.rewards.reward import judged
from ratchet.rewards.store import current_settings, score_segments
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.records import StageKey
from ratchet.rounds.stages import ExperimentRun, stages_of
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.memory import Activations, TrainingMemory, max_tokens, training_memory
from ratchet.training.objectives.objective import load_objective
from ratchet.training.schedule import held_out, schedule

MAX_TRAJECTORIES = 500
INSTRUCTION_TOKENS, SHOWN_TOKENS, NEW_TOKENS = 500.0, 200.0, 150.0
"""Tokens of a role's instructions, which are in the prefix cache; of what it is shown at a call beside passages; and of
its reply: an action as JSON, or a short answer."""
KEPT = 1.1
"""Trajectories kept of a question that is learnt from, where a judge's mean scores are rarely equal."""
ITEMS = 10.0
"""Nuggets of a reference answer, and claims of an answer."""
JUDGE_TOKENS, ITEM_TOKENS, VERDICT_TOKENS = 500.0, 60.0, 50.0
"""Tokens of the judge's instructions with question, reference and answer; of an item with its explanation and evidence;
of a verdict with its reason."""
WRITING_TOKENS = 600.0
"""Tokens of the instructions by which questions are made, with what is drawn for each."""
FURTHER_RUNS = 0.2
"""The part of judge runs beyond the least that a trajectory gets on average (`benchmarks.judge_calls`: 0.1 to 0.3)."""
ASSUMED = (
    f"{INSTRUCTION_TOKENS:g} tokens of instructions, {SHOWN_TOKENS:g} shown and {NEW_TOKENS:g} new ones a call; "
    f"{ITEMS:g} nuggets or claims of an answer, of {ITEM_TOKENS:g} tokens, and {VERDICT_TOKENS:g} a verdict"
)


@dataclass(frozen=True)
class RoleUse:
    """The calls of one role in one trajectory."""

    role: str
    model: str
    tokens: Tokens
    conversation_tokens: float
    """Tokens of a conversation at its end."""
    conversations: float = 1.0
    """Conversations of one trajectory; each is one training row."""


@dataclass(frozen=True)
class SystemUse:
    """The calls of one trajectory of a system."""

    roles: tuple[RoleUse, ...]
    searches: float = 0.0
    source: str = ""
    """The trajectories that they were measured on; empty where they are assumed."""

    @property
    def calls(self) -> float:
        return sum(role.tokens.calls for role in self.roles)


@dataclass(frozen=True)
class PlannedStage:
    """The work of one stage."""

    key: StageKey | None
    """None for the making of questions, which comes before all rounds."""
    models: Mapping[str, Tokens]
    trajectories: float = 0.0
    searches: float = 0.0
    counted: str = ""
    """The count of its trajectories or rows, in words."""

    @property
    def title(self) -> str:
        return self.key.title if self.key else "generate questions"


@dataclass(frozen=True)
class Usage:
    """The use of models by one trajectory: as a run has measured it, else as it is declared and assumed."""

    config: Config
    run: RunFolder
    """The run that is looked at: the config's own, or another of the same system."""

    def system(self, config: SystemConfig, is_own: bool = False) -> SystemUse:
        """The calls of a system: of the run's latest round, of another system's arms, else assumed. UserError."""
        system = load_system(config)
        arms = arm_store(self.config, "*", config, "*").folder.relative_to(self.config.folder)
        own = [folder.trajectories for folder in reversed(self.run.rounds())]
        for folder in own if is_own else sorted(self.run.path.glob(str(arms))):
            sampled = list(islice(TrajectoryStore(folder).read(), MAX_TRAJECTORIES))
            finished = [one for one in sampled if one.status != "failed" and not one.teacher]
            if finished and finished[0].system != system.name:
                raise UserError(
                    f"{self.run.path}: its trajectories are of {finished[0].system}, not {system.name}; name another "
                    "run by --from"
                )
            where = folder.relative_to(self.run.path).parts[0]
            if use := measured_use(system, finished, f"measured on {len(finished):,} trajectories of {where}"):
                return use
        return assumed_use(system, self._chunk_tokens)

    def judging(self, names: Iterable[str], selects: bool = False) -> tuple[dict[str, Tokens], Tokens]:
        """(By score that the judge gives, its calls for one trajectory; the calls for one question, whatever the number
        of its trajectories and arms.) `selects`: further runs go to those alone that may be kept.

        Assumed: correctness judges `rewards.nuggets_per_call` nuggets in a call, whose prompts differ in these alone,
        and draws them once for all trajectories of a question. Faithfulness and precision draw the claims of an answer
        in one call and judge all of them in another; precision has its claims from faithfulness where both are scored.
        Calls that begin with equal tokens follow each other, so these are in the cache.
        """
        rewards, shown, scores = self.config.rewards, self.shown_tokens, {short_name(n): n for n in judged(names)}
        least, most = rewards.runs.least, rewards.runs.most
        runs = least + FURTHER_RUNS * (most - least) if selects else most
        draws, once = (runs, most) if rewards.extracted == "per_run" else (1, 1)
        listed, calls = ITEMS * ITEM_TOKENS, math.ceil(ITEMS / rewards.nuggets_per_call) * runs
        extraction = Tokens(draws, JUDGE_TOKENS, draws * listed)
        check = Tokens(runs, JUDGE_TOKENS + draws * listed, runs * ITEMS * VERDICT_TOKENS)
        known = {
            "correctness": Tokens(calls, JUDGE_TOKENS + draws * listed, ITEMS * runs * VERDICT_TOKENS),
            "faithfulness": extraction + check + Tokens(prompt=shown),
            "precision": check if "faithfulness" in scores else extraction + check,
        }
        other = Tokens(runs, JUDGE_TOKENS + shown, runs * NEW_TOKENS)
        assumed = {name: known.get(short, other) for short, name in scores.items()}
        drawn = Tokens(once, JUDGE_TOKENS, once * listed) if "correctness" in scores else Tokens()
        asked = None if selects else most
        for folder in reversed(self.run.rounds()):
            if found := {name: use for name in assumed if (use := _measured_score(folder.scores, name, asked))}:
                return assumed | found, _measured_nuggets(self.run.nuggets) or drawn
        return assumed, drawn

    @property
    def kept(self) -> tuple[float, float, bool]:
        """(Kept trajectories of a question, and kept ones of its curriculum; whether a run has measured them.)"""
        config, scored = self.config, [e for e in latest_entries(self.run).values() if "kept_questions" in e.facts]
        if not load_objective(config.training).learns_from_kept_alone:
            return config.sampling.samples, 0.0, False
        if scored:
            facts = max(scored, key=lambda entry: entry.round).facts
            return facts["kept"] / facts["questions"], facts.get("kept_of_curriculum", 0) / facts["questions"], True
        most = min(config.rewards.select.ties, config.sampling.samples)
        return min(KEPT, most), len(set(config.sampling.curriculum.values())), False

    @property
    def _chunk_tokens(self) -> float:
        return 0.0 if is_missing(self.config.index) else self.config.index.chunk_tokens

    @property
    def shown_tokens(self) -> float:
        """Tokens of the documents that an answer is written from, and faithfulness is judged by."""
        system = load_system(self.config.system)
        calls = system.spec.calls(system.settings).values() if system.spec.calls else ()
        return max((call.passages for call in calls), default=0.0) * self._chunk_tokens


def assumed_use(system: System, passage_tokens: float) -> SystemUse:
    """The calls of a system that has not been sampled, a passage having so many tokens. A turn's prompt begins with the
    last turn's, which is in the prefix cache."""
    declared = system.spec.calls(system.settings) if system.spec.calls else dict.fromkeys(system.roles, Calls())
    played = {role: declared[role] for role in system.roles if role in declared and declared[role].number}
    roles = list[RoleUse]()
    for role, calls in played.items():
        conversations = calls.number if calls.conversations is None else calls.conversations
        shown = SHOWN_TOKENS + calls.passages * passage_tokens
        length = INSTRUCTION_TOKENS + calls.number / conversations * (shown + NEW_TOKENS)
        tokens = Tokens(1, shown, NEW_TOKENS) * calls.number
        roles.append(RoleUse(role, system.config.role(role).model, tokens, length, conversations))
    return SystemUse(tuple(roles), max((calls.number for calls in played.values() if calls.passages >= 1), default=0.0))


def measured_use(system: System, trajectories: Sequence[Trajectory], source: str) -> SystemUse | None:
    """The mean calls of these trajectories; None without a call."""
    calls = [call for one in trajectories for call in one.model_calls]
    talks = [talk for one in trajectories for talk in one.conversations]

    def use(role: str) -> RoleUse:
        own, lengths = [c for c in calls if c.role == role], [len(talk.ids) for talk in talks if talk.role == role]
        prompt, new = sum(c.prompt_tokens - c.cached_tokens for c in own), sum(c.new_tokens for c in own)
        tokens = Tokens(len(own), prompt, new) * (1 / len(trajectories))
        model = system.config.role(role).model
        return RoleUse(role, model, tokens, fmean(lengths), len(lengths) / len(trajectories))

    called = dict.fromkeys(call.role for call in calls)
    roles = tuple(use(role) for role in called if any(talk.role == role for talk in talks))
    searches = sum(isinstance(event, Search) for one in trajectories for event in one.events)
    return SystemUse(roles, searches / len(trajectories), source) if roles else None


def with_teacher(use: SystemUse, config: Config) -> SystemUse:
    """The calls of one trajectory of sampling, on average: a teacher plays the trainable roles of some."""
    teacher, roles = config.sampling.teacher, list[RoleUse]()
    share = teacher.samples / config.sampling.samples
    for role in use.roles:
        taught = share if config.system.role(role.role).trainable else 0.0
        for model, part in ((role.model, 1 - taught), (teacher.model, taught)):
            tokens, conversations = role.tokens * part, role.conversations * part
            roles += [replace(role, model=model, tokens=tokens, conversations=conversations)] if part else []
    return replace(use, roles=tuple(roles))


def _spent(verdicts: Iterable[Mapping[str, object]]) -> Tokens:
    """What the calls behind these stored verdicts took."""
    counts = [tokens for verdict in verdicts if isinstance(tokens := verdict.get("tokens"), list)]
    return Tokens(len(counts), sum(c[0] - c[1] for c in counts), sum(c[2] for c in counts))


def _measured_score(folder: Path, name: str, runs: int | None) -> Tokens | None:
    """The mean calls of a stored score; None where there is none, or its verdicts have no counts. `runs`: with so many
    judge runs, where their number differed. None: with as many as there were."""
    settings = current_settings(folder).get(name)
    files = score_segments(folder, name, settings) if settings else []
    scores: dict[str, Score] = {}
    for score in (line.parse(data, Score) for file in files for line, data in file.lines()):
        if score.trajectory in scores or len(scores) < MAX_TRAJECTORIES:
            scores[score.trajectory] = score  # the last one has all its runs
    spent = _spent(verdict for score in scores.values() for verdict in score.verdicts)
    done = sum(len(score.runs) for score in scores.values())
    return spent * (runs / done if runs and done else 1 / len(scores)) if spent.calls else None


def _measured_nuggets(folder: Path) -> Tokens | None:
    """The mean calls that drew a question's nuggets."""
    sets = [drawn for path in folder.glob("*.jsonl") for drawn in read_segment(path, NuggetSet)]
    spent = _spent(verdict for drawn in sets for verdict in drawn.verdicts)
    return spent * (1 / len({drawn.question_id for drawn in sets})) if spent.calls else None


def model_uses(config: Config) -> dict[str, ModelUse]:
    """By model: how much a trajectory and its scoring use it, for memory and for requests in flight of servers.

    Without those that cannot be told: models are also served for configs that lack a system or a reward.
    """
    try:
        measured = Usage(config, RunFolder(config.folder))
        use = with_teacher(measured.system(config.system, is_own=True), config)
        judging, _ = measured.judging({*config.rewards.weights, *config.evaluation.scores})
    except UserError:
        return {}
    uses: dict[str, ModelUse] = {}
    for model in {role.model for role in use.roles}:
        own = [role for role in use.roles if role.model == model]
        calls = sum(role.tokens.calls for role in own)
        mean = sum(role.tokens.calls * role.conversation_tokens for role in own) / calls
        uses[model] = ModelUse(calls, round(mean), bool(use.source))
    asked = sum((tokens.calls for tokens in judging.values()), 0.0)
    judge = config.rewards.judge
    if asked and judge in config.models:
        before = uses.get(judge, ModelUse(calls=0.0))
        length = round(JUDGE_TOKENS + measured.shown_tokens + ITEMS * (ITEM_TOKENS + VERDICT_TOKENS))
        uses[judge] = ModelUse(before.calls + asked, max(before.conversation_tokens, length), before.is_measured)
    return uses


def model_costs(config: Config) -> dict[str, float]:
    """By model, the parameters that a token passes, in billions; 0 where another machine computes it."""
    return {
        name: 0.0
        if model.engine in ("chat-api", "scripted")
        else footprint(model.path, model.revision, model.dtype).active_parameters / 1e9
        for name, model in config.models.items()
    }


def measured_rates(measured: Usage, use: SystemUse, costs: Mapping[str, float]) -> Rates | None:
    """The rates of the run's latest sampling, in proportion to those of an A100; None where it has not been sampled."""
    entries = latest_entries(measured.run).values()
    sampled = [e for e in entries if e.stage == "sample" and e.facts.get("trajectories_an_hour")]
    if not sampled or not use.source:
        return None
    hourly = max(sampled, key=lambda entry: entry.round).facts["trajectories_an_hour"]
    own, (known, _) = _sampled([(with_teacher(use, measured.config), hourly / 3600)]), A100
    speed = sum(known.seconds(tokens, costs[model]) for model, tokens in own.items())
    return Rates(known.prompt * speed, known.new * speed, known.training * speed) if speed else None


def plan_stages(experiment: ExperimentRun, measured: Usage, questions: Mapping[str, float]) -> Iterator[PlannedStage]:
    """The stages of the run that ask models, in their order; in later rounds as many as in the first. `questions`:
    numbers of train, dev and evaluated ones, NaN where they are not known. UserError."""
    config = experiment.config
    if config.generation is not None:
        yield _generation(config)
    use = measured.system(config.system, is_own=True)
    others = [measured.system(one) for one in config.evaluation.baselines.values()]
    keys, drawn = [stage.key for stage in stages_of(experiment)], set[str]()
    planned = {(key.round, str(key.id)) for key in keys}
    for key in keys:
        if key.id in ("train", "train.random", "train.gold"):
            steps, each, text = _steps(config, use, measured, questions["train"])
            tokens = Tokens(trained=steps * config.training.batch_size * each)
            yield PlannedStage(key, {config.training.model: tokens}, counted=text)
        elif asked := _asked(key, use, others, measured, questions):
            split, made, detail = asked
            number, models, searches = questions[split], dict[str, Tokens](), 0.0
            made = [(system, number * each) for system, each in made if each]
            trajectories = sum(each for _, each in made)
            if (key.round, "sample" if key.id == "score" else f"{key.id}.sample") not in planned:
                models, searches = _sampled(made), sum(system.searches * each for system, each in made)
            if key.id != "sample" and not key.id.endswith(".sample"):
                judge, is_reward = config.rewards.judge, key.id in ("score", "choose")
                scores = config.rewards.weights if is_reward else config.evaluation.scores
                by_score, of_question = measured.judging(scores, selects=key.id == "score")
                judging = sum(by_score.values(), Tokens()) * trajectories
                if split not in drawn:  # nuggets are drawn once, for all arms
                    judging += of_question * number
                    drawn.add(split)
                if judging.calls:
                    models[judge] = models.get(judge, Tokens()) + judging
            yield PlannedStage(key, models, trajectories, searches, f"{count(number)} questions x {detail}")


def _asked(
    key: StageKey, use: SystemUse, others: Sequence[SystemUse], measured: Usage, questions: Mapping[str, float]
) -> tuple[str, Sequence[tuple[SystemUse, float]], str] | None:
    """(The split whose questions a stage asks, each system's calls with its trajectories a question, these in words.)
    None for an index, which grows with its documents, and a report, which takes seconds."""
    config, samples = measured.config, measured.config.evaluation.samples
    match key.id.removesuffix(".sample"):
        case "sample" | "score":
            each, led = config.sampling.samples, len(set(config.sampling.curriculum.values()))
            detail = f"{each} samples" + " at most" * (config.sampling.enough is not None)
            detail += f", and at most {led} of the curriculum" * (led > 0)
            return "train", [(with_teacher(use, config), each), (use, led)], detail
        case "choose":
            steps, _, _ = _steps(config, use, measured, questions["train"])
            candidates = math.ceil(steps / config.training.eval_steps)
            return "dev", [(use, candidates)], f"{candidates} candidates ({steps:,} steps / eval_steps)"
        case "promote":
            arms = 2 if key.round == 1 else 1
            return "dev", [(use, samples * arms)], f"{samples} samples x {arms} arms" + " that are new" * (arms == 1)
        case "evaluate" | "test":
            arms = 2 + len(config.evaluation.controls)
            asked = [(use, samples * arms), *((other, samples) for other in others)]
            return "evaluated", asked, f"{samples} samples x {arms + len(others)} arms"
    return None


def _sampled(asked: Iterable[tuple[SystemUse, float]]) -> dict[str, Tokens]:
    """By model, the calls of so many trajectories of systems."""
    models: dict[str, Tokens] = {}
    for use, number in asked:
        for role in use.roles:
            models[role.model] = models.get(role.model, Tokens()) + role.tokens * number
    return models


@dataclass(frozen=True)
class EncodedIndex:
    """An index with vectors or weights that is built here."""

    key: str
    part: IndexConfig
    chunks: int
    documents: int
    shape: Any
    """The configuration of its encoder; None where it is not known."""
    billions: float
    """The parameters of its encoder; NaN where they are not known."""

    @property
    def encoding(self) -> PlannedStage:
        each = min(self.part.chunk_tokens, (self.part.encoder or EncoderConfig()).max_length or self.part.chunk_tokens)
        tokens, text = Tokens(prompt=self.chunks * each), f"{self.chunks:,} chunks x {each:,} tokens at most"
        return PlannedStage(StageKey(1, "index"), {f"{self.key}.encoder": tokens}, counted=text)


def encoded_indexes(config: Config, documents: int | None) -> Iterator[EncodedIndex]:
    """Nothing where the number of chunks is not known. `documents`: see `index_line`."""
    for name, part in ({} if is_missing(config.index) else config.index.built).items():
        if part.kind not in ("dense", "sparse"):
            continue
        try:
            built = read_json_file(Path(part.path) / "manifest.json")
            number = documents or built["documents"]
            chunks = round(number * built["chunks"] / built["documents"])
        except (OSError, ValueError, KeyError, ZeroDivisionError):
            number = chunks = documents or 0  # not built: a chunk a document
        if chunks:
            shape, parameters = encoder_shape(part.encoder or EncoderConfig())
            key = f"index.parts.{name}" if name else "index"
            yield EncodedIndex(key, part, chunks, number, shape, parameters / 1e9 if shape else math.nan)


def _generation(config: Config) -> PlannedStage:
    """A question is written from one document or two and checked against them: one candidate of each."""
    assert config.generation is not None, "its caller has looked"
    number = float(sum(config.generation.questions.values()))
    shown = 1.5 * config.index.chunk_tokens
    tokens = Tokens(2, 2 * WRITING_TOKENS + shown, 2 * NEW_TOKENS) * number
    return PlannedStage(None, {config.generation.model: tokens}, counted=f"{count(number)} questions x 2 calls")


def _steps(config: Config, use: SystemUse, measured: Usage, questions: float) -> tuple[int, float, str]:
    """(The training's steps, the mean tokens of a row, both in words.)"""
    training = config.training
    learning = [role for role in use.roles if role.model == training.model and config.system.role(role.role).trainable]
    talks = sum(role.conversations for role in learning)
    tokens = sum(role.conversations * min(role.conversation_tokens, training.max_length) for role in learning)
    each = tokens / talks if talks else 0.0
    kept, of_curriculum, is_measured = measured.kept
    learnt = questions - held_out(round(questions), training.dev_fraction) if questions > 0 else questions  # or NaN
    led = sum(role.conversations for role in learning if role.role in config.sampling.curriculum)
    led /= len(set(config.sampling.curriculum.values())) or 1
    rows = learnt * (kept * talks + of_curriculum * led)
    if not rows > 0:  # NaN too
        return (
            training.max_steps,
            each,
            f"{training.max_steps:,} steps x {training.batch_size} rows x {each:,.0f} tokens",
        )
    plan = schedule(max(1, round(rows)), training, 1)
    passes = f"{count(plan.steps / plan.per_epoch)} passes over {count(rows)} rows"
    counted = f"{passes}, {kept:.3g} kept of a question{', measured' * is_measured}"
    return plan.steps, each, f"{plan.steps:,} steps x {training.batch_size} rows x {each:,.0f} tokens ({counted})"


def count(number: float) -> str:
    """A number for people, `?` where it is not known."""
    return "?" if math.isnan(number) else f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def training_line(config: Config, gpu: float, gpus: int) -> str:
    """The memory of a training step on so many GPUs of so many bytes. UserError."""
    import torch

    training = config.training
    model, length = config.models[training.model], training.max_length
    size, shape = footprint(model.path, model.revision, model.dtype), read_shape(model.path, model.revision)
    tiled_head = not (load_objective(training).keeps_logits or training.weighs_roles)
    parts = Activations.of(shape.get_text_config(), training.lora.r, getattr(torch, model.dtype), tiled_head)
    if parts is None:
        return f"train: the formula does not describe models of the type {shape.model_type}"

    def need(tokens: int, shards: int = 1) -> TrainingMemory:
        form = {"checkpointing": training.gradient_checkpointing, "four_bit": training.four_bit}
        return training_memory(size, parts, tokens, **form, shards=shards)

    tokens, gpus = training.micro_batch * length, max(2, gpus)
    step, sharded = need(tokens), need(tokens, gpus).total
    if step.total <= gpu:
        limit = f"micro_batch {max_tokens(need, gpu) // length} at most, of {length:,} tokens"
    else:
        limit = f"DOES NOT FIT a GPU of {gpu / GB:g} GB: " + (
            f"with FSDP on {gpus} GPUs {sharded / GB:.1f} GB" if sharded <= gpu else "lower max_length or micro_batch"
        )
    return (
        f"train: weights {step.weights / GB:.1f} GB + adapter {step.adapter / GB:.1f} GB + activations "
        f"{step.activations / GB:.1f} GB = {step.total / GB:.1f} GB; {limit}"
    )


def index_line(index: IndexConfig, documents: int | None) -> str:
    """The size of an index, which is on disk and served from main memory. `documents`: those of the corpus; None: those
    that it is built of."""
    if is_missing(index) or not index.built:
        return "index: none" if is_missing(index) else f"index: elsewhere ({index.url or 'index.source'})"
    folders, each = [Path(part.path) for part in index.built.values()], 0.0
    try:
        for folder in folders:
            there = read_json_file(folder / "manifest.json")["documents"]
            each += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return f"index: not built ({folder}): build one of a part of the documents to plan for all"
    number = documents or there
    return f"index: {number:,} documents x {each:,.0f} bytes: {number * each / GB:,.3g} GB of main memory"
