"""A run of three rounds made by hand: the second adapter is no better than the first one, the third one is."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.config import Config
from ratchet.core.files import Segment, write_json
from ratchet.core.records import content_key
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.comparisons import compare
from ratchet.evaluation.results import BASE, Arm
from ratchet.questions.manifest import open_run
from ratchet.rounds.records import Entry, Promotion, StageId
from tests.helpers.handmade_run import (
    HOSTILE,
    add_evaluation,
    add_sampling,
    add_selection,
    add_training,
    make_config,
    questions_of,
)

SKILL = {1: 0.5, 2: 0.5, 3: 0.95}
"""Of each round's adapter."""


def digest(*parts: object) -> str:
    return content_key("handmade", *parts)


def make_rounds(folder: Path, dev: int = 24, train: int = 8) -> tuple[Config, RunFolder]:
    """Sampled, selected, trained and judged three times; the last adapter is measured on test."""
    config = make_config(folder, train, test=20, dev=dev)
    run = open_run(config)
    parent: Arm | None = None
    sampled_by = BASE
    for n, skill in SKILL.items():
        here = run.round(n)
        add_selection(config, here, add_sampling(config, here, samples=4, skill=0.1 * n))
        add_training(here, steps=20)
        trained = digest("adapter", n)
        arms = (
            ("base", "base", 0.12),
            ("adapter", trained, skill),
            ("base again", "base-seed+1", 0.12),
            ("no retrieval", "base", 0.05),
        )
        results = add_evaluation(config, here, "dev", arms)
        candidate = results.arm("adapter")
        assert candidate is not None
        against = compare(parent or results.arms[0], candidate, questions_of("dev", dev), "f1", 0).measures["f1"]
        promoted = bool(against.mean and against.mean > 0 and against.p is not None and against.p < 0.05)
        measure = HOSTILE if n == 2 else "F1"
        promotion = Promotion(
            round=n,
            candidate=trained,
            parent=sampled_by,
            split="dev",
            measure="f1",
            base=results.arms[0].measures["f1"].mean,
            difference=against,
            promoted=promoted,
            reason=f"{measure} {against.before:.2f} -> {against.after:.2f}, p = {against.p:.3f}.",
        )
        write_json(run.round(n).promotion, promotion.model_dump(mode="json"))
        add_entries(run, n, sampled_by)
        if promoted:
            parent, sampled_by = candidate, trained
    last = run.round(max(SKILL))
    add_evaluation(config, last, "test", (("base", "base", 0.12), ("adapter", sampled_by, 0.8)))
    return config, run


def add_entries(run: RunFolder, n: int, sampled_by: str) -> None:
    """The lines of one round in the ledger; in the second round scoring was done twice."""
    made = {what: digest(what, n) for what in ("trajectories", "scores", "selection", "rows", "adapter", "evaluation")}
    data = {"questions": digest("questions"), "index": digest("index")}
    old = {"scores": digest("scores", "old"), "selection": digest("selection", "old")}
    scored = {"reading": ["trajectories"], "making": ["scores", "selection"]}
    stages: list[tuple[StageId, dict[str, str], dict[str, str]]] = []
    stages += [("index", {}, {"index": data["index"]})] if n == 1 else []
    stages += [("sample", {**data, "adapter": sampled_by}, {"trajectories": made["trajectories"]})]
    stages += [("score", {"trajectories": made["trajectories"]}, old)] if n == 2 else []
    later: tuple[tuple[StageId, list[str], list[str]], ...] = (
        ("score", scored["reading"], scored["making"]),
        ("train", ["trajectories", "selection"], ["rows", "adapter"]),
        ("evaluate", ["adapter"], ["evaluation"]),
        ("promote", ["evaluation", "adapter"], []),
    )
    for stage, reading, making in later:
        stages.append((stage, {what: made[what] for what in reading}, {what: made[what] for what in making}))
    with Segment(run.ledger) as segment:
        for hour, (stage, inputs, outputs) in enumerate(stages):
            segment.append(
                Entry(
                    round=n,
                    stage=stage,
                    member="",
                    inputs=inputs,
                    outputs=outputs,
                    facts={"note": HOSTILE} if stage == "index" else {"trajectories": 96, "mean_reward": 0.1312345},
                    began=f"2026-03-0{n}T1{hour}:05:09+00:00",
                    seconds=61.0 * (hour + 1),
                    machine=HOSTILE if stage == "index" else f"node-{n}",
                )
            )
