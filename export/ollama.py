"""A Modelfile for Ollama: the GGUF file, and the model's chat template as the Go template that Ollama reads.

Ollama cannot read a model's Jinja template. Every template that Ratchet runs is a chain of fixed texts around the
messages (`inference.wrappers.WrapperFormat`), so the Go template is that chain: an optional system message first, then
user and assistant by turns. Tools and thinking are not in it; a template that is no such chain is refused when it is
read.
"""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.wrappers import WrapperFormat


def check_template(model: ModelConfig) -> None:
    """UserError where a model's prompts are no chain of fixed texts around the messages: before any work."""
    fix = "leave --ollama out; llama.cpp renders the template that is in the GGUF file (llama-server --jinja)"
    if model.template or model.thoughts.enabled is not None:
        raise UserError(f"{model.path}: Ollama's template has no variables and no thoughts, as the config sets; {fix}")
    try:
        WrapperFormat.from_tokenizer(load_tokenizer(model.path, model.revision), model.path)
    except UserError as error:
        raise UserError(f"{error}; {fix}") from error


def modelfile(model: Path, gguf: str, context: int) -> str:
    """The Modelfile for a GGUF file beside it. `model`: the folder that it was made of; `context`: in tokens."""
    tokenizer = load_tokenizer(str(model))
    chat = WrapperFormat.from_tokenizer(tokenizer, str(model))
    bos = str(tokenizer.bos_token or "")
    adds_bos = bos and tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    template = go_template(chat, bos if adds_bos else "")
    stop = json.dumps(chat.decode([chat.end_of_turn]), ensure_ascii=False)
    return (
        "# An optional system message, then user and assistant by turns, as in the model's own template. No tools.\n"
        f'FROM ./{gguf}\nTEMPLATE """{template}"""\nPARAMETER stop {stop}\nPARAMETER num_ctx {context}\n'
    )


def go_template(chat: WrapperFormat, bos: str = "") -> str:
    """A chat format as a Go template over `.Messages`. `bos`: a text that the server itself puts before the prompt."""
    system = _literal(chat.decode(chat.before_system).removeprefix(bos))
    before = _literal(chat.decode(chat.before_user).removeprefix(bos))
    after_system = _literal(chat.system_tail + chat.decode(chat.system_to_user))
    after_user = _literal(chat.user_tail + chat.decode(chat.user_to_assistant))
    after_assistant = _literal(chat.decode((chat.end_of_turn, *chat.assistant_to_user)))
    return (
        "{{ range $i, $m := .Messages }}"
        f'{{{{ if eq $m.Role "system" }}}}{system}{{{{ $m.Content }}}}{after_system}'
        f'{{{{ else if eq $m.Role "user" }}}}{{{{ if eq $i 0 }}}}{before}{{{{ end }}}}{{{{ $m.Content }}}}{after_user}'
        f"{{{{ else }}}}{{{{ $m.Content }}}}{after_assistant}"
        "{{ end }}{{ end }}"
    )


def _literal(text: str) -> str:
    """A text of the template as a Go string, so that no blank of it is lost; JSON's escapes are Go's too."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""
