"""A fork reads the trajectories of another run where they lie, and never others than it was made with."""

import os
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.files import (
    REFERENCES,
    count_lines,
    read_json_file,
    read_segments,
    refer_to,
    segment_files,
    write_jsonl,
)
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.rewards.store import call_log_file, kept_log_file, record_settings
from ratchet.rounds.artefacts import Digests, Segments
from ratchet.rounds.ledger import read_ledger
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.commands import command_of
from tests.helpers.experiment import command, make_experiment
from tests.helpers.stored import store
from tests.helpers.world import sample_trajectory

fork, sample, score, status = (command_of(name) for name in ("fork", "sample", "score", "status"))


def folder_of(path: Path) -> RunFolder:
    return RunFolder(path.parent / "run")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose run is sampled and scored."""
    path = make_experiment(tmp_path, questions=4)
    for words in (["index"], ["sample"], ["score"]):
        assert command("-m", "ratchet", *words, "--config", str(path)).returncode == 0
    return path


def forked(path: Path, *words: str, name: str = "new") -> RunFolder:
    source = str(path.parent / "run")
    fork([str(path.parent / name), "--from", source, "--config", str(path), *words])
    return RunFolder(path.parent / name)


def own_segments(run: RunFolder) -> list[Path]:
    return [path for path in run.path.rglob("*.jsonl") if path != run.ledger]


def keys(run: RunFolder) -> list[str]:
    return [one.key for one in TrajectoryStore(run.round(1).trajectories).read()]


def test_a_fork_has_the_trajectories_and_scores_of_its_source_and_copies_none(config: Path) -> None:
    source = folder_of(config)
    scores, settings = source.round(1).scores, {"judge": "j", "runs": 3}
    record_settings(scores, "relevance", settings)
    kept, unfinished = (of(scores, "relevance", settings) for of in (kept_log_file, call_log_file))
    for log in (kept, unfinished):
        write_jsonl(log, [{"owner": "a reply"}])
    new = forked(config, "--set", "rewards.select.ties=1")
    unfinished.unlink()  # as when the source's scores are finished
    assert [file.path for file in segment_files(new.round(1).scores / "judge")] == [kept]
    assert not own_segments(new) and keys(new) == keys(source) and len(keys(new)) == 16
    digest = Segments(new.round(1).trajectories).digest(Digests(new))
    assert digest == Segments(source.round(1).trajectories).digest(Digests(source)) is not None
    assert [entry.stage for entry in read_ledger(new)] == ["index", "sample"]
    assert read_ledger(new)[1].facts["forked_from"] == str(source.path)
    assert read_json_file(new.manifest)["forked_from"] == str(source.path)
    assert set(read_json_file(new.round(1).scores / "settings.json")) == {"f1", "lexical_support", "relevance"}


@pytest.mark.slow
def test_a_fork_is_trained_without_the_model_that_sampled(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = forked(config, "--set", "rewards.select.ties=1")
    (config.parent / "script.jsonl").unlink()
    words = ["--config", str(config), "--set", f"run={new.path}"]
    for stage in ("score", "train"):
        assert command("-m", "ratchet", stage, *words).returncode == 0
    assert not own_segments(new) or own_segments(new) == [new.round(1).training / "log.jsonl"]
    assert (new.round(1).adapter / "adapter_config.json").exists()
    status(words)
    assert "forked from" in capsys.readouterr().out
    assert keys(forked_again := _fork_of(config, new)) == keys(new) and not own_segments(forked_again)


def _fork_of(path: Path, source: RunFolder) -> RunFolder:
    fork([str(path.parent / "third"), "--from", str(source.path)])
    return RunFolder(path.parent / "third")


@pytest.mark.slow
def test_more_samples_are_sampled_beside_those_of_the_source(config: Path) -> None:
    source, new = folder_of(config), forked(config, "--set", "sampling.samples=6")
    assert not read_ledger(new), "its sampling is not done"
    sample(["--config", str(config), "--set", f"run={new.path}"])
    own = [path for path in own_segments(new) if path.parent == new.round(1).trajectories]
    assert len(own) == 1 and len(own[0].read_bytes().splitlines()) == 4 * 2
    assert len(keys(new)) == 4 * 6 and set(keys(source)) < set(keys(new))


def test_trajectories_of_another_setting_are_refused(config: Path) -> None:
    with pytest.raises(UserError, match=r"samples others:\n  sampling.temperature: 0.7 there, 0.3 now"):
        forked(config, "--set", "sampling.temperature=0.3")
    assert not (config.parent / "new").exists()


@pytest.mark.slow
def test_a_source_that_was_changed_or_is_gone_is_an_error_that_says_so(config: Path) -> None:
    new = forked(config)
    [segment] = folder_of(config).round(1).trajectories.glob("*.jsonl")
    content = segment.read_bytes()
    segment.write_bytes(content + content.splitlines(keepends=True)[0].replace(b'"status"', b'"status" '))
    assert len(keys(new)) == 16, "lines that were appended do not count"
    segment.write_bytes(content.replace(b"Torrin", b"Morris"))
    with pytest.raises(UserError, match=f"{segment}: was changed, and .*new/round-1/trajectories refers to it"):
        keys(new)
    segment.write_bytes(content)
    os.utime(segment, (1, 1))
    assert len(keys(new)) == 16, "its content is what it was"
    segment.unlink()
    with pytest.raises(UserError, match=r"cannot be read any more .* delete .*references.json to have its work done"):
        keys(new)
    (new.round(1).trajectories / REFERENCES).unlink()
    sample(["--config", str(config), "--set", f"run={new.path}"])
    assert len(keys(new)) == 16 and len(own_segments(new)) > 0


def test_a_fork_moves_with_its_source(config: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    new = forked(config)
    moved = tmp_path_factory.mktemp("other") / "runs"
    expected = keys(new)
    config.parent.rename(moved)
    assert keys(RunFolder(moved / "new")) == expected


def test_only_a_complete_run_can_be_forked_and_only_into_a_new_folder(config: Path) -> None:
    new = forked(config)
    with pytest.raises(UserError, match="is a run already; choose another folder"):
        forked(config)
    new.ledger.unlink()  # as a kill before the end leaves it
    assert len(keys(forked(config))) == 16
    with pytest.raises(UserError, match="there is no run here"):
        fork([str(config.parent / "b"), "--from", str(config.parent / "nothing")])
    [segment] = folder_of(config).round(1).trajectories.glob("*.jsonl")
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:-3]))
    with pytest.raises(UserError, match="3 of 16 trajectories are missing; finish `ratchet sample`"):
        forked(config, name="c")


def test_a_reference_reads_what_was_there(tmp_path: Path) -> None:
    made = store(tmp_path / "a", [sample_trajectory(number, number) for number in range(3)])
    assert refer_to(tmp_path / "b", made.folder) == refer_to(tmp_path / "c" / "d", tmp_path / "b") == 1
    with made.open_segment() as segment:
        segment.append(sample_trajectory(4, 4))
    assert count_lines(segment_files(tmp_path / "c" / "d")) == 3 and count_lines(made.segments) == 4
    assert len(list(read_segments(tmp_path / "b", Trajectory))) == 3
    assert refer_to(tmp_path / "e", tmp_path / "nothing") == 0 and not (tmp_path / "e").exists()
