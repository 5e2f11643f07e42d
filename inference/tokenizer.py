"""Loading a tokenizer, without code that comes with a model and, where possible, without importing torch; and what its
chat template writes around messages, without today's date and in bounded time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError, first_line
from ratchet.core.files import read_json_file
from ratchet.core.http.environment import hub_reason, leave_unreachable_hub
from ratchet.core.tasks import time_limit
from ratchet.core.text import short_line

SMALL_MODEL = Path("models/smollm2-135m-instruct")
"""The folder of the model that runs everywhere."""
FILES = ("*token*", "vocab*", "*.model", "tekken.json")
"""One of them is there where a tokenizer is."""
GGUF = "give the folder with safetensors that the GGUF file was made of"


def is_hub_name(path: str) -> bool:
    """Return whether a path that is no folder can be a model's name on the hub, such as `Qwen/Qwen3-8B`."""
    could_be = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    return could_be and Path(path) != SMALL_MODEL and not Path(path).parent.is_dir()


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """Load the tokenizer of a local folder or hub name; never runs code that comes with a model."""
    if not is_hub_name(path) and not Path(path).is_dir():
        hint = (
            GGUF
            if path.endswith(".gguf")
            else f"`ratchet models build --out {path}` builds the small one"
            if Path(path).name == SMALL_MODEL.name
            else "give a folder or a name on the hub"
        )
        raise UserError(f"{path}: no such model folder; {hint}")
    if Path(path).is_dir() and not any(file for kind in FILES for file in Path(path).glob(kind)):
        hint = GGUF if any(Path(path).glob("*.gguf")) else "give the folder of a model"
        raise UserError(f"{path}: cannot load its tokenizer: there is no tokenizer.json; {hint}")
    leave_unreachable_hub(path)
    try:
        if _is_plain(Path(path)):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    except Exception as error:  # the readers of damaged files raise anything, bare Exception included
        raise UserError(f"{path}: cannot load its tokenizer: {hub_reason(error, path)}") from error


def _is_plain(folder: Path) -> bool:
    """Return whether AutoTokenizer would choose PreTrainedTokenizerFast, as it does for the folders that we make.
    Choosing it directly saves every command about three seconds: AutoTokenizer imports torch to find it."""
    model = folder / "config.json"
    try:
        kind = read_json_file(model)["model_type"] if model.exists() else "llama"
        tokenizer = read_json_file(folder / "tokenizer_config.json")
        return (kind, tokenizer["tokenizer_class"]) == ("llama", "TokenizersBackend") and "auto_map" not in tokenizer
    except (OSError, ValueError, KeyError, TypeError):
        return False


# Chat templates


# Some templates print today's date; a fixed one keeps prompts, and so content keys and caches, the same every day.
FIXED_DATE = "26 Jul 2024"
FIXED_CLOCK = "{% macro strftime_now(format) %}" + FIXED_DATE + "{% endmacro %}{{ '' }}"
SENTINEL = "\ue000{}\ue001"
"""Stands for a message while a template is taken apart."""
SECONDS = 10
"""The longest that a template may take. Jinja's sandbox bounds one loop, but not loops within loops."""


def check_template(tokenizer: Any, where: str) -> None:
    """Raises UserError where a tokenizer has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"{where} has no chat template, so its turns cannot be formatted; use an instruct model, or add "
            "chat_template.jinja to its folder"
        )


def render(tokenizer: Any, messages: list[tuple[str, str]], generation: bool = False, where: str = "the model") -> str:
    """The template's own text for (role, content) messages."""
    return render_messages(tokenizer, [{"role": role, "content": text} for role, text in messages], generation, where)


def render_messages(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    generation: bool = False,
    where: str = "the model",
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return the template's own text for messages as transformers has them, and the tools that they may call.
    `variables`: of the template, such as enable_thinking."""
    try:
        # Of two templates, that for tools also where a call or a result is there and no tool is.
        uses = [*tools] or [message for message in messages if message.get("tool_calls") or message["role"] == "tool"]
        template = tokenizer.get_chat_template(tools=uses or None)
        with time_limit(
            SECONDS, f"{where}: its chat template took longer than {SECONDS} s; use another, or shorten its loops"
        ):
            text = tokenizer.apply_chat_template(
                messages,
                tools=list(tools) or None,
                chat_template=FIXED_CLOCK + template if "strftime_now" in template else template,
                tokenize=False,
                add_generation_prompt=generation,
                **{"date_string": FIXED_DATE, **(variables or {})},
            )
    except UserError:
        raise
    except Exception as error:  # a template may divide by zero, index what is not there or call itself for ever
        roles = short_line(", ".join(str(message["role"]) for message in messages))
        raise UserError(f"{where}: its chat template refuses a dialogue of {roles}: {first_line(error)}") from error
    return str(text)
