"""`ratchet init` writes a config that runs, from documents and questions alone."""

import json
from pathlib import Path

import pytest

from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.questions.load import load_questions
from tests.helpers.commands import command_of
from tests.helpers.pdf import pdf

main = command_of("init")
questions = command_of("questions")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Markdown, ten questions as CSV and ten claims as JSONL."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for i in range(10):
        (tmp_path / "notes" / f"harbour-{i}.md").write_text(
            f"# Harbour {i}\n\nTown{i}'s harbour was built by Name{i}.\n"
        )
    rows = "".join(f"Who built the harbour of Town{i}?,Name{i},harbour-{i}.md\n" for i in range(10))
    (tmp_path / "q.csv").write_text("question,answer,gold_id\n" + rows)
    claims = ({"claim": f"Name{i} built Town{i}'s harbour.", "label": i % 2 == 0} for i in range(10))
    (tmp_path / "claims.jsonl").write_text("".join(json.dumps(claim) + "\n" for claim in claims))
    return tmp_path


def test_questions_and_a_small_model(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["notes", "q.csv"])
    said = capsys.readouterr().out
    assert "10 in notes" in said and "7 train, 1 dev, 2 test" in said and "135M parameters" in said
    assert "2 test questions are too few" in said
    assert "ratchet selftrain --config notes.yaml" in said
    assert "is not here yet; `ratchet models build` builds it" in said
    assert "  ratchet models build --out models/smollm2" in said
    config = load_config("notes.yaml")
    assert (config.system.name, config.models["agent"].dtype, config.system.role("answerer").max_tokens) == (
        "mrag",
        "float32",
        64,
    )
    assert list(config.rewards.weights) == ["answer_match", "lexical_support"]
    assert len(load_questions(config.questions.train, config.seed)) == 7


def test_claims_are_checked_and_rewarded_by_their_label(mine: Path) -> None:
    main(["notes", "claims.jsonl", "--out", "configs/claims.yaml"])
    config = load_config("configs/claims.yaml")
    assert (config.system.name, list(config.rewards.weights)) == ("mermaid", ["accuracy", "lexical_support"])


def test_a_large_model_is_served_and_judged(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["notes", "q.csv", "--model", "some/Model-7B-Instruct", "--judge", "some/Judge-14B"])
    config = load_config("notes.yaml")
    assert (config.models["agent"].engine, config.models["judge"].path) == ("vllm", "some/Judge-14B")
    assert "correctness" in config.rewards.weights and config.system.settings == {}
    supported_but_silent = (4 * 1 / 3 + 1) / 5  # a nugget that is left out counts a third
    assert config.rewards.select.min_reward is not None and config.rewards.select.min_reward > supported_but_silent
    assert "7.0B parameters: judged by some/Judge-14B" in capsys.readouterr().out


def test_three_files_are_the_three_splits(mine: Path) -> None:
    rows = (mine / "q.csv").read_text().splitlines()
    for name, part in (("train", rows[1:6]), ("dev", rows[6:8]), ("test", rows[8:])):
        (mine / f"{name}.csv").write_text("\n".join([rows[0], *part]))
    main(["notes", "train.csv", "dev.csv", "test.csv"])
    config = load_config("notes.yaml")
    assert [len(load_questions(split)) for split in (config.questions.train, config.questions.test)] == [5, 3]


def test_all_flaws_of_documents_and_questions_are_named_in_one_run(mine: Path) -> None:
    (mine / "notes" / "scan.pdf").write_bytes(pdf(""))
    (mine / "notes" / "blank.txt").write_text(" \n")
    (mine / "notes" / "binary.txt").write_bytes(b"\0\1")
    (mine / "q.csv").write_text('Question;Answer\nWho?\n;Ada\nWhat?;"a"b\nWhere?;C\n')
    with pytest.raises(UserError) as caught:
        main(["notes", "q.csv"])
    said = str(caught.value)
    places = ("q.csv:2: ", "q.csv:3: ", "q.csv:4: ", "notes/binary.txt: ", "notes/blank.txt: ", "notes/scan.pdf: ")
    assert all(place in said for place in places), said
    assert said.count("\n") == 7, "one line each, and a head for each of the two"


def test_what_is_not_read_of_the_folder_and_another_encoding_are_no_error(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine / "notes" / "slides.pptx").touch()
    rows = "".join(f"Wer baute den Hafen von Köln{i}?;Müller{i}\r\n" for i in range(10))
    (mine / "q.csv").write_bytes(f"Question;Answer\r\n{rows}".encode("windows-1252"))
    main(["notes", "q.csv"])
    said = capsys.readouterr().out
    assert "10 in notes" in said and "not read    1 .pptx" in said and "10 questions with answers" in said
    questions = load_questions(load_config("notes.yaml").questions.train)
    assert all(question.answers[0].startswith("Müller") for question in questions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "q.csv"], "nowhere: there are no documents here"),
        (["notes", "few.csv"], "2 questions are too few to divide"),
        (["notes", "bad.csv"], r"bad\.csv:2: anwser: unknown field \(did you mean .answer.\?\)"),
        (["notes", "q.csv", "--out", "there.yaml"], "there.yaml exists"),
        (["empty", "q.csv"], "empty: no documents"),
    ],
)
def test_what_cannot_be_used_is_named(mine: Path, arguments: list[str], message: str) -> None:
    (mine / "empty").mkdir()
    (mine / "there.yaml").write_text("run: x\n")
    (mine / "few.csv").write_text("question,answer\nWho?,A\nWhat?,B\n")
    (mine / "bad.csv").write_text("question,anwser\nWho?,A\nWhat?,B\nWhere?,C\n")
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_a_model_that_can_write_no_prompt_is_refused_before_the_config_is_written(mine: Path) -> None:
    (mine / "model-1b").mkdir()
    with pytest.raises(UserError, match="model-1b: cannot"):
        main(["notes", "q.csv", "--model", "./model-1b"])
    assert not (mine / "notes.yaml").exists()


def test_a_judge_that_is_not_used_is_a_warning(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["notes", "q.csv", "--judge", "some/Judge-14B"])
    assert "--judge some/Judge-14B is not used" in capsys.readouterr().out


def test_a_model_of_a_hub_that_cannot_be_reached_is_a_warning(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    main(["notes", "q.csv", "--model", "some/Model-7B-Instruct", "--judge", "some/Judge-14B"])
    said = capsys.readouterr().out
    for model in ("some/Model-7B-Instruct", "some/Judge-14B"):
        assert f"{model} is not on this machine, and the hub is not there to ask" in said


def test_flaws_of_several_files_are_named_by_file_and_line(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (mine / "q.csv").read_text().splitlines()
    for name, part in (("train", rows[1:6]), ("dev", [*rows[6:8], rows[1]]), ("test", rows[8:])):
        (mine / f"{name}.csv").write_text("\n".join([rows[0], *part]))
    main(["notes", "train.csv", "dev.csv", "test.csv"])
    questions(["check", "--config", "notes.yaml"])
    assert "1 of the 3 questions of questions.dev" in capsys.readouterr().out
    for name in ("train", "test"):
        (mine / f"{name}.csv").write_text("question,answer\n ,x\n")
    with pytest.raises(UserError) as caught:
        questions(["check", "--config", "notes.yaml"])
    assert all(f"{name}.csv:2: " in str(caught.value) for name in ("train", "test"))
