"""What is wrong with a config's questions for its rewards and its index, found before anything is sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from questions.leakage import split_configs
from questions.load import load_split
from ratchet.config import Config, is_missing
from ratchet.errors import UserError
from ratchet.records import Question
from retrieval.index import Store
from rewards.reward import load_reward

MAX_SHOWN = 5
"""Questions that a message names."""


def check_questions(config: Config, splits: Sequence[str] | None = None) -> list[str]:
    """Check questions against the config's rewards, and return what is worth a warning.

    `splits`: keys such as "questions.train"; default: every split of the config. Raises UserError where no training
    question can be scored by a reward of the config, since all of them would be sampled for nothing.
    """
    configs = split_configs(config)
    open_store = cache(lambda: _store(config))
    warnings: list[str] = []
    for key in configs if splits is None else splits:
        questions = load_split(configs[key], config.seed).questions
        names = config.rewards.weights if key == "questions.train" else config.evaluation.scores
        for name in names:
            reward = load_reward(name)
            lacking = [question for question in questions if reward.why_unscorable(question)]
            if not lacking:
                continue
            fields = " or ".join(reward.needs) or "what it needs"
            message = (
                f"{key}: {len(lacking)} of {len(questions)} questions have no {fields}, which the score {name!r} "
                f"compares with: {_ids(lacking)}"
            )
            if key == "questions.train" and len(lacking) == len(questions):
                raise UserError(f"{message}\nAdd it to the questions, or set other rewards.weights")
            result = "nothing is learnt from them" if key == "questions.train" else f"they get no {name}"
            warnings.append(f"warning: {message}; {result}")
        if config.questions.leakage.corpus == "off":
            warnings += (f"warning: {key}: {text}" for text in _unknown_gold(config, open_store, questions))
    return warnings


def check_corpus(config: Config, splits: Sequence[str]) -> list[str]:
    """Check that the index holds no gold document of these splits (full keys), as `questions.leakage.corpus` asks.

    A gold id counts as it is, and without what names its benchmark: `pubmedqa:123` is `123` in a PubMed corpus of
    one's own. Raises UserError for `stop`; returns warnings.
    """
    mode = config.questions.leakage.corpus
    if mode == "off" or (store := _store(config)) is None:
        return []
    configs = split_configs(config)
    warnings = []
    for key in splits:
        questions = load_split(configs[key], config.seed).questions
        gold = {one: question.id for question in questions for one in question.gold_ids}
        held = [one for one in gold if any(len(store.chunks_of(name)) for name in (one, one.rpartition(":")[2]))]
        if held:
            message = (
                f"{key}: {config.index.path} holds gold documents of {len({gold[one] for one in held})} of "
                f"{len(questions)} questions: {', '.join(held[:MAX_SHOWN])}; build the index without them "
                "(`python -m questions evidence ... --without NAME/SPLIT`, or remove these ids from your corpus)"
            )
            if mode == "stop":
                raise UserError(f"{message}, or set questions.leakage.corpus=off")
            warnings.append(f"warning: {message}")
    return warnings


def describe_splits(config: Config) -> Iterator[str]:
    """A line for each split: how many questions there are, and what they are scored by."""
    for key, split in split_configs(config).items():
        loaded = load_split(split, config.seed)
        fields = Counter(
            field
            for question in loaded.questions
            for field in ("answers", "reference", "label", "nuggets", "gold_ids")
            if getattr(question, field)
        )
        told = ", ".join(f"{count} with {field}" for field, count in fields.items()) or "none with an answer"
        yield f"{key}: {len(loaded.questions)} questions of {loaded.source}: {told}"


def _store(config: Config) -> Store | None:
    """The chunks of the config's index; None where the index is not built, or is a server."""
    if is_missing(config.index) or not config.index.path or not (Path(config.index.path) / "manifest.json").exists():
        return None
    from retrieval.loader import open_index

    return getattr(open_index(config.index), "store", None)


def _unknown_gold(
    config: Config, open_store: Callable[[], Store | None], questions: Sequence[Question]
) -> Iterator[str]:
    """Gold ids that the index does not hold."""
    named = [question for question in questions if question.gold_ids]
    if not named or (store := open_store()) is None:
        return
    unknown = [question for question in named if not all(len(store.chunks_of(one)) for one in question.gold_ids)]
    if unknown:
        yield (
            f"{len(unknown)} of {len(named)} questions name gold documents that {config.index.path} does not hold: "
            f"{_ids(unknown)}; their retrieval measures are too low"
        )


def _ids(questions: Sequence[Question]) -> str:
    shown = ", ".join(question.id for question in questions[:MAX_SHOWN])
    return shown + (f" and {len(questions) - MAX_SHOWN} more" if len(questions) > MAX_SHOWN else "")
