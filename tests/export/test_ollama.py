"""The Go template of a Modelfile renders what the model's own template renders."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ratchet.core.config import ModelConfig, ThoughtsConfig
from ratchet.core.errors import UserError
from ratchet.export.ollama import check_template, go_template, modelfile
from ratchet.inference.rendering import render
from tests.helpers.templates import templated_tokenizer
from tests.helpers.tiny import STYLES, Style, tiny_format, tiny_tokenizer
from tests.helpers.world import tiny_model

RENDER = """package main

import ("encoding/json"; "os"; "text/template")

type Message struct { Role, Content string }

func main() {
	var given struct { Template string; Dialogues [][]Message }
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil { panic(err) }
	parsed := template.Must(template.New("").Parse(given.Template))
	for _, messages := range given.Dialogues {
		if err := parsed.Execute(os.Stdout, map[string]any{"Messages": messages}); err != nil { panic(err) }
		os.Stdout.WriteString("\\x00")
	}
}
"""
TURNS = [("user", "Who built\n{{ .Velm }}?"), ("assistant", 'Ada "Torrin"'), ("user", "When? ")]
DIALOGUES = [TURNS, TURNS[:1], [("system", "Be brief."), *TURNS]]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
@pytest.mark.parametrize("style", STYLES)
def test_the_go_template_renders_the_models_own_prompt(style: Style, tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text(RENDER)
    messages = [[{"Role": role, "Content": text} for role, text in dialogue] for dialogue in DIALOGUES]
    given = json.dumps({"Template": go_template(tiny_format(style)), "Dialogues": messages})
    run = ["go", "run", "main.go"]
    done = subprocess.run(run, cwd=tmp_path, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tokenizer = tiny_tokenizer(style)
    assert done.stdout.split("\0")[:-1] == [render(tokenizer, dialogue, generation=True) for dialogue in DIALOGUES]


def test_a_modelfile_names_the_file_the_template_and_the_end_of_a_turn(tmp_path: Path) -> None:
    text = modelfile(tiny_model(tmp_path / "model"), "tiny-q8_0.gguf", 2048)
    template = text.partition('TEMPLATE """')[2].partition('"""')[0]
    assert template == go_template(tiny_format()) and '{{ "<|im_end|>\\n<|im_start|>assistant\\n" }}' in template
    assert text.splitlines()[1] == "FROM ./tiny-q8_0.gguf"
    assert text.splitlines()[-2:] == ['PARAMETER stop "<|im_end|>"', "PARAMETER num_ctx 2048"]


def test_a_text_that_the_server_puts_first_is_not_in_the_template() -> None:
    assert "<|begin_of_text|>" in go_template(tiny_format("llama3"))
    assert "<|begin_of_text|>" not in go_template(tiny_format("llama3"), "<|begin_of_text|>")


def test_prompts_that_a_go_template_cannot_hold_are_refused_before_any_work(tmp_path: Path) -> None:
    path = str(tiny_model(tmp_path / "model"))
    check_template(ModelConfig(path=path))
    templated_tokenizer("qwen3_5_think").save_pretrained(tmp_path / "thinking")
    for model in (
        ModelConfig(path=path, thoughts=ThoughtsConfig(enabled=False)),
        ModelConfig(path=path, template={"enable_thinking": False}),
        ModelConfig(path=str(tmp_path / "thinking")),
    ):
        with pytest.raises(UserError, match="leave --ollama out"):
            check_template(model)
