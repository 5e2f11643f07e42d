"""The page of a hand-made run: it holds the numbers, it is inert, it needs nothing, and it works with parts missing."""

import base64
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments, write_jsonl
from ratchet.core.records import Selection, Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.questions.manifest import open_run
from ratchet.report.page import render, reward_text
from ratchet.report.run_table import read_run
from ratchet.report.view import DetailReader, View, make_index, make_view, pack
from ratchet.sampling.store import FIRST_SEGMENT
from ratchet.training.rows import read_rows, table_rows
from tests.helpers.commands import command_of
from tests.helpers.handmade_run import (
    HOSTILE,
    add_evaluation,
    add_sampling,
    add_selection,
    add_training,
    make_config,
    make_run,
)
from tests.helpers.reported import gathered, unpack
from tests.helpers.reported import page as page_of

main = command_of("report")

Run = tuple[Config, RoundFolder, str]


class Page(HTMLParser):
    """Elements, attributes and visible text, as a browser's parser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._in.append(tag)
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._in and tag == self._in[-1]:
            self._in.pop()

    def handle_data(self, data: str) -> None:
        if self._in:
            self.scripts[-1] += data
        else:
            self.text += data

    @cached_property
    def data(self) -> dict[str, Any]:
        """The index with the details of every trajectory in its line, and the passages."""
        parts = {attrs["id"]: text for attrs, text in zip(self.data_elements, self.scripts[1:-1], strict=True)}
        return merged(View(unpack(parts["index"]), [parts[f"chunk-{i}"] for i in range(len(parts) - 1)]))

    @property
    def data_elements(self) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.elements if tag == "script" and attrs.get("type") == "text/plain"]

    @property
    def running_scripts(self) -> int:
        return sum(tag == "script" for tag, _ in self.elements) - len(self.data_elements)


def merged(view: View) -> dict[str, Any]:
    """The view as one: each trajectory's line with its details, where they are there."""
    sections = json.loads(json.dumps(view.index["sections"]))
    chunks = [unpack(chunk) for chunk in view.chunks]
    details = {run["key"]: run for chunk in chunks for run in chunk["runs"]}
    passages = {name: passage for chunk in chunks for name, passage in chunk["passages"].items()}
    for question in (question for section in sections for question in section["questions"]):
        for run in question["runs"]:
            run |= details[run["key"]] if question["chunk"] is not None else {}
    return {**view.index, "passages": passages, "sections": sections}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config, folder = make_run(tmp_path_factory.mktemp("run"))
    return config, folder, page_of(config, folder)


@pytest.fixture(scope="module")
def page(run: Run) -> Page:
    return Page(run[2])


def trajectories_of(page: Page, name: str) -> Iterator[dict[str, Any]]:
    section = next(s for s in page.data["sections"] if s["name"] == name)
    for question in section["questions"]:
        yield from question["runs"]


def test_the_reward_is_a_mean_or_with_costs_a_formula() -> None:
    assert reward_text({"f1": 3.0, "./mine.py": 0.5}) == "weighted mean of 3 × f1, 0.5 × mine"
    costly = {"f1": 3.0, "model_calls": -0.2, "em": 1.0}
    assert reward_text(costly) == "(3 × f1 + 1 × em - 0.2 × model calls) / 4, at least -1"


@pytest.mark.slow
def test_the_numbers_and_the_verdict_are_on_the_page(run: Run, page: Page) -> None:
    folder = run[1]
    results = json.loads((folder.evaluation / "results.json").read_text())
    visible = " ".join(page.text.split())
    assert results["headline"] in visible and results["numbers"].replace("->", "→") in visible
    for arm in results["arms"]:
        f1 = arm["measures"]["f1"]
        assert f"{f1['mean']:.3f} [{f1['low']:.3f}, {f1['high']:.3f}]" in visible
    assert "no retrieval" in visible
    assert "one hop" in visible and "Round by round" not in visible


@pytest.mark.slow
def test_questions_gained_and_broken_are_on_the_page_beside_what_changes_by_chance(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=4, test=30)
    folder = open_run(config).round(1)
    arms = (
        ("base", "base", 0.3),
        ("adapter", "0f3a91c4", 0.9),
        ("random selection", "1c2d3e4f", 0.2),
        ("base again", "base-seed+1", 0.3),
    )
    results = add_evaluation(config, folder, "test", arms)
    trained, again = results.changes("adapter"), results.changes("base again")
    assert trained is not None and again is not None and trained.gained > again.gained > 0
    shown = " ".join(Page(page_of(config, folder)).text.split())
    assert (
        f"Changed questions: gained {trained.gained}, broken {trained.broken}; "
        f"base again against base: gained {again.gained}, broken {again.broken}." in shown
    )
    assert "in F1 over random trajectories" in shown


def test_the_plots_are_drawn_in_place(page: Page) -> None:
    labels = [attrs["aria-label"] for tag, attrs in page.elements if tag == "svg"]
    assert len(labels) == 3
    assert "training loss by step" in labels
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_statuses_and_errors_are_counted_apart(run: Run, page: Page) -> None:
    config, folder, _ = run
    stored = list(read_segments(folder.trajectories, Trajectory))
    tally = gathered(config, folder).tallies[0]
    assert tally.total == len(stored)
    for status in ("finished", "unparsed", "out_of_budget", "failed"):
        assert tally.statuses[status] == sum(t.status == status for t in stored)
    assert "EngineError: the server closed the connection" in page.text


def test_hostile_text_is_inert(run: Run, page: Page) -> None:
    assert page.running_scripts == 1, "the page's own"
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe", "object", "embed", "link", "base", "form")]
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert page.data["passages"]["evil"]["text"] == HOSTILE, "what was retrieved is shown as it was"
    assert "<script>alert" not in run[2]


def test_nothing_is_loaded_and_only_the_pages_own_script_may_run(run: Run, page: Page) -> None:
    for tag, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert (attrs.get(name) or "#").startswith("#"), f"<{tag} {name}={attrs.get(name)}>"
    styles = " ".join(attrs["style"] or "" for _, attrs in page.elements if "style" in attrs)
    assert "@import" not in run[2]
    assert not re.search(r"url\((?!#)", styles)
    policy = next(a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv")) or ""
    assert "default-src 'none'" in policy
    own = page.scripts[-1]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "innerHTML" not in own and "eval(" not in own


@given(st.text())
def test_any_text_survives_the_data_element(text: str) -> None:
    page = Page(f'<script type="text/plain">{pack({"sections": text})}</script><p>after')
    assert unpack(page.scripts[0]) == {"sections": text}
    assert [tag for tag, _ in page.elements] == ["script", "p"]


def test_why_every_question_was_kept_or_dropped(run: Run, page: Page) -> None:
    folder = run[1]
    selection = Selection.model_validate_json(folder.selection.read_bytes())
    shown = {choice["id"]: choice for choice in page.data["choices"]}
    assert {i: c["reason"] for i, c in shown.items()} == {c.question_id: c.reason for c in selection.questions}
    assert {i: c["kept"] for i, c in shown.items()} == {c.question_id: len(c.kept) for c in selection.questions}


def test_kept_trajectories_come_first_and_are_marked(run: Run, page: Page) -> None:
    folder = run[1]
    kept = set(Selection.model_validate_json(folder.selection.read_bytes()).kept)
    assert {r["key"] for r in trajectories_of(page, "sampled") if r["kept"]} == kept
    for question in page.data["sections"][0]["questions"]:
        marks = [r["kept"] for r in question["runs"]]
        assert marks == sorted(marks, reverse=True)


def test_samples_of_a_curriculum_are_marked_where_they_are_kept_or_held_out(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=24)
    folder = RoundFolder(config.folder / "round-1")
    made = add_sampling(config, folder, samples=3, skill=0.9)
    led = [one.model_copy(update={"learners": ("answerer",) if one.sample == 2 else ()}) for one in made]
    write_jsonl(folder.trajectories / FIRST_SEGMENT, led)
    add_selection(config, folder, led)
    found = gathered(config, folder)
    assert found.selection is not None and any(choice.kept for choice in found.selection.curriculum)
    runs = [run for question in make_index(found)["sections"][0]["questions"] for run in question["runs"]]
    assert {run["key"] for run in runs if run["kept"]} == set(found.selection.kept)
    trained = DetailReader(config).trained(found, found.selection.kept)
    assert {row.held_out for row in trained.values()} == {True, False}
    assert len(found.tallies[0].rewards) == sum(
        value is not None for choice in found.selection.questions for value in choice.rewards.values()
    )
    assert read_run(config.folder)["learners"].to_pylist().count("answerer") == 24


def test_what_was_trained_on_is_marked_token_for_token(run: Run, page: Page) -> None:
    folder = run[1]
    rows = {(row.trajectory, row.conversation): row for row in table_rows(read_rows(folder.rows).table)}
    states = set()
    for shown in trajectories_of(page, "sampled"):
        for i, conversation in enumerate(shown["conversations"]):
            row = rows.get((shown["key"], i))
            marked = [kind for kind, tokens, _ in conversation["spans"] for _ in range(tokens)]
            learnt = [int(kind in ("trained", "held")) for kind in marked]
            assert learnt == (list(row.loss_mask) if row else [0] * len(marked))
            states |= set(marked)
        for event in shown["events"]:
            if event["kind"] == "model" and event["trained"]:
                assert shown["kept"] and event["parse"] != "malformed" and not event["frozen"]
    assert {"trained", "held", "sampled"} <= states


def test_base_and_trained_stand_side_by_side(page: Page) -> None:
    section = next(s for s in page.data["sections"] if s["name"] == "evaluated")
    assert section["total"] == 30
    for question in section["questions"]:
        assert [r["arm"] for r in question["runs"]] == ["base", "adapter", "no retrieval"]


@pytest.mark.slow
def test_a_large_run_shows_a_mix_and_says_so(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, train=24, test=2)
    selection = Selection.model_validate_json(folder.selection.read_bytes())
    dropped = [
        choice.model_copy(update={"kept": (), "reason": "dropped: by hand"} if i % 2 else {})
        for i, choice in enumerate(selection.questions)
    ]
    folder.selection.write_text(selection.model_copy(update={"questions": tuple(dropped)}).model_dump_json())
    text = page_of(config, folder, 6)
    page = Page(text)
    section = page.data["sections"][0]
    assert (len(section["questions"]), section["total"]) == (6, 24)
    assert sum(bool(q["kept"]) for q in section["questions"]) == 3
    assert "6 of 24 questions are on this page" in page.text
    assert len(page.data["choices"]) == 24, "the reasons of all questions stay"


def test_a_trajectory_that_was_done_again_counts_once(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=3)
    folder = open_run(config).round(1)
    made = add_sampling(config, folder, samples=2)
    part = folder.trajectories / "part-0.jsonl"
    failed = made[0].model_copy(update={"status": "failed", "error": "gone"})
    lines = [failed, *made, made[1]]
    part.write_text("".join(t.model_dump_json() + "\n" for t in lines) + '{"torn')
    tally = gathered(config, folder).tallies[0]
    assert tally.total == len(made)
    assert "gone" not in {error for _, error in tally.errors}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["evaluation", "selection.json", "rows.parquet", "training", "trajectories", "scores"])
def test_a_missing_part_is_named_and_the_rest_is_there(run: Run, tmp_path: Path, part: str) -> None:
    config, folder, _ = run
    shutil.copytree(folder.path, tmp_path / "round-1")
    gone = tmp_path / "round-1" / part
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    copy = RoundFolder(tmp_path / "round-1")
    found = gathered(config, copy, max_questions=5)
    page = Page(render(config, found))
    assert "Provenance" in page.text
    if part != "scores":
        assert len(found.missing) == 1
        assert " ".join(found.missing[0].split()) in " ".join(page.text.split())


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    page = Page(page_of(config, open_run(config).round(1)))
    assert "Not evaluated yet" in page.text
    assert "ratchet sample" in page.text


@pytest.mark.slow
def test_without_the_question_files_ids_stand_in(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, train=4, test=4)
    Path(config.questions.train.path).unlink()
    page = Page(page_of(config, folder))
    assert page.data["sections"][0]["questions"][0]["text"] == "train-000"
    assert "cannot be shown" in page.text


def test_a_torn_log_line_and_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    folder = open_run(config).round(1)
    add_training(folder, steps=20)
    log = folder.training / "log.jsonl"
    log.write_text('{"step": 0, "loss": NaN}\n' + log.read_text())
    training = gathered(config, folder).training
    assert [line.step for line in training] == list(range(21))
    assert training[0].loss is None
    assert training[10].dev_loss is not None and training[10].loss is not None


@pytest.mark.slow
def test_the_command_writes_the_page_into_the_run_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, _, text = run
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json())
    monkeypatch.setattr(sys, "argv", ["report", "--config", str(path)])
    main()
    report = RunFolder(config.folder).report
    assert str(report) in capsys.readouterr().out
    assert report.read_text() == text, "the same records give the same page"
    monkeypatch.setattr(sys, "argv", ["report", "--config", str(path), "--set", f"run={tmp_path / 'nowhere'}"])
    with pytest.raises(UserError, match="no such run folder"):
        main()


@pytest.mark.slow
def test_a_page_keeps_to_its_size_by_listing_questions_without_details(run: Run) -> None:
    config, folder, _ = run
    records, details = gathered(config, folder), DetailReader(config)
    whole, small = make_view(records, details), make_view(records, details, max_bytes=400_000)
    for before, after in zip(whole.index["sections"], small.index["sections"], strict=True):
        assert [q["id"] for q in after["questions"]] == [q["id"] for q in before["questions"]]
        assert 0 < sum(q["chunk"] is not None for q in after["questions"]) < len(before["questions"])
    assert set(merged(small)["passages"]) < set(merged(whole)["passages"]), "passages that nobody shows go too"
    held = sum(line.place.length for s in records.sections for lines in s.lines.values() for _, line in lines)
    assert sum(map(len, whole.chunks)) < held / 8, "what trajectories repeat is compressed"
