"""A system outside agents/: its source is part of what identifies its trajectories, and where it lies is not."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.agents import one_call
from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.evaluation.arms import arm_store
from ratchet.sampling.pool import plan_jobs
from tests.helpers.playing import SETTING, play
from tests.helpers.reward_cases import make_config

QUESTION = Question(id="q", text="Where is Inari?", answers=("Finland",))
SOURCE = """\
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer
from ratchet.core.config import Section


class Settings(Section):
    answer: str = "{answer}"


async def solve(question, tools, settings):
    return Answer(settings.answer)


SYSTEM = SystemSpec(Settings, solve, roles=("answerer",))
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "parts" / "mine.py"
    file.parent.mkdir()
    file.write_text(SOURCE.format(answer="Finland"))
    return file


def key_of(name: str) -> str:
    system = load_system(SystemConfig(name=name))
    [job] = plan_jobs([QUESTION], 1, 0, system.identity, SETTING, {"answerer": "m"}, "index")
    return job.key


def test_its_source_is_in_the_key_of_a_trajectory_and_its_place_is_not(mine: Path) -> None:
    first = key_of("parts/mine.py")
    assert key_of(str(mine)) == key_of("./parts/mine.py") == first
    mine.write_text(SOURCE.format(answer="Norway"))
    assert key_of("parts/mine.py") != first


def test_the_words_of_a_built_in_system_are_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version with other words resumes no run of this one."""
    first = key_of("naive_rag")
    spec = one_call.SYSTEMS["naive_rag"]
    prompt = spec.prompts["answerer.system"]
    changed = {**spec.prompts, "answerer.system": replace(prompt, text=f"Please. {prompt.text}")}
    monkeypatch.setitem(one_call.SYSTEMS, "naive_rag", replace(spec, prompts=changed))
    assert key_of("naive_rag") != first


async def test_it_answers_under_its_own_short_name(mine: Path) -> None:
    played = await play({"name": "parts/mine.py", "settings": {"answer": "Lapland"}}, {})
    assert (played.answer, played.status) == ("Lapland", "finished")
    assert played.system == f"mine-{load_system(SystemConfig(name='parts/mine.py')).digest[:8]}"


def test_its_arm_has_a_folder_of_its_own_for_every_version(mine: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, [QUESTION], system={"name": str(mine)})
    before = arm_store(config, "test", config.system, "base").folder
    assert before.parent.parent == tmp_path / "run/arms/test" and before.parent.name.startswith("mine-")
    mine.write_text(SOURCE.format(answer="Norway"))
    assert arm_store(config, "test", config.system, "base").folder != before


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {}['x']", r"solve failed on the question 'q1' \(KeyError: 'x'; mine\.py, line 11\)"),
        ("raise SystemExit(0)", r"\(SystemExit: 0; mine\.py, line 11\)"),
        ("return None", r"\(TypeError: solve returned NoneType and not an Answer\)"),
        ("return Answer(7)", r"solve failed on the question 'q1' \(ValidationError: .*answer.*valid string"),
    ],
)
def test_a_mistake_in_it_is_one_line_that_names_the_file_the_question_and_the_line(
    mine: Path, body: str, message: str
) -> None:
    mine.write_text(SOURCE.replace("return Answer(settings.answer)", body))
    with pytest.raises(UserError, match=rf"^parts/mine\.py: .*{message}"):
        asyncio.run(play({"name": "parts/mine.py"}, {}))


def test_the_ends_of_an_episode_are_not_mistakes_of_it(mine: Path) -> None:
    for end, status in (
        ("from ratchet.inference.engine import EngineError; raise EngineError('gone')", "failed"),
        (
            "from ratchet.agents.core.tools import OutOfBudget; raise OutOfBudget('answerer', 'no calls left')",
            "out_of_budget",
        ),
    ):
        mine.write_text(SOURCE.replace("return Answer(settings.answer)", end))
        assert asyncio.run(play({"name": "parts/mine.py"}, {})).status == status


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('("answerer",)', "7"), "is not a system as .*int.* is not iterable"),
        (('("answerer",)', "'answerer'"), "has no names of roles, such as"),
        (("class Settings(Section)", "class Settings"), "is not a system as"),
        (("SYSTEM = ", "OTHER = "), r"SYSTEM = SystemSpec\(Settings, solve, roles=\('answerer',\)\), with"),
        (("SYSTEM = SystemSpec(Settings, solve, ", "SYSTEM = dict("), "mine.py declares no system"),
    ],
)
def test_a_module_that_is_no_system_is_refused(mine: Path, change: tuple[str, str], message: str) -> None:
    mine.write_text(SOURCE.replace(*change))
    with pytest.raises(UserError, match=message):
        load_system(SystemConfig(name="parts/mine.py", settings={"answer": "a"}))
