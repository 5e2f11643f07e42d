"""`sampling.enough`: a question that has enough good trajectories is not sampled any more."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.sample import sample_round
from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_segment, write_jsonl
from ratchet.core.records import Question, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.fork import fork
from ratchet.sampling.store import FIRST_SEGMENT, Manifest, TrajectoryStore
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, scripted_model, write_config
from tests.helpers.tiny import save_tiny_tokenizer

SAMPLES = 6


def experiment(folder: Path, name: str = "run", **sampling: Any) -> Config:
    """Six samples of five questions, whose answers are right by chance; the fifth's never."""
    save_tiny_tokenizer(folder / "model")
    for split in SPLITS:
        asked = [
            Question(id=f"{split}{n}", text=f"{split}: who is {n}?", answers=("Ada",), reference="Ada")
            for n in range(5)
        ]
        write_jsonl(folder / f"{split}.jsonl", asked)
    rules = [{"match": "who is 4", "reply": "nobody"}, {"match": "who", "replies": ["Ada", "nobody", "somebody"]}]
    (folder / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in [*rules, {"default": "no"}]))
    values = {"system": {"name": "naive_gen"}, "models": {"agent": scripted_model(folder)}, "index": None}
    drawn = {"samples": SAMPLES, "concurrency": 3, **sampling}
    return load_config(write_config(folder, run=str(folder / name), sampling=drawn, **values))


def sampled(config: Config, **options: Any) -> tuple[Manifest, dict[str, Trajectory]]:
    sample_round(config, **options)
    store = TrajectoryStore(RunFolder(config.folder).round(1).trajectories)
    manifest = store.manifest()
    assert manifest is not None
    return manifest, {one.key: one for one in store.read()}


@pytest.mark.slow
def test_samples_follow_each_other_until_there_are_enough(tmp_path: Path) -> None:
    whole, all_of_them = sampled(experiment(tmp_path, "whole"))
    wanted: list[str] = []
    for at in range(0, len(whole.keys), SAMPLES):
        good = 0
        for key in whole.keys[at : at + SAMPLES]:
            if good < 2:
                wanted.append(key)
            good += "Ada" in all_of_them[key].answer
    config = experiment(tmp_path, enough=2)
    manifest, kept = sampled(config)
    assert list(manifest.keys) == wanted and set(kept) == set(wanted) and SAMPLES < len(wanted) < len(whole.keys)
    assert {*manifest.skipped} == {*whole.keys} - {*wanted}
    assert {key: one.answer for key, one in kept.items()} == {key: all_of_them[key].answer for key in wanted}
    command_of("score")(["--config", str(tmp_path / "config.yaml")])  # what was skipped is not missed
    assert RunFolder(config.folder).round(1).selection.exists()
    assert sampled(config) == (manifest, kept), "nothing is sampled twice, or after all"


@pytest.mark.slow
def test_what_was_interrupted_or_shared_ends_the_same(tmp_path: Path) -> None:
    manifest, kept = sampled(experiment(tmp_path, "once", enough=2))
    config = experiment(tmp_path, enough=2)
    sampled(config, part=(0, 2))
    [file] = RunFolder(config.folder).round(1).trajectories.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:20])  # killed in the middle of a line
    sampled(config, part=(0, 2))
    again, shared = sampled(config, part=(1, 2))
    assert (again.keys, again.skipped, set(shared)) == (manifest.keys, manifest.skipped, set(kept))


def test_a_fork_without_the_limit_samples_what_was_skipped(tmp_path: Path) -> None:
    source, kept = sampled(experiment(tmp_path, enough=2))
    config = experiment(tmp_path, "fork")
    fork(config, RunFolder(tmp_path / "run"))
    whole, found = sampled(config)
    assert set(whole.keys) == set(found) == {*source.keys, *source.skipped} and not whole.skipped
    own = read_segment(RunFolder(config.folder).round(1).trajectories / FIRST_SEGMENT, Trajectory)
    assert {one.key for one in own} == set(source.skipped)
    assert {key: found[key] for key in kept} == kept, "what was sampled is read where it lies"


def test_a_second_start_that_waited_for_the_first_samples_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, open_segment = experiment(tmp_path, enough=2), TrajectoryStore.open_segment
    first: list[object] = []

    def wait(store: TrajectoryStore, name: str) -> Segment:
        monkeypatch.setattr(TrajectoryStore, "open_segment", open_segment)
        first.append(sampled(config))
        return open_segment(store, name)

    monkeypatch.setattr(TrajectoryStore, "open_segment", wait)
    assert [sampled(config)] == first


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"weights": {"correctness": 1.0}}, "sampling.enough: rewards.weights.correctness asks a judge"),
        ({"weights": {"em": 1.0}, "select": {"min_reward": None}}, "sampling.enough: set rewards.select.min_reward"),
        ({"weights": {"em": 1.0}, "select": {"drop_all_equal": True}}, "rewards.select.drop_all_equal compares good"),
    ],
)
def test_a_reward_that_cannot_be_known_while_sampling_is_refused(
    tmp_path: Path, rewards: dict[str, Any], message: str
) -> None:
    config = experiment(tmp_path, enough=1)
    other = config.model_copy(update={"rewards": type(config.rewards).model_validate(rewards)})
    with pytest.raises(UserError, match=message):
        sample_round(other)
