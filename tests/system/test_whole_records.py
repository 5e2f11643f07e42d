"""A reward sees the same whole record wherever it runs: selection, a what-if, an evaluation and a sweep."""

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest
import yaml

from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments, write_jsonl
from ratchet.core.records import Event, Note, Score, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import arm_store, question_set, scores_path
from ratchet.rewards.store import stored_scores
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, config_values
from tests.helpers.handmade_run import questions_of, trajectory
from tests.helpers.stored import store

evaluate = command_of("evaluate")
score = command_of("score")
sweep = command_of("sweep")

ROOT = Path(__file__).parents[2]
SEEN = '''"""Found gold documents less a cost per call, and what the agent reported; the reason tells the record."""

import hashlib
from ratchet.core.records import Note


def score(question, trajectory):
    shown = {passage.document_id for search in trajectory.searches for passage in search.passages if passage.text}
    told = [event.reward for event in trajectory.events if isinstance(event, Note) and event.reward is not None]
    found = len(shown & set(question.gold_ids)) - 0.05 * len(trajectory.model_calls) + told[-1]
    return min(max(found / 2, 0), 1), hashlib.sha256(trajectory.model_dump_json().encode()).hexdigest()
'''
NAMES = ("./parts/seen.py", "reported")


def reported(sample: int) -> Note:
    return Note(role="agent", text="as told", reward=(sample + 1) / 4, at=1.0)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """An experiment whose rewards lie beside its config, with trajectories of a round and of the base model on dev."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "seen.py").write_text(SEEN)
    questions = questions_of("train", 4)
    for split in SPLITS:
        write_jsonl(tmp_path / f"{split}.jsonl", questions)
    weights = dict.fromkeys(NAMES, 1.0)
    values = config_values(
        tmp_path,
        rewards={"weights": weights},
        system={"name": "no_retrieval"},
        sweep={"runs": [], "test": []},
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    config = load_config(tmp_path / "config.yaml")
    made = [trajectory(question, sample, skill=0.7) for question in questions for sample in range(3)]
    made = [one.model_copy(update={"events": (*one.events, reported(one.sample))}) for one in made]
    store(RunFolder(config.folder).round(1).trajectories, made, questions, config.system, samples=3)
    asked = question_set(config, "dev")
    first = [one for one in made if one.sample == 0]
    store(arm_store(config, "dev", config.system, "base").folder, first, asked.questions, config.system)
    return config


def run(main: Callable[[Sequence[str]], None], config: Config, *words: str) -> None:
    main([*words, *config.words])


def dev_scores(config: Config) -> dict[tuple[str, str], Score]:
    """The scores on dev, which are deleted: the next command makes its own."""
    arm = arm_store(config, "dev", config.system, "base")
    scores = stored_scores(scores_path(arm), set(arm.keys()))
    shutil.rmtree(scores_path(arm))
    return scores


def test_one_reward_has_one_value_in_every_command(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert Path.cwd() != Path(config.words[1]).parent, "paths of rewards are those of the config"
    folder = RunFolder(config.folder).round(1)
    records = {one.key: one for one in read_segments(folder.trajectories, Trajectory)}
    run(score, config)
    selected = stored_scores(folder.scores, set(records))
    for (key, name), given in selected.items():
        record = records[key]
        if given.reason in ("the trajectory failed", "the answer is empty"):
            assert record.status == "failed" or not record.answer
        elif name == "reported":
            assert (given.value, given.reason) == ((record.sample + 1) / 4, "as told")
        else:
            assert given.reason == hashlib.sha256(record.model_dump_json().encode()).hexdigest(), "a part of the record"
    assert len(selected) == len(records) * len(NAMES)
    assert len({given.value for (_, name), given in selected.items() if name == NAMES[0]}) > 3

    earned = [
        (selected[key, NAMES[0]].value or 0) if one.status == "finished" else 0
        for key, one in records.items()
        if one.status != "failed"
    ]
    capsys.readouterr()
    run(score, config, "whatif", "--weights", f"{NAMES[0]}=1")
    [row] = [line for line in capsys.readouterr().out.splitlines() if "mean reward  " in line]
    assert row.split("│")[3].strip() == f"{fmean(earned):.3f}"

    by_command = []
    for main, words in ((evaluate, ("--split", "dev", "--base-only")), (sweep, ("cell", "0/1"))):
        run(main, config, *words, "--phase", "score")
        by_command.append(dev_scores(config))
    evaluated, swept = by_command
    assert evaluated == swept and len(evaluated) == 4 * len(NAMES)
    for (key, name), given in evaluated.items():
        alone = selected[key, name]
        assert (given.value, given.reason) == (alone.value, alone.reason)


def test_values_by_an_earlier_version_of_a_file_are_not_used(config: Config) -> None:
    run(score, config)
    run(sweep, config, "cell", "0/1", "--phase", "score")
    (Path(config.words[1]).parent / "parts" / "seen.py").write_text(
        "def score(question, trajectory):\n    return 0.25\n"
    )
    with pytest.raises(
        UserError, match=rf"12 of 12 trajectories have no stored {NAMES[0]}; compute it: `ratchet score"
    ):
        run(score, config, "whatif", "--weights", f"{NAMES[0]}=1")
    run(sweep, config, "cell", "0/1", "--phase", "score")
    again = {given.value for (_, name), given in dev_scores(config).items() if name == NAMES[0]}
    assert again <= {0.25, 0.0, None} and 0.25 in again


def test_what_a_reward_may_read_is_said_in_the_guide() -> None:
    guide = (ROOT / "docs" / "guides" / "extend.md").read_text()
    table = guide[guide.index("| of a trajectory |") :].partition("\n\n")[0]
    said = {word for row in table.splitlines()[2:] for word in row.split("|")[1].replace("`", "").split(", ")}
    assert {word.strip() for word in said} == {*Trajectory.model_fields, *PROPERTIES}
    events = guide[guide.index("Each event has") :].partition("\n\n")[0]
    kinds = {event.__name__: event for event in get_args(get_args(Event)[0])}
    told = re.findall(r"`([A-Z]\w+)` ([^;.]+)", events)
    assert {kind for kind, _ in told} == {"Search", "ToolCall", "ModelCall"}
    for kind, fields in told:
        assert set(re.findall(r"`(\w+)`", fields)) <= set(kinds[kind].model_fields), kind


PROPERTIES = ("response", "token_exact", "model_calls", "searches", "tool_calls", "failed_lookups")
"""What a trajectory tells beside its fields."""


def test_properties_are_all_of_them() -> None:
    own = {name for name, value in vars(Trajectory).items() if isinstance(value, property)}
    assert own == set(PROPERTIES)
