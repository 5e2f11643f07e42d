"""The first hour with one's own data: files of five kinds and ten questions, by the commands of the guide alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.experiment import command
from tests.helpers.pdf import pdf
from tests.helpers.small_models import terse_model

TOWNS = ("Velm", "Tarn", "Oskel", "Brimm", "Duvay", "Harrow", "Quill", "Sallow", "Ember", "Gale")
BUILDERS = ("Torrin", "Maddock", "Fenwright", "Askel", "Brandt", "Corvey", "Dunmore", "Elstow", "Farrow", "Garrick")


def ratchet(folder: Path, *words: str, status: int = 0) -> str:
    """Run `ratchet ...` in the folder as a user would, and return what it printed."""
    done = command("-m", "ratchet", *words, folder=folder)
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.mark.model
@pytest.mark.slow
def test_from_a_folder_and_a_table_to_a_report(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    terse_model(smollm2, tmp_path / "models" / smollm2.name)
    (tmp_path / "notes").mkdir()
    for town, builder in zip(TOWNS, BUILDERS, strict=True):
        text = f"# The harbour of {town}\n\nThe harbour of {town} was built by {builder} after the great storm.\n"
        (tmp_path / "notes" / f"{town.lower()}.md").write_text(text)
    rows = [f"Who built the harbour of {town}?,{builder}" for town, builder in zip(TOWNS, BUILDERS, strict=True)]
    table = tmp_path / "questions.csv"

    notes = tmp_path / "notes"
    page = "<p>The lighthouse of Velm was lit by Torrin.</p><table><tr><td>Height</td><td>41 m</td></tr></table>"
    (notes / "light.html").write_text(f"<html><head><title>Light</title></head><body>{page}</body></html>")
    (notes / "ferry.pdf").write_bytes(pdf("The ferry of Tarn was built by Maddock."))
    (notes / "bridge.txt").write_bytes("Die Brücke von Oskel wurde von Fenwright gebaut.".encode("latin-1"))
    (notes / "slides.pptx").touch()

    # Seven flaws at first, which one run names, each with its file and line.
    flaws = {
        "scan.pdf: holds no text": pdf(""),
        "cut.pdf: cannot be read as PDF": pdf("Cut off")[:300],
        "blank.md: 'text' is empty": b" \n",
        "binary.txt: not UTF-8 text": b"\0\1",
    }
    for flaw, data in flaws.items():
        (notes / flaw.partition(":")[0]).write_bytes(data)
    table.write_text(
        "\n".join(["question,answer", *rows[:7], " ,Sallow", "Who built the harbour of Ember?", 'Who?,"a"b'])
    )
    said = ratchet(tmp_path, "init", "notes", "questions.csv", status=2)
    lines = ("questions.csv:9: ", "questions.csv:10: ", "questions.csv:11: ")
    assert all(flaw in said for flaw in (*flaws, *lines)), said
    for flaw in flaws:
        (notes / flaw.partition(":")[0]).unlink()
    # A spreadsheet's table, and its misspelt column.
    table.write_bytes("\r\n".join(["Question;Anwser", *(row.replace(",", ";") for row in rows)]).encode("utf-8-sig"))
    said = ratchet(tmp_path, "init", "notes", "questions.csv", status=2)
    assert "questions.csv:2: Anwser: unknown field (did you mean 'answer'?)" in said
    table.write_bytes(table.read_bytes().replace(b"Anwser", b"Answer"))

    said = ratchet(tmp_path, "init", "notes", "questions.csv")
    assert "not read    1 .pptx" in said
    assert "documents   13 in notes" in said
    assert "7 train, 1 dev, 2 test" in said and "ratchet selftrain --config notes.yaml" in said
    said = ratchet(tmp_path, "questions", "check", "--config", "notes.yaml")
    assert "questions.train: 7 questions of questions.csv: 7 with answers" in said
    ratchet(tmp_path, "index", "--config", "notes.yaml")
    assert "The harbour of Velm" in ratchet(tmp_path, "search", "Who built Velm's harbour?", "--config", "notes.yaml")
    assert "41 m" in ratchet(tmp_path, "search", "Height of the lighthouse", "--config", "notes.yaml")
    # Less of all, and every trajectory is kept: two of a question need not hold a good one.
    changes = ("sampling.samples=2", "rewards.select.min_reward=-1", "training.max_steps=2")
    less = [word for change in changes for word in ("--set", change)]
    said = ratchet(tmp_path, "selftrain", "--config", "notes.yaml", *less)
    assert "14 trajectories of 7 questions" in said
    assert (tmp_path / "runs" / "notes" / "report.html").exists()
    assert "report" in ratchet(tmp_path, "status", "--config", "notes.yaml", *less)
