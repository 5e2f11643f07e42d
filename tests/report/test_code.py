"""The code that made a run, as its report states it."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.files import Segment, read_json_file
from ratchet.questions.manifest import open_run
from ratchet.rounds.records import Entry
from tests.helpers.handmade_run import make_config
from tests.helpers.reported import gathered


def test_stages_of_other_code_than_began_the_run_are_said(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=1, test=1, dev=1)
    run = open_run(config)
    patched = Entry(
        round=1, stage="score", member="", inputs={}, outputs={}, facts={}, began="2026-11-28T08:00:00", seconds=1.0,
        machine="here", code="abc+changes", anyway="the index is another",
    )  # fmt: skip
    with Segment(run.ledger) as ledger:
        ledger.extend([patched, patched, patched.model_copy(update={"code": "", "anyway": ""})])
    found = gathered(config, run.round(1))
    began = read_json_file(run.manifest)["code"]
    assert found.code == (began, "abc+changes")
    assert not any("--anyway" in line for line in found.missing), "the last entry of a stage counts"
