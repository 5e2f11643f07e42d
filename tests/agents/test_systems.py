"""Loading a system by name, the baselines, and the command that answers one question."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet import agents
from ratchet.agents.core.system import load_system
from ratchet.core.config import ModelConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.plugins import FOLDERS, known_plugins
from ratchet.core.records import Question
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.any_system import ON_QUESTIONS
from tests.helpers.commands import command_of
from tests.helpers.configs import scripted_model, write_config
from tests.helpers.playing import CLAIM, QUESTION, Shelf, act, engine, passage, play, query, review, say
from tests.helpers.tiny import save_tiny_tokenizer


def load(**config: Any) -> Any:
    return load_system(SystemConfig.model_validate(config))


@pytest.mark.parametrize("name", known_plugins("systems"))
def test_every_system_in_the_folder_loads_with_its_defaults(name: str) -> None:
    system = load(name=name)
    assert system.name == name and system.roles and system.models == {"agent"}
    assert system.spec.gives_verdict is (name not in ON_QUESTIONS)


def test_the_papers_settings_are_the_default() -> None:
    settings = load(name="mrag").settings
    assert (settings.max_calls, settings.documents_per_turn, settings.max_same_query) == (30, 2, 5)
    assert settings.max_search_turns is None and settings.explanations and settings.style == "paper"
    assert len(settings.offered) == 8
    offered = load(name="mrag", settings={"agents": ["searcher"]}).settings.offered
    assert offered == ("searcher", "answerer", "finisher")
    assert load(name="vanilla_rag").settings.documents == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "mrga"}, r"no 'mrga' in agents/.*did you mean 'mrag'"),
        ({"name": "tools"}, r"no 'tools' in agents/"),
        ({"name": "mrag.paper"}, r"there is no 'mrag.paper' in agents"),
        ({"name": "../evil"}, r"there is no file"),
        ({"name": "mrag", "settings": {"max_cals": 3}}, r"system.settings.max_cals: unknown key.*'max_calls'"),
        ({"name": "mrag", "settings": {"agents": ["searchr"]}}, r"system.settings.agents.0"),
        ({"name": "mrag", "roles": {"seracher": {}}}, r"system.roles.seracher: .*did you mean 'searcher'"),
        ({"name": "vanilla_rag", "roles": {"coordinator": {}}}, r"vanilla_rag has no such role"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(**config)


def test_whatever_stands_in_agents_is_a_system_but_its_core() -> None:
    folder = Path(agents.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    shared = FOLDERS["systems"].shared
    assert set(known_plugins("systems")) == (modules | folders) - {"core", *shared.values()} | shared.keys()
    assert {name for module in set(shared.values()) for name in vars(agents)[module].SYSTEMS} == shared.keys()


RULES = [
    {"match": '{"question": "Who', "prompt": "You lead", "reply": act("searcher")},
    {"match": "found_information", "reply": act("answerer")},
    {"match": '{"response"', "reply": act("finisher")},
    {"match": '"suggestions"', "reply": query("harbour")},
    {"match": "Query ID", "reply": review({1: True}, end=True)},
    {"match": "supporting information", "reply": say(response="Ada [red]Torrin[/red]")},
]


def run_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *extra: str, rules: list[dict[str, Any]] | None = None
) -> None:
    save_tiny_tokenizer(folder / "model")
    (folder / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules or RULES))
    config = write_config(folder, models={"agent": scripted_model(folder)})
    shelf = Shelf({"harbour": [passage(1, "Ada Torrin built it.", "Velm")]})
    monkeypatch.setattr("ratchet.sampling.ask.open_index", lambda path: shelf)
    arguments = ["agents", *(extra or (QUESTION.text,)), "--config", str(config)]
    monkeypatch.setattr(sys, "argv", arguments)
    command_of("ask")()


def test_the_command_shows_the_work_and_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(tmp_path, monkeypatch)
    out = capsys.readouterr().out
    searched = "searches: harbour  (index, ranks 1 to 2)"
    for shown in (searched, "Velm  Ada Torrin built it.", '"search_query": "harbour"'):
        assert shown in out
    assert "\nAda [red]Torrin[/red]\nfinished\nsupported by c1 Velm\n" in out
    assert "model calls 6, searches 1, " in out
    order = [out.index(text) for text in ("coordinator", "searcher  ", "answerer  ", "model calls")]
    assert order == sorted(order)


def test_without_a_question_each_line_that_is_typed_is_one_and_the_model_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[ScriptedEngine] = []
    original = ScriptedEngine.from_config

    def open_once(model: ModelConfig) -> ScriptedEngine:
        opened.append(original(model))
        return opened[-1]

    monkeypatch.setattr(ScriptedEngine, "from_config", open_once)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION.text}\n\n  \n{QUESTION.text}\n"))
    run_command(tmp_path, monkeypatch, "--sample")
    out = capsys.readouterr().out
    assert out.count(f"> {QUESTION.text}\n") == out.count("\nfinished\n") == out.count("model calls 6, searches 1") == 2
    assert len(opened) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    run_command(tmp_path, monkeypatch, "--sample")
    assert capsys.readouterr().out == ""


def test_the_command_shows_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(tmp_path, monkeypatch, rules=[{"default": "no idea"}])
    out = capsys.readouterr().out
    assert "malformed: expected one JSON object" in out and "(no answer)\nunparsed: coordinator: expected" in out


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="question is empty"):
        run_command(tmp_path, monkeypatch, " ")
    with pytest.raises(UserError, match="adapter"):
        run_command(tmp_path, monkeypatch, QUESTION.text, "--adapter", str(tmp_path / "none"))


async def test_a_system_sees_no_right_answer_when_it_is_sampled_as_when_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "curious.py").write_text(
        "from ratchet.agents.core.task import Answer\n"
        "from ratchet.agents.core.system import SystemSpec\n"
        "from ratchet.core.config import Section\n\n\n"
        "class Settings(Section):\n    pass\n\n\n"
        "async def solve(question, tools, settings):\n    return Answer(question.model_dump_json())\n\n\n"
        'SYSTEM = SystemSpec(Settings, solve, roles=("answerer",))\n'
    )
    asked = CLAIM.model_copy(update={"reference": "r", "nuggets": ("n",), "gold_ids": ("d",), "kind": "one hop"})
    made = await play({"name": str(tmp_path / "curious.py")}, engine(lambda *_: ""), question=asked)
    seen = Question.model_validate_json(made.answer)
    assert seen == Question(id=asked.id, text=asked.text, form="claim", labels=asked.labels)
