"""Two rounds through the real command, killed on the way: what was promoted, what links to what, what is repeated."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from html import unescape
from pathlib import Path

import pytest
import yaml

from ratchet.core.config import load_config
from ratchet.core.files import read_segments
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import read_arms
from ratchet.evaluation.formats import format_interval, format_number
from ratchet.inference.adapters import adapter_digest
from ratchet.report.plots import learning_curve
from ratchet.report.rounds import gather_rounds
from ratchet.rounds.ledger import read_ledger
from ratchet.rounds.records import Entry, read_promotions
from tests.helpers.experiment import ROOT, SCRIPT, command, kill, make_experiment, preloaded, write_lines
from tests.helpers.reported import page
from tests.helpers.waiting import wait_for

ADAPTED = [
    # With any adapter, the coordinator asks the answerer at once, who knows; base and adapter differ for sure.
    {"prompt": "Choose who acts next", "match": "Question:", "adapted": True, "reply": '{"agent": "answerer"}'},
    {"prompt": "Choose who acts next", "adapted": True, "reply": '{"agent": "finisher"}'},
    {"prompt": "Answer the question", "adapted": True, "reply": '{"answer": "Ada Torrin"}'},
]
ROUND = ["sample", "score", "train", "promote"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds, with a SIGKILL to all processes while the second
    samples and a SIGTERM while it trains."""
    folder = tmp_path_factory.mktemp("rounds")
    path = make_experiment(folder)
    write_lines(folder / "script.jsonl", *({**rule, "delay": 0.1} for rule in ADAPTED), *SCRIPT)
    settings = yaml.safe_load(path.read_text()) | {"rounds": {"count": 2}}
    settings["training"] |= {"max_steps": 16, "eval_steps": 8}
    path.write_text(yaml.safe_dump(settings))
    run = RunFolder(folder / "run")

    loop = begin(path)
    wait_for(lambda: lines(run.round(2).trajectories / "part-0.jsonl") >= 3, 240, loop)
    kill(loop)

    loop = begin(path)
    wait_for(lambda: lines(run.round(2).training / "log.jsonl") >= 1, 240, loop)
    loop.terminate()
    assert loop.wait() == 143
    assert not lines(run.round(2).promotion)
    status = command("-m", "ratchet", "status", "--config", str(path)).stdout
    assert "It resumes with 'train' of round 2" in status and "step" in status and "Running now" not in status

    done = command("selftrain.py", "--config", str(path))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": done before") == 7, "index, round 1, and what round 2 had sampled and selected"
    return path


def begin(config: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "selftrain.py", "--config", str(config)]
    return subprocess.Popen(arguments, cwd=ROOT, env=preloaded())


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def entries(run: RunFolder) -> dict[tuple[int, str], Entry]:
    return {(entry.round, entry.stage): entry for entry in read_ledger(run)}


@pytest.mark.slow
def test_an_adapter_is_promoted_that_is_better_and_the_next_is_not(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    first, second = read_promotions(run)
    assert first.promoted and first.parent == "base" and first.difference.after == 1.0
    assert first.candidate == adapter_digest(run.round(1).adapter)
    assert not second.promoted and second.parent == first.candidate != second.candidate
    assert second.difference.mean == 0.0 and second.base == first.base is not None
    results = json.loads((run.round(2).evaluation / "results-dev.json").read_bytes())
    assert [arm["name"] for arm in results["arms"]] == ["base", "parent", "adapter"]


@pytest.mark.slow
def test_the_second_round_samples_with_the_promoted_adapter_and_trains_it_on(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    first = adapter_digest(run.round(1).adapter)
    sampled = list(read_segments(run.round(2).trajectories, Trajectory))
    assert {t.policy for t in sampled} == {first}
    assert len(sampled) == len({t.key for t in sampled}) == 8 * 4, "nothing was lost or repeated"
    facts = json.loads((run.round(2).adapter / "training.json").read_bytes())
    assert facts["made_of"]["starting adapter"] == first
    assert f"(digest {first})" in (run.round(2).adapter / "README.md").read_text()


@pytest.mark.slow
def test_the_ledger_links_an_evaluation_to_the_questions(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    found = entries(run)
    assert [*found] == [(1, "index"), *((n, s) for n in (1, 2) for s in ROUND), (1, "test"), (2, "report")]
    for round_number in (1, 2):
        sample, score, train, promote = (found[round_number, stage] for stage in ROUND)
        assert sample.inputs["index"] == found[1, "index"].outputs["index"]
        assert score.inputs["trajectories"] == sample.outputs["trajectories"]
        assert train.inputs["selection"] == score.outputs["selection"]
        assert promote.inputs["adapter"] == train.outputs["adapter"]
        assert sample.facts["trajectories"] == 32 and score.facts["kept"] > 0
    assert found[2, "sample"].inputs["adapter"] == found[1, "train"].outputs["adapter"]
    assert found[2, "train"].inputs["adapter"] == found[2, "promote"].inputs["parent"]
    assert found[1, "test"].inputs["adapter"] == found[1, "train"].outputs["adapter"], "the promoted one is tested"
    assert not (run.round(2).evaluation / "results.json").exists(), "and no other"


@cache
def words_of(text: str) -> str:
    """What can be read of a page, with a space wherever a cell or a word in bold begins or ends."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.mark.slow
def test_the_page_shows_each_candidate_beside_the_adapter_that_it_follows(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    text = run.report.read_text()
    words, found = words_of(text), gather_rounds(run)
    plot = learning_curve(found)
    assert "8 questions of dev" in words and words.count(" not promoted ") == 1
    assert plot is not None and plot.svg in text
    for n in found:
        assert n.promotion is not None and n.selection is not None
        difference, base, after = n.promotion.difference, n.quality("base"), n.quality("adapter")
        assert base is not None and after is not None and f">{after.mean:.2f}</text>" in text
        cells = (format_number(base.mean, 3), format_interval(base, 3), f"{difference.before:.3f}")
        assert " ".join(filter(None, cells)) in words, "an interval of equal values is left out"
        assert f"{difference.before:.3f} {difference.after:.3f} {format_interval(after, 3)}".rstrip() in words
        rewards = [r for choice in n.selection.questions for r in choice.rewards.values() if r is not None]
        assert f"32 {sum(rewards) / len(rewards):.3f}" in words, "trajectories, mean reward"
        assert f"{sum(bool(choice.kept) for choice in n.selection.questions)} of 8" in words


@pytest.mark.slow
def test_the_page_of_one_round_tells_what_was_decided_and_how_often_test_was_looked_at(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    whole = run.report.read_text()
    assert command("-m", "ratchet", "report", "--config", str(config), "--round", "2").returncode == 0
    second = words_of(run.report.read_text())
    run.report.write_text(whole)
    assert "run · round 2 · dev split, 8 questions" in second and "in round 1's folder, on test: " in second
    path, again = run.round(2).promotion, run.round(2).evaluation / "results.json"
    before = path.read_bytes()
    nothing = {"candidate": "", "measure": "", "difference": {"n": 0}, "promoted": False, "reason": "No candidate."}
    shutil.copy(run.round(1).evaluation / "results.json", again)
    try:
        for decided, told in (
            (nothing, "Round 2: No candidate."),
            ({"warning": "dev is too small"}, "Round 2, warning: dev is too small"),
        ):
            assert told not in words_of(whole) and "were looked at" not in words_of(whole)
            path.write_text(json.dumps(json.loads(before) | decided))
            words = words_of(page(load_config(config), run.round(2)))
            assert told in words and "looked at 2 times" in words
    finally:
        path.write_bytes(before)
        again.unlink()


@pytest.mark.slow
def test_what_is_known_on_dev_is_not_sampled_again(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    by_round = [
        read_arms(run.round(n), "dev")[arm] for n, arm in ((1, "base"), (2, "base"), (1, "adapter"), (2, "parent"))
    ]
    assert by_round[0] == by_round[1] and by_round[2] == by_round[3], "the same arm is the same folder"
    every = [t.key for store in set(by_round) for t in read_segments(store.folder, Trajectory)]
    assert len(every) == len(set(every)) > 0, "nothing was sampled twice"


@pytest.mark.slow
def test_a_finished_run_is_gone_through_without_a_stage(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    before = run.ledger.read_bytes()
    again = command("selftrain.py", "--config", str(config))
    assert again.returncode == 0 and again.stdout.count(": done before") == 11
    assert run.ledger.read_bytes() == before
    status = command("-m", "ratchet", "status", "--config", str(config))
    assert status.returncode == 0 and "Every stage is done" in status.stdout
    assert f"Promoted last: {run.round(1).adapter}" in status.stdout and "Promoted: F1" in status.stdout


@pytest.mark.slow
def test_a_changed_output_is_seen_and_made_again(config: Path) -> None:
    run = RunFolder(config.parent / "run")
    selection = run.round(2).selection
    before = selection.read_bytes()
    selection.write_bytes(before.replace(b"kept 1 of", b"kept 9 of"))
    status = command("-m", "ratchet", "status", "--config", str(config))
    assert "selection changed since it was done" in status.stdout
    assert "resumes with 'score and select' of round 2" in status.stdout
    again = command("selftrain.py", "--config", str(config))
    assert again.returncode == 0, again.stdout
    assert "score and select: again, selection changed since it was done" in again.stdout
    assert selection.read_bytes() == before
    assert Counter((e.round, e.stage) for e in read_ledger(run))[2, "score"] == 1, "it came to the same"
    assert "selection" not in command("-m", "ratchet", "status", "--config", str(config)).stdout


@pytest.mark.slow
def test_one_question_is_traced_through_the_rounds(config: Path) -> None:
    traced = command("-m", "ratchet", "trace", "--config", str(config), "train-3")
    assert traced.returncode == 0 and "round-1" in traced.stdout and "round-2" in traced.stdout
    first = read_promotions(RunFolder(config.parent / "run"))[0].candidate
    assert f"by {first}: finished 'Ada Torrin'  reward 0.800, kept" in traced.stdout
    listed = command("-m", "ratchet", "trace", "--config", str(config)).stdout.splitlines()
    assert any(line.startswith("train-3: ") and line.endswith(" kept") for line in listed), listed
    unknown = command("-m", "ratchet", "trace", "--config", str(config), "train-99")
    assert unknown.returncode == 2 and "'train-99'" in unknown.stdout
