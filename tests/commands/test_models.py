"""`ratchet models check`."""

import json
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.inference.model_check import check_chat
from tests.helpers.commands import command_of
from tests.helpers.families import save_family
from tests.helpers.templates import NAMES, templated_tokenizer

EXPECTED: dict[str, dict[str, str]] = {
    "llama": {
        "chat format": "yes  wrappers",
        "thinking": "no   the template knows no thoughts",
        "engine: local": "yes  in code of its own on a CPU",
    },
    "qwen3_5 multimodal": {
        "chat format": "yes  rendered, since the template does not show the thoughts of past turns as they were said",
        "thinking": "yes  begun by the prompt, dropped from later turns; models.X.thoughts: {enabled: false}",
        "grammar": "yes  xgrammar knows its",
        "adapter in vLLM": "yes  its layers are named model.language_model...",
    },
    "glm4_moe": {"training": "yes  all-linear means k_proj, o_proj, q_proj, v_proj; experts and routers keep"},
}


@pytest.mark.parametrize("family", EXPECTED)
def test_a_line_says_of_each_part_whether_it_works(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_family(family, tmp_path)
    (folder / "model.safetensors").unlink()
    capsys.readouterr()
    command_of("models")(["check", str(folder)])
    lines = {line[:16].strip(): line[17:] for line in capsys.readouterr().out.splitlines()}
    assert {part: lines[part].startswith(text) for part, text in EXPECTED[family].items()} == dict.fromkeys(
        EXPECTED[family], True
    ), lines


def test_a_variable_of_the_template_changes_what_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_family("qwen3", tmp_path)
    command_of("models")(["check", str(folder), "--template", "{enable_thinking: false}"])
    assert (
        "set  the prompt closes the thought before it begins; models.X.thoughts: {enabled: true}"
        in capsys.readouterr().out
    )


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^nonesuch: no such model folder[^\n]*$"):
        command_of("models")(["check", "nonesuch"])
    (tmp_path / "m.gguf").touch()
    for path, reason in (
        (tmp_path, "cannot load its tokenizer: there is no tokenizer.json"),
        (tmp_path / "m.gguf", ""),
    ):
        with pytest.raises(UserError, match=rf"^{path}: [^\n]*{reason}; give the folder with safetensors[^\n]*$"):
            command_of("models")(["check", str(path)])
    folder = save_family("llama", tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(UserError, match=rf"^{folder}: cannot[^\n]*$"):
        command_of("models")(["check", str(folder)])
    with pytest.raises(UserError, match=r"^--template \{: is not valid YAML"):
        command_of("models")(["check", str(folder), "--template", "{"])


@pytest.mark.parametrize("name", NAMES)
def test_every_template_can_be_checked(name: str) -> None:
    findings = check_chat(templated_tokenizer(name), name)
    assert [one.part for one in findings] == ["chat format", "system messages", "thinking", "tools", "grammar"]
    assert findings[-1].works == "yes"
