"""Make questions with answers from a corpus: train, dev and test, from different documents.

    python -m questions.generate --config configs/small/generate.yaml

The section `generation` says how (`settings.py`). Its folder `out` gets train.jsonl, dev.jsonl and test.jsonl in
Ratchet's own format; candidates.jsonl, every candidate with its categories, replies and why it was dropped;
calls.jsonl, every reply of a model; report.json, the numbers; and made_with.json, what made them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from index_build.documents import read_documents
from inference.engine import Engine
from inference.engines import close_engines, open_engines
from questions.generate.categories import OURS, Categories, load_categories
from questions.generate.corpus import Corpus, divide
from questions.generate.generate import generate
from questions.generate.outcome import account, lines
from questions.generate.plan import plan
from questions.generate.prompts import VERSION
from questions.generate.settings import SPLITS, Settings, settings_of
from ratchet.command import config_of, config_parser, run_command
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.files import write_json, write_jsonl
from ratchet.runfolder import path_digest

MAY_CHANGE = {"out", "attempts", "concurrency"}
"""Settings that leave finished candidates as they are."""


def main(words: Sequence[str] | None = None, prog: str = "python -m questions.generate") -> None:
    parser = config_parser(prog, "Make questions with answers from a corpus.")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    for line in build(config, settings_of(config, arguments.config)):
        print(line)


def build(config: Config, settings: Settings) -> list[str]:
    """Run it all; returns the account as text."""
    folder = Path(settings.out)
    categories = load_categories(Path(settings.categories) if settings.categories else OURS)
    corpus = divide(
        (document for path in config.index.documents for _, document in read_documents(Path(path))),
        settings,
        config.seed,
    )
    wanted = plan(categories, settings, config.seed)
    with contextlib.closing(asyncio.Runner()) as runner:
        engines = open_engines(config.models, {settings.model, settings.judged_by})
        try:
            claim(folder, made_with(config, settings, categories, engines))
            outcome, candidates = runner.run(
                generate(wanted, corpus, categories, settings, engines, config.seed, folder)
            )
        finally:
            runner.run(close_engines(engines))
    for split in SPLITS:
        write_jsonl(folder / f"{split}.jsonl", [c.as_question() for c in outcome.accepted if c.split == split])
    report = {"documents": documents(corpus), **account(outcome, candidates, wanted, categories)}
    write_json(folder / "report.json", report)
    text = [*lines(report), f"{folder}: questions, candidates.jsonl with every reason, report.json with all numbers"]
    missing = sum(split["missing"] for split in report["splits"].values())
    if missing:
        text.append(f"{missing} questions are missing: raise generation.attempts and run again, or use a better model")
    return text


def documents(corpus: Corpus) -> dict[str, int]:
    return {**corpus.counts, **{f"for {split}": len(pool.documents) for split, pool in corpus.pools.items()}}


def made_with(
    config: Config, settings: Settings, categories: Categories, engines: Mapping[str, Engine]
) -> dict[str, Any]:
    """All that decides what comes out."""
    return {
        "settings": settings.model_dump(mode="json", exclude=MAY_CHANGE),
        "seed": config.seed,
        "models": {name: engine.fingerprint for name, engine in engines.items()},
        "documents": {path: path_digest(Path(path)) for path in config.index.documents},
        "categories": categories.model_dump(mode="json"),
        "prompts": VERSION,
    }


def claim(folder: Path, made: dict[str, Any]) -> None:
    """Note in the folder what its questions are made with; refuse one that was begun with anything else."""
    path = folder / "made_with.json"
    if not path.exists():
        write_json(path, made)
        return
    try:
        old = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore it or choose another generation.out") from error
    before, now = old.get("settings", {}), made["settings"]
    changes = [f"generation.{k}: {before.get(k)!r} there, {now[k]!r} now" for k in now if before.get(k) != now[k]]
    changes += [f"{k}: not those of then" for k in made if k != "settings" and old.get(k) != made[k]]
    if changes:
        raise UserError(
            f"{folder} was begun with other settings:\n  " + "\n  ".join(changes) + "\n"
            "Choose another folder (--set generation.out=data/NEW), or go back to the old values."
        )


if __name__ == "__main__":
    run_command(main)
