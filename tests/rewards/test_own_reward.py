"""A reward outside our tree: a file of its own, scored, stored, selected by and shown like a built-in one."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ratchet.commands.config import open_config
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Score
from ratchet.evaluation.formats import shown_measures
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.results import Results
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.reward import load_reward
from ratchet.rewards.scoring import unfinished
from ratchet.rewards.store import stored_scores
from tests.helpers.arms import make_arm
from tests.helpers.reward_cases import make_config, rule_score, score_with, scripted_judge, trajectory

QUESTION = Question(id="q1", text="Who built it?", answers=("Ada",))
SHORT, LONG = trajectory(0, "Ada"), trajectory(1, "It was Ada, of whom much is told")
BRIEF = """\
TITLE = "Brevity"
NEEDS = ("answers",)


def score(question, trajectory):
    words = len(trajectory.answer.split())
    return 1 / words if words < 5 else (None, "too long to say")
"""
KIND = """\
from pydantic import BaseModel


class Verdict(BaseModel):
    kind: bool


async def score(question, trajectory, judge):
    verdicts = [verdict.kind for verdict in await judge.ask(f"Is this kind? {trajectory.answer}", Verdict) if verdict]
    return sum(verdicts) / len(verdicts) if verdicts else (None, "no readable verdict")
"""
Scores = dict[tuple[str, str], Score]
AGENT = {"agent": {"path": "t"}}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brief.py").write_text(BRIEF)
    (tmp_path / "kind.py").write_text(KIND)
    return tmp_path


def scores_of(folder: Path, *names: str, config: Config | None = None) -> Scores:
    config = config or make_config(folder, [QUESTION])
    return score_with(config, [QUESTION], [SHORT, LONG], names, folder / "scores")


def test_its_values_and_reasons_are_stored_and_a_changed_file_is_another_version(mine: Path) -> None:
    found = scores_of(mine, "./brief.py")
    assert (found[SHORT.key, "./brief.py"].value, found[LONG.key, "./brief.py"].reason) == (1.0, "too long to say")
    assert stored_scores(mine / "scores", {SHORT.key, LONG.key}) == found
    again = scores_of(mine, str(mine / "brief.py"))
    assert {score.name for score in again.values()} == {str(mine / "brief.py")}, "by another path, and the same code"
    [file] = (mine / "scores").glob("brief-*.jsonl")
    (mine / "brief.py").write_text(BRIEF.replace("1 / words", "0.5"))
    assert scores_of(mine, "./brief.py")[SHORT.key, "./brief.py"].value == 0.5
    assert len(list((mine / "scores").glob("brief-*.jsonl"))) == 2 and file.exists()


def test_endings_and_questions_are_handled_before_it_is_called(mine: Path) -> None:
    (mine / "brief.py").write_text('NEEDS = ("label", "nuggets")\n\n\ndef score(question, trajectory):\n    return 1\n')
    assert rule_score("./brief.py", QUESTION, SHORT).reason == "the question has no label and no nuggets"
    labelled = Question(id="q1", text="?", nuggets=("Ada",))
    assert rule_score("./brief.py", labelled, trajectory(2, " ")).value == 0.0
    assert rule_score("./brief.py", labelled, trajectory(2, "Ada", status="failed")).reason == "the trajectory failed"


def test_a_judged_one_asks_once_for_every_run_and_resumes(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge() -> ScriptedEngine:
        engine = ScriptedEngine(scripted_judge().format, lambda *_: json.dumps({"kind": True}), fingerprint="judge")
        monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
        return engine

    assert load_reward("./kind.py").needs_judge
    engine = judge()
    found = scores_of(mine, "./kind.py", "./brief.py")
    assert len(engine.calls) == 2 * 2 and not unfinished(found)
    assert found[SHORT.key, "./kind.py"].value == 1.0
    assert [verdict["run"] for verdict in found[SHORT.key, "./kind.py"].verdicts] == [0, 1]
    engine = judge()
    assert scores_of(mine, "./kind.py", "./brief.py") == found and not engine.calls
    (mine / "kind.py").write_text(KIND + "\n# changed\n")
    scores_of(mine, "./kind.py")
    assert len(engine.calls) == 2 * 2


HOPS = """\
from ratchet.core.config import Section


class Settings(Section):
    enough: int = 2


def score(question, trajectory, settings):
    return min(1.0, len(trajectory.answer.split()) / settings.enough)
"""


def test_its_settings_stand_beside_its_weight_and_are_a_part_of_what_is_stored(mine: Path) -> None:
    (mine / "hops.py").write_text(HOPS)

    def value(**given: object) -> float | None:
        config = read(mine, rewards={"weights": {"./hops.py": {"weight": 1, **given}}}, models=AGENT)
        assert config.rewards.weights == {"./hops.py": 1.0}
        again = Config.model_validate(config.model_dump(mode="json"))
        assert again.rewards.settings_of("./hops.py") == given.get("settings", {})
        return scores_of(mine, "./hops.py", config=config)[SHORT.key, "./hops.py"].value

    assert [value(), value(settings={}), value(settings={"enough": 4}), value(settings={"enough": 2})] == [
        0.5,
        0.5,
        0.25,
        0.5,
    ]
    assert len(list((mine / "scores").glob("hops-*.jsonl"))) == 2, "the default is no other score"


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        ("./hops.py", {"weight": 1, "settings": {"enuogh": 3}}, r"hops\.py: settings\.enuogh: unknown key .*'enough'"),
        ("./hops.py", {"weight": 1, "settings": {"enough": "two"}}, r"hops\.py: settings\.enough: .*integer"),
        ("./hops.py", {"settings": {"enough": 3}}, r"rewards\.weights.*a weight is a number, or \{weight: 1"),
        ("./hops.py", {"weight": 1, "setings": {}}, r"a weight is a number, or \{weight: 1"),
        ("./hops.py", {"weight": "much"}, r"rewards\.weights.*valid number"),
        ("./brief.py", {"weight": 1, "settings": {"x": 3}}, r"brief\.py: settings: x: .* define a class Settings"),
        ("f1", {"weight": 1, "settings": {"x": 3}}, r"f1: settings: x: this score has no settings$"),
        ("./bare.py", 1, r"bare\.py: score has the parameter settings; define a class Settings\(Section\)"),
    ],
)
def test_settings_that_it_does_not_know_are_refused_when_the_config_is_read(
    mine: Path, name: str, weight: object, message: str
) -> None:
    (mine / "hops.py").write_text(HOPS)
    (mine / "bare.py").write_text("def score(question, trajectory, settings):\n    return 1\n")
    with pytest.raises(UserError, match=message):
        read(mine, rewards={"weights": {name: weight}}, models=AGENT)


def test_a_cost_of_ones_own_counts_from_0_up_also_where_there_is_no_answer(mine: Path) -> None:
    (mine / "words.py").write_text(
        "COST = True\n\n\ndef score(question, trajectory):\n    return len(trajectory.answer.split())\n"
    )
    values = [rule_score("./words.py", QUESTION, one).value for one in (SHORT, LONG, trajectory(2, " "))]
    assert values == [1.0, 8.0, 0.0]


def test_one_without_a_judge_may_be_async_and_compare_texts(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "near.py").write_text(
        "async def score(question, trajectory, embed):\n    return float(embed([trajectory.answer])[0, 0])\n"
    )
    monkeypatch.setattr(scoring, "open_embedder", lambda _: lambda texts: np.full((len(texts), 1), 0.25, np.float32))
    assert {score.value for score in scores_of(mine, "./near.py").values()} == {0.25}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def score(question):\n    return 1\n", "score takes the question and the trajectory"),
        ("def score(question, trajectory, judge):\n    return 1\n", "async def score"),
        ("def score(question, trajectory, jugde):\n    return 1\n", "parameter 'jugde'.*did you mean 'judge'"),
        ("def score(question, trajectory, nuggets):\n    return 1\n", "parameter 'nuggets'"),
        ("NEEDS = ('anwsers',)\ndef score(question, trajectory):\n    return 1\n", "no field 'anwsers'.*'answers'"),
        ("def score(question, trajectory):\n    return 2\n", r"returned 2 for the trajectory .* from 0 to 1"),
        ("def score(question, trajectory):\n    return float('nan')\n", r"returned nan"),
        (
            "def score(question, trajectory):\n    return 1 / 0\n",
            r"question 'q1' \(ZeroDivisionError: division",
        ),
        ("async def score(question, trajectory):\n    return {}['x']\n", r"question 'q1' \(KeyError"),
        ("score_ = 1\n", "wrong.py defines no score"),
        ("def score(question, trajectory):\n    raise SystemExit(0)\n", r"\(SystemExit: 0; wrong\.py, line 2\)"),
        ("def score(question, trajectory):\n    return 10**400\n", r"returned no score .* \(OverflowError"),
        (
            "def score(question, trajectory):\n    return type('Odd', (), {'__repr__': lambda self: 1 / 0})()\n",
            r"returned no score .* \(ZeroDivisionError: division by zero; wrong\.py, line 2\)",
        ),
        ("NEEDS = 7\ndef score(question, trajectory):\n    return 1\n", r"is not a reward as .*'int' object is not"),
    ],
)
def test_a_mistake_in_it_is_an_error_that_names_it(mine: Path, source: str, message: str) -> None:
    (mine / "wrong.py").write_text(source)
    with pytest.raises(UserError, match=message) as raised:
        scores_of(mine, "./wrong.py")
    assert "wrong.py" in str(raised.value)


def read(folder: Path, **sections: object) -> Config:
    data = make_config(folder, [QUESTION]).model_dump(mode="json", exclude_unset=True)
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump({**data, **sections}))
    return open_config(path)


def test_a_config_names_it_and_a_wrong_name_is_refused_when_the_config_is_read(mine: Path) -> None:
    agent = {"agent": {"path": "tiny"}}
    config = read(mine, rewards={"weights": {"./brief.py": 2.0}}, evaluation={"scores": ["./brief.py"]}, models=agent)
    assert config.rewards.weights == {"./brief.py": 2.0}, "and no judge is needed"
    for sections, message in (
        ({"rewards": {"weights": {"./breif.py": 1}}}, r"rewards\.weights: there is no file breif\.py"),
        ({"evaluation": {"scores": ["emm"]}}, r"evaluation\.scores: there is no 'emm' .*did you mean 'em'"),
        (
            {"rewards": {"weights": {"./kind.py": 1}, "judge": "jugde"}, "models": agent},
            r"rewards\.judge names the model 'jugde'",
        ),
    ):
        with pytest.raises(UserError, match=message):
            read(mine, **{"evaluation": {"scores": ["em"]}, **sections})


def test_tables_show_it_by_its_title(mine: Path) -> None:
    name = "./brief.py"
    scores = scores_of(mine, name)
    arm = make_arm("base", "mrag", "base", [QUESTION], [SHORT, LONG], scores, [name, "f1"], {name: 1.0})
    results = Results(
        round=1, split="test", questions=1, samples=2, seed=0, resamples=10, primary="f1",
        arms=(arm,), comparisons=(), headline="", numbers="",
    )  # fmt: skip
    shown = shown_measures(results, "quality")
    assert shown.index("f1") < shown.index(name) < shown.index("reward")
    assert (measure_of(name).title, measure_of(name).better) == ("Brevity (rule), strict", "higher")
    (mine / "brief.py").unlink()
    assert measure_of(name).short == "brief", "where only the results are left"
