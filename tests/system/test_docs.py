"""What the README and docs/ show: links, configs, options, and the examples of a new system and a new benchmark."""

import re
import runpy
import sys

import pytest
import yaml

from ratchet.commands.table import COMMANDS
from ratchet.core.config import Config
from ratchet.core.records import Question
from tests.helpers.commands import command_of
from tests.helpers.pages import PAGES, README, ROOT, blocks, commands

main = command_of("evaluate")

LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)[^)]*\)")


def test_the_readme_is_one_page() -> None:
    assert len(README.read_text()) <= 10_000


def test_every_link_of_the_pages_outside_docs_leads_to_a_file() -> None:
    """mkdocs checks those within docs/."""
    for page in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in LINK.findall(page.read_text()):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_every_yaml_block_is_part_of_a_valid_config() -> None:
    base = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    base["models"]["judge"] = {"path": "judge"}  # for the default scores
    shown = [block for page in PAGES for block in blocks(page, "yaml")]
    assert shown
    for block in shown:
        Config.model_validate({**base, **yaml.safe_load(block)})


def test_every_json_block_is_a_question() -> None:
    shown = [block for page in PAGES for block in blocks(page, "json")]
    assert shown
    for block in shown:
        Question.model_validate_json(block)


def one_command(words: list[str]) -> list[list[str]]:
    """The commands in a line: `ratchet models serve ... -- COMMAND` is two of ours."""
    if "--" in words and words[1:3] == ["models", "serve"]:
        cut = words.index("--")
        return [words[:cut], words[cut + 1 :]]
    return [words]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # of runpy: other tests imported it
def test_every_command_has_the_options_and_configs_that_the_pages_give_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    helps: dict[tuple[str, ...], str] = {}
    checked = 0
    for page in PAGES:
        for command in (one for words in commands(page) for one in one_command(words)):
            program, *rest = command
            if program == "make":
                assert all("=" in word or word in targets for word in rest), f"{page.name}: {command}"
                continue
            for config in (word for word in rest if word.startswith("configs/")):
                assert (ROOT / config).exists(), f"{page.name}: {config} does not exist"
            if program == "accelerate":
                rest = rest[rest.index("train.py" if "train.py" in rest else "-m") :]
            elif program not in ("ratchet", "python", ".venv/bin/python") or not rest or rest[:2] == ["-m", "pytest"]:
                continue
            if program == "ratchet":
                target: tuple[str, ...] = ("-m", "ratchet", rest.pop(0))
            else:
                target = (rest.pop(0),) if rest[0] != "-m" else (rest.pop(0), rest.pop(0))
            if target == ("-m", "ratchet"):
                target = (*target, rest.pop(0))
            if rest and f"{target[-1]} {rest[0]}" in COMMANDS:
                target = (*target, rest.pop(0))
            if target not in helps:
                helps[target] = help_of(target, monkeypatch, capsys)
            for option in (word for word in rest if word.startswith("-")):
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", helps[target]), f"{page.name}: {command}: {option}"
            checked += 1
    assert checked > 50


def help_of(target: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command's --help prints."""
    module = target[0] == "-m"
    words = target[1:] if module else target
    monkeypatch.setattr(sys, "argv", [*words, "--help"])
    monkeypatch.syspath_prepend(str(ROOT))
    run = runpy.run_module if module else runpy.run_path
    with pytest.raises(SystemExit) as ended:
        run(words[0] if module else str(ROOT / words[0]), run_name="__main__")
    assert not ended.value.code, f"{words}: --help ended with {ended.value.code}"
    return capsys.readouterr().out
