"""Names of configs, data and models go into cards, scripts and tables as text: parsers find nothing else."""

import ast
import io
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ratchet.core.config import ModelConfig, load_config
from ratchet.core.escape import file_name, markdown_code, markdown_text, python_string, shell_line, yaml_value
from ratchet.core.runfolder import RunFolder
from ratchet.core.text import plain_line
from ratchet.evaluation.headline import complete_card
from ratchet.evaluation.results import Results
from ratchet.evaluation.tables.comparison import print_measures, print_summary
from ratchet.evaluation.tables.suite import print_suite
from ratchet.export.dataset import DatasetMember, _card
from ratchet.inference.adapters import adapter_digest
from ratchet.slurm.plan import Job
from ratchet.slurm.site import Site
from ratchet.slurm.submit import Submission, script_of
from ratchet.training.adapter import FORMS, RESULTS_BEGIN, RESULTS_END, model_card, results_of
from tests.evaluation.tables.test_widths import NAMES as ARMS
from tests.evaluation.tables.test_widths import invented
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.commands import command_of
from tests.helpers.hostile import IN_A_PATH, NAMES
from tests.helpers.trained import make_trained

export = command_of("export")
init = command_of("init")

HARMLESS = "harbour"
hostile = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


# Markdown


def tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)


def structure(text: str) -> list[Any]:
    """Everything of a document but its words; code in a line counts as words."""
    found = []
    for token in tokens(text):
        inner = ["words" if one.type in ("text", "code_inline") else one.type for one in token.children or ()]
        inner = [kind for at, kind in enumerate(inner) if kind != "words" or inner[at - 1 : at] != ["words"]]
        found.append((token.type, token.tag, token.level, inner))
    return found


def words(text: str) -> str:
    return " ".join(
        "".join(one.content for one in token.children or ()) for token in tokens(text) if token.type == "inline"
    )


def front_of(card: str) -> tuple[dict[str, Any], str]:
    start, front, body = card.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(front), body


def check_shown(card: str, harmless: list[Any], name: str) -> None:
    """The card has the structure of one with a harmless name, and shows the name."""
    assert structure(card) == harmless
    assert plain_line(name) in words(card)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def facts(trained: Path) -> dict[str, Any]:
    """training.json of a run."""
    return json.loads((load_config(trained).folder / "round-1" / "adapter" / "training.json").read_bytes())


def card_of(facts: dict[str, Any], form: Any, name: str) -> str:
    named = {
        "run": name,
        "revision": name,
        "code": name,
        "systems": [name, name],
        "base": {"name": name, "note": "", "licence": name},
        "data_licences": {name: name},
        "training": facts["training"] | {"objective": name, "backend": name},
        "rows": facts["rows"] | {"roles": {name: 3}, "left_out": {name: 2}},
    }
    return model_card(facts | named, form, place=name, results="Good.")


@pytest.fixture(scope="module")
def harmless_cards(facts: dict[str, Any]) -> dict[Any, list[Any]]:
    """The structure of a card of each form."""
    return {form: structure(front_of(card_of(facts, form, HARMLESS))[1]) for form in FORMS}


@hostile
@pytest.mark.parametrize("form", FORMS)
def test_a_model_card(facts: dict[str, Any], harmless_cards: dict[Any, list[Any]], form: Any, name: str) -> None:
    card = card_of(facts, form, name)
    front, body = front_of(card)
    assert (front["base_model"], front["license"]) == (name, name) and "self-training" in front["tags"]
    check_shown(body, harmless_cards[form], name)
    assert results_of(card) == "Good."
    for code in (token.content for token in tokens(body) if token.info == "python"):
        texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
        assert texts.count(name) == (4 if form == "adapter" else 2)
        assert "evil" not in [node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]


def data_card(trained: Path, name: str) -> str:
    config, in_a_path = load_config(trained), name.replace("/", "")
    named = {
        "system": config.system.model_copy(update={"name": name}),
        "models": {"agent": ModelConfig(path=in_a_path)},
        "rewards": config.rewards.model_copy(update={"weights": {name: 1.0}}),
        "index": config.index.model_copy(update={"documents": (in_a_path,)}),
    }
    member = DatasetMember(name, config.model_copy(update=named), RunFolder(config.folder).round(1))
    return _card(name, 1, "all", [member], {name: frozenset()}, Counter({name: 3}), None)


@pytest.fixture(scope="module")
def harmless_data_card(trained: Path) -> list[Any]:
    return structure(front_of(data_card(trained, HARMLESS))[1])


@hostile
def test_the_card_of_a_data_set(trained: Path, harmless_data_card: list[Any], name: str) -> None:
    front, body = front_of(data_card(trained, name))
    assert front["license"] == "unknown"
    check_shown(body, harmless_data_card, name)


def renamed(name: str) -> Results:
    """Results with a baseline, a question set and a verdict of this name."""
    text = invented(title=ARMS[-1]).model_dump_json().replace(ARMS[-1], json.dumps(name)[1:-1])
    return Results.model_validate_json(text)


def evaluated(folder: Path, name: str) -> str:
    adapter = save_adapter(folder)
    (adapter / "README.md").write_text(f"{RESULTS_BEGIN}\n{RESULTS_END}\nafter\n")
    results, digest = renamed(name), adapter_digest(adapter)
    arms = [arm.model_copy(update={"policy": digest}) if arm.name == "adapter" else arm for arm in results.arms]
    assert complete_card(adapter, [results.model_copy(update={"arms": tuple(arms)})])
    return (adapter / "README.md").read_text()


@pytest.fixture(scope="module")
def harmless_results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return structure(evaluated(tmp_path_factory.mktemp("harmless"), HARMLESS))


@hostile
def test_results_in_a_card(tmp_path: Path, harmless_results: list[Any], name: str) -> None:
    card = evaluated(tmp_path, name)
    check_shown(card, harmless_results, name)
    assert card == f"{RESULTS_BEGIN}\n{results_of(card)}\n{RESULTS_END}\nafter\n", (
        "the marks of its place are no name's"
    )


def test_an_export_of_a_folder_with_a_hostile_name(trained: Path, tmp_path: Path) -> None:
    config = load_config(trained)
    adapter = tmp_path / IN_A_PATH
    (config.folder / "round-1" / "adapter").rename(adapter)
    try:
        (adapter / "training.json").rename(tmp_path / "training.json")  # as of an adapter from elsewhere
        (adapter / "README.md").rename(tmp_path / "README.md")
        forms = ["--adapter-only", "--merged", "--base-id", IN_A_PATH]
        export(["--config", str(trained), "--adapter", str(adapter), "--out", str(tmp_path / "out"), *forms])
    finally:
        (tmp_path / "training.json").rename(adapter / "training.json")
        (tmp_path / "README.md").rename(adapter / "README.md")
        adapter.rename(config.folder / "round-1" / "adapter")
    for form in ("adapter", "merged"):
        card = (tmp_path / "out" / form / "README.md").read_text()
        assert [token.tag for token in tokens(card) if token.type.endswith("_open")] == ["h1", "p"]
        assert plain_line(IN_A_PATH) in words(card)


# Scripts and commands


def run_bash(script: str, folder: Path) -> list[list[str]]:
    """The arguments of each call of sbatch."""
    given = 'sbatch() { printf "%s\\0" "$@" END >> calls; echo 7; }\n'
    subprocess.run(["bash", "-eu", "-c", given + script], cwd=folder, check=True)
    words = (folder / "calls").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    calls: list[list[str]] = [[]]
    for word in words:
        if word == "END":
            calls.append([])
        else:
            calls[-1].append(word)
    return calls[:-1]


@hostile
def test_a_slurm_script(tmp_path: Path, name: str) -> None:
    part = name.replace("\0", "").replace("/", "")[:200]
    options = (f"--comment={part}", f"--dependency={part}")
    submission = Submission(Site(setup=part, options=options), tmp_path / part, label=part, options=options)
    first = Job("sample", "sample", ("python", "-m", "ratchet", "sample", "--config", part))
    jobs = [first, Job("train", "train", ("python", "train.py", part), after="sample")]
    calls = run_bash(script_of(submission, jobs), tmp_path)
    assert calls == [submission.command(first)[1:], submission.command(jobs[1], "7")[1:]]
    assert not (tmp_path / "hacked").exists()


@hostile
def test_a_printed_command(tmp_path: Path, name: str) -> None:
    word = name.replace("\0", "")
    line = shell_line(["sbatch", word, "end"])
    assert line.isprintable() and run_bash(line, tmp_path) == [[word, "end"]]


def test_the_config_that_init_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (HARMLESS, IN_A_PATH):
        Path(name).mkdir()
        Path(name, "a.md").write_text("The harbour of Velm is old.\n")
        rows = "".join(f"Who built {i}?,Name{i}\n" for i in range(10))
        Path(f"{name}.csv").write_text("question,answer\n" + rows)
        init([name, f"{name}.csv", "--out", f"{name}.yaml"])
        written = Path(f"{name}.yaml").read_text()
        data = yaml.safe_load(written)
        assert data["index"]["documents"] == [name] and data["questions"]["path"] == f"{name}.csv"
        assert list(data) == list(yaml.safe_load(Path(f"{HARMLESS}.yaml").read_text()))
        comments = [line[4:].split("     ")[0] for line in written.splitlines() if line.startswith("#   ratchet")]
        printed = [line.strip() for line in capsys.readouterr().out.splitlines() if "--config" in line]
        for line in (*comments, *printed):
            assert line.isprintable()
            [call] = run_bash('ratchet() { sbatch "$@"; }; ' + line, tmp_path)
            assert call[-2:] == ["--config", f"{name}.yaml"]
            (tmp_path / "calls").unlink()
    assert not (tmp_path / "hacked").exists()


# Tables


@hostile
def test_tables_in_a_terminal(name: str) -> None:
    out = io.StringIO()
    print_summary([renamed(name[:120])], out)
    print_measures(renamed(name[:120]), out)
    print_suite([renamed(name[:120]), renamed(HARMLESS)], out)
    said = out.getvalue()
    assert all(character.isprintable() or character == "\n" for character in said)
    if "\x1b" not in name:  # of a command whose parts are in two lines, the letters stay
        assert "".join(plain_line(name[:120]).split()) in "".join(said.split())


# The functions themselves


@hostile
def test_every_function(name: str) -> None:
    for written in (markdown_text(name), markdown_code(name)):
        assert words(f"- | {written}") == f"| {plain_line(name)}" and "\n" not in written
    assert ast.literal_eval(python_string(name)) == name and python_string(name).isprintable()
    for value in (name, [name], {"key": name}):
        assert yaml.safe_load(f"a:\n  b: {yaml_value(value)} # c\n") == {"a": {"b": value}}
        assert "\n" not in yaml_value(value)
    assert len(file_name(name).encode()) <= 200 and not set(file_name(name)) & set("/\\ \n\0`$<|\"'")
