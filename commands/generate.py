"""Make questions with answers from a corpus: train, dev and test, from different documents.

    ratchet generate --config configs/small/generate.yaml

The section `generation` says how (`settings.py`). Its folder `out` gets train.jsonl, dev.jsonl and test.jsonl in
Ratchet's own format; candidates.jsonl, every candidate with its categories, replies and why it was dropped;
calls.jsonl, every reply of a model; report.json, the numbers; and made_with.json, what made them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.core.config import SPLITS, Config, GenerationConfig, written
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file, write_json, write_jsonl
from ratchet.core.runfolder import path_digest
from ratchet.index_build.documents import read_documents
from ratchet.inference.engine import Engine
from ratchet.inference.engines import close_engines, max_requests, open_engines
from ratchet.question_generation.corpus import divide_documents
from ratchet.question_generation.generate import Plan, generate, summarise, summary_lines
from ratchet.question_generation.prompts import DEFAULT_CATEGORIES, VERSION, load_categories

MAY_CHANGE = {"out", "attempts"}
"""Settings that leave finished candidates as they are."""


def generate_questions(config: Config, options: argparse.Namespace) -> None:
    """Generate questions as the config says."""
    if config.generation is None:
        raise UserError(f"{options.config}: no section `generation`; at least: generation: {{out: data/made}}")
    if not config.index.documents:
        raise UserError(f"{options.config}: index.documents is empty; name the documents to write questions from")
    for line in build(config, config.generation):
        print(line)


def build(config: Config, settings: GenerationConfig) -> list[str]:
    """Generate the questions and write all files; returns the summary as lines of text."""
    folder = Path(settings.out)
    categories = load_categories(Path(settings.categories) if settings.categories else DEFAULT_CATEGORIES)
    plan = Plan(settings, config.seed, categories)
    corpus = divide_documents(
        (document for path in config.index.documents for _, document in read_documents(Path(path))),
        settings,
        config.seed,
    )
    with contextlib.closing(asyncio.Runner()) as runner:
        engines = open_engines(config.models, {settings.model})
        try:
            check_made_with(folder, made_with(plan, config.index.documents, engines))
            concurrency = max_requests(settings.model, config.models[settings.model])
            outcome, candidates = runner.run(generate(plan, corpus, engines[settings.model], folder, concurrency))
        finally:
            runner.run(close_engines(engines))
    for split in SPLITS:
        write_jsonl(folder / f"{split}.jsonl", [c.as_question() for c in outcome.accepted if c.split == split])
    used = {f"for {split}": len(pool.documents) for split, pool in corpus.pools.items()}
    report = {"documents": corpus.counts | used, **summarise(outcome, candidates, settings)}
    write_json(folder / "report.json", report)
    text = [
        *summary_lines(report),
        f"{folder}: questions, candidates.jsonl with every reason, report.json with all numbers",
    ]
    missing = sum(split["missing"] for split in report["splits"].values())
    if missing:
        text.append(f"{missing} questions are missing: raise generation.attempts and run again, or use a better model")
    return text


def made_with(plan: Plan, documents: Sequence[str], engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Return everything that decides which questions are generated."""
    return {
        "settings": plan.settings.model_dump(mode="json", exclude=MAY_CHANGE),
        "seed": plan.seed,
        "models": {name: engine.fingerprint for name, engine in engines.items()},
        "documents": {written(path): path_digest(Path(path)) for path in documents},
        "categories": plan.categories.model_dump(mode="json"),
        "prompts": VERSION,
    }


def check_made_with(folder: Path, inputs: dict[str, Any]) -> None:
    """Record in the folder what its questions are made with. Raises UserError where that has changed."""
    path = folder / "made_with.json"
    if not path.exists():
        write_json(path, inputs)
        return
    try:
        old = read_json_file(path)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore it or choose another generation.out") from error
    before, now = old.get("settings", {}), inputs["settings"]
    changes = [f"generation.{k}: {before.get(k)!r} there, {now[k]!r} now" for k in now if before.get(k) != now[k]]
    changes += [f"{k}: changed since" for k in inputs if k != "settings" and old.get(k) != inputs[k]]
    if changes:
        raise UserError(
            f"{folder} was started with other settings:\n  " + "\n  ".join(changes) + "\n"
            "Choose another folder (--set generation.out=data/NEW), or go back to the old values."
        )
