"""The plan of a run: which commands, under which servers, from which adapters."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ratchet.rounds.artefacts import Adapter, File
from ratchet.rounds.records import why_it_ended
from ratchet.rounds.stages import TRAIN, ExperimentRun, Stage, stages_of
from tests.helpers.planned_run import decided, experiment, plan, selected

SERVED = {"path": "some/model", "engine": "vllm"}
SERVE = ["ratchet", "models", "serve", "--config", "c.yaml", "--models"]


def shown(one: ExperimentRun) -> list[tuple[int, str]]:
    return [(stage.round, stage.id) for stage in stages_of(one)]


def judged(folder: Path, **models: dict[str, Any]) -> list[Stage]:
    return plan(
        experiment(
            folder,
            models=models,
            rewards={"weights": {"correctness": 1.0}},
            evaluation={"scores": ["f1", "correctness"]},
        )
    )


def under(stage: Stage) -> str:
    """The models served around a stage, as its command says."""
    words = list(stage.command[3:])
    if words[: len(SERVE)] != SERVE:
        assert not stage.models
        return ""
    models, dashes = words[len(SERVE) : len(SERVE) + 2]
    assert dashes == "--" and models == ",".join(stage.models)
    return models


def test_one_round_is_what_it_always_was(tmp_path: Path) -> None:
    stages = plan(experiment(tmp_path))
    assert [s.id for s in stages] == ["index", "sample", "score", "train", "evaluate", "report"]
    assert [s.title for s in stages] == ["index", "sample", "score and select", "train", "evaluate", "report"]
    assert not any(s.models for s in stages)
    assert all("--may-be-empty" not in s.command and "--adapter" not in s.command for s in stages)


def test_the_reward_on_dev_chooses_between_training_and_evaluation(tmp_path: Path) -> None:
    one = experiment(
        tmp_path,
        models={"agent": SERVED, "judge": SERVED},
        rewards={"weights": {"correctness": 1.0}},
        evaluation={"scores": ["f1"]},
        training={"choose_by": "reward"},
    )
    stages = {s.id: s for s in plan(one)}
    assert list(stages)[3:-1] == ["train", "choose.sample", "choose", "evaluate"]
    assert "adapter" not in stages["train"].writes and "adapter" in stages["choose"].writes
    assert (under(stages["choose.sample"]), under(stages["choose"])) == ("agent", "judge")
    rounds = experiment(tmp_path, training={"choose_by": "reward"}, rounds={"count": 2})
    assert [s.id for s in plan(rounds)][2:6] == ["score", "train", "choose", "promote"]


def test_servers_are_up_for_the_stages_that_ask_them_and_no_others(tmp_path: Path) -> None:
    stages = judged(tmp_path, agent=SERVED, judge=SERVED)
    assert [(s.id, under(s)) for s in stages] == [
        ("index", ""),
        ("sample", "agent"),
        ("score", "judge"),
        ("train", ""),
        ("evaluate.sample", "agent"),
        ("evaluate", "judge"),
        ("report", ""),
    ]
    sampling, scoring = (s.command[s.command.index("--") + 1 :] for s in stages[4:6])
    assert sampling[:-2] == scoring[:-2] and sampling[4] == "evaluate"
    assert (sampling[-2:], scoring[-2:]) == (("--phase", "sample"), ("--phase", "score"))


def test_a_judge_in_the_process_waits_until_the_agents_server_is_gone(tmp_path: Path) -> None:
    stages = judged(tmp_path, agent=SERVED, judge={"path": "some/judge"})
    assert [under(s) for s in stages] == ["", "agent", "", "", "agent", "", ""]
    assert stages[5].command[-2:] == ("--phase", "score")


def test_a_judge_that_is_an_agent_takes_one_server(tmp_path: Path) -> None:
    one = experiment(
        tmp_path,
        models={"agent": SERVED},
        rewards={"weights": {"correctness": 1.0}, "judge": "agent"},
        evaluation={"scores": ["correctness"]},
    )
    assert [under(s) for s in plan(one)] == ["", "agent", "agent", "", "agent", ""]


def test_a_model_with_an_address_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {**SERVED, "url": "http://127.0.0.1:8000/v1"}
    assert not any(s.models for s in judged(tmp_path, agent=there, judge=there))
    monkeypatch.setenv("RATCHET_URL_AGENT", "http://127.0.0.1:8000/v1")
    assert [under(s) for s in judged(tmp_path, agent=SERVED, judge=there)] == [""] * 6


def test_the_models_of_all_roles_are_served_for_sampling(tmp_path: Path) -> None:
    roles = {"default": {"model": "agent"}, "coordinator": {"model": "big", "trainable": False}}
    one = experiment(tmp_path, models={"agent": SERVED, "big": SERVED}, system={"name": "mrag", "roles": roles})
    assert [under(s) for s in plan(one)] == ["", "agent,big", "", "", "agent,big", ""]


def test_a_teacher_is_served_for_sampling_alone(tmp_path: Path) -> None:
    teacher = {"model": "big", "samples": 2}
    one = experiment(tmp_path, models={"agent": SERVED, "big": SERVED}, sampling={"teacher": teacher})
    assert [under(s) for s in plan(one)] == ["", "agent,big", "", "", "agent", ""]


def test_accelerate_takes_the_users_file(tmp_path: Path) -> None:
    [train] = [s for s in plan(experiment(tmp_path, accelerate="fsdp.yaml")) if s.id == "train"]
    assert train.command[2:5] == ("ratchet.training.launch", "--config_file", "fsdp.yaml")
    assert train.command[5:8] == TRAIN
    [train] = [s for s in plan(experiment(tmp_path)) if s.id == "train"]
    assert train.command[1:5] == ("-P", *TRAIN)


def test_rounds_go_on_from_the_last_promoted_adapter(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 3})
    decided(one.run, 1, True)
    decided(one.run, 2, False)
    stages = {(s.round, s.id): s for s in stages_of(one)}
    first = str(one.run.round(1).adapter)
    assert "--adapter" not in stages[1, "sample"].command and "--from" not in stages[1, "train"].command
    for number in (2, 3):
        assert stages[number, "sample"].command[-2:] == ("--adapter", first)
        assert stages[number, "train"].command[-2:] == ("--from", first)
        assert "parent" in stages[number, "promote"].reads and "adapter" in stages[number, "train"].reads
    test = stages[1, "test"]
    assert "--base-only" not in test.command and test.command[-2:] == ("--round", "1"), "what stands is tested, once"
    assert [id for _, id in stages if id in ("test", "report", "evaluate")] == ["test", "report"]


def test_later_rounds_sample_with_merged_weights_where_that_is_set(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 2}, models={"agent": {**SERVED, "serve": {"merge": True}}})
    decided(one.run, 1, True)
    merged = [(s.round, s.id) for s in stages_of(one) if "--merge" in s.command]
    assert merged == [(2, "sample")], "an evaluation compares adapters"
    command = next(s for s in stages_of(one) if (s.round, s.id) == (2, "sample")).command
    assert command[command.index("--merge") + 1] == str(one.run.round(1).adapter) == command[-1]


def test_rounds_may_begin_anew_from_the_base(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 2, "start": "base"})
    decided(one.run, 1, True)
    stages = {(s.round, s.id): s for s in stages_of(one)}
    assert "--adapter" in stages[2, "sample"].command, "it samples with the promoted adapter all the same"
    assert "--from" not in stages[2, "train"].command


def test_a_round_that_kept_nothing_trains_nothing_and_the_next_goes_on(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 2})
    selected(one.run, 1, ())
    stages = shown(one)
    assert (1, "train") not in stages and (1, "promote") in stages
    assert [id for number, id in stages if number == 2] == [
        *("sample", "score", "train", "promote"),
        *("test", "report"),
    ]
    last = next(s for s in stages_of(one) if s.id == "test")
    assert last.command[-1] == "--base-only", "nothing was promoted: the base alone"


def test_rounds_that_run_until_dev_is_flat_end_with_the_round_that_promotes_nothing(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 9, "until_flat": True})
    done = []
    for stage in stages_of(one):
        done.append((stage.round, stage.id))
        if stage.id == "promote":
            assert not why_it_ended(one.config)
            decided(one.run, stage.round, stage.round < 3)
    assert done[-3:] == [(3, "promote"), (2, "test"), (3, "report")], "what round 2 promoted is tested"
    assert shown(one) == done, "the same when it is asked again"
    assert "after round 3 of at most 9" in why_it_ended(one.config)
    on = experiment(tmp_path, rounds={"count": 9})
    assert shown(on)[-1] == (9, "report") and not why_it_ended(on.config)


def test_a_stage_is_planned_after_the_one_before_was_run(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 2})
    found = []
    for stage in stages_of(one):
        found.append(stage)
        if (stage.round, stage.id) == (1, "promote"):
            decided(one.run, 1, True)
    assert next(s for s in found if (s.round, s.id) == (2, "sample")).command[-2] == "--adapter"


def test_several_rounds_need_no_members(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"rounds\.count: members"):
        experiment(tmp_path, rounds={"count": 2}, members={"a": "a.yaml"})
    with pytest.raises(ValidationError, match=r"rounds\.level"):
        experiment(tmp_path, rounds={"level": 2})


def test_a_changed_file_of_ones_own_is_something_else_that_its_stages_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reward = tmp_path / "mine.py"

    def code(source: str) -> dict[str, object]:
        reward.write_text(source)
        rewarded: dict[str, Any] = {"rewards": {"weights": {"./mine.py": 1.0}}, "evaluation": {"scores": ["f1"]}}
        return {
            stage.id: stage.reads["code"] for stage in plan(experiment(tmp_path, **rewarded)) if "code" in stage.reads
        }

    before = code("def score(question, trajectory):\n    return 1\n")
    after = code("def score(question, trajectory):\n    return 0\n")
    assert {id for id in before if before[id] != after[id]} == {"score", "evaluate"}

    def rule(source: str) -> dict[str, object]:
        reward.write_text(source)
        explored: dict[str, Any] = {"sampling": {"explore": {"samples": 1, "rules": ["search_again", "./mine.py"]}}}
        return {stage.id: stage.reads.get("code") for stage in plan(experiment(tmp_path, **explored))}

    first, second = (rule(f"def narrow(point):\n    return {made}\n") for made in ("None", "point.schema"))
    assert {id for id in first if first[id] != second[id]} == {"sample"}


def test_changed_prompts_of_the_judge_are_something_else_that_the_stages_which_score_read(tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()

    def code(text: str, *scores: str) -> dict[str, object]:
        (folder / "claims.user.txt").write_text(text)
        rewards = {"weights": dict.fromkeys(scores, 1.0), "judge": "agent", "prompts": str(folder)}
        stages = plan(experiment(tmp_path, rewards=rewards, evaluation={"scores": ["f1"]}))
        return {stage.id: stage.reads.get("code") for stage in stages}

    before, after = (code(f"{text} {{{{question}}}} {{{{answer}}}}", "faithfulness") for text in ("Draw:", "Find:"))
    assert {id for id in before if before[id] != after[id]} == {"score", "evaluate"}
    assert code("Find: {{question}} {{answer}}", "f1")["score"] is None, "f1 asks no judge"


CONTROLS = {"scores": ["f1"], "controls": ["base-again", "random"]}


def test_the_control_of_a_random_selection_is_trained_after_the_round_and_read_by_the_evaluation(
    tmp_path: Path,
) -> None:
    one = experiment(tmp_path, evaluation=CONTROLS)
    stages = {s.id: s for s in plan(one)}
    assert list(stages) == ["index", "sample", "score", "train", "train.random", "evaluate", "report"]
    control, folder = stages["train.random"], one.run.round(1).path / "control-random"
    assert control.command == (*stages["train"].command, "--control", "random")
    assert control.title == "train: random selection" and control.reads == stages["train"].reads
    assert control.writes["adapter"] == Adapter(folder / "adapter") == stages["evaluate"].reads["control"]
    assert control.writes["rows"] == File(folder / "rows.parquet")
    assert control.writes["selection"] == File(folder / "selection.json")
    again = plan(experiment(tmp_path, evaluation=CONTROLS | {"controls": ["base-again"]}))
    assert "train.random" not in [s.id for s in again] and not any("control" in s.reads for s in again)


def test_of_several_rounds_only_the_tested_one_has_a_control_which_starts_where_its_adapter_did(tmp_path: Path) -> None:
    one = experiment(tmp_path, rounds={"count": 2}, evaluation=CONTROLS)
    assert "train.random" not in [id for _, id in shown(one)], "nothing is promoted yet: the base would be tested alone"
    for number in (1, 2):
        decided(one.run, number, True)
    stages = list(stages_of(one))
    assert [(s.round, s.id) for s in stages][-3:] == [(2, "train.random"), (2, "test"), (2, "report")]
    assert stages[-3].command[-4:] == ("--from", str(one.run.round(1).adapter), "--control", "random")
    [train] = [s for s in stages if (s.round, s.id) == (2, "train")]
    assert train.reads["adapter"] == stages[-3].reads["adapter"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"training": {"objective": "dpo"}}, "learns from rewards"),
        ({"training": {"choose_by": "reward"}}, "chooses an adapter on dev"),
        ({"members": {"a": "a.yaml"}}, "members of a shared adapter"),
    ],
)
def test_a_random_control_that_would_not_be_comparable_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=rf"evaluation\.controls: random is not possible here: .*{problem}"):
        experiment(tmp_path, evaluation=CONTROLS, **changes)
