"""A check of what works with a model, from its tokenizer, chat template and configuration alone, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError, first_line
from ratchet.inference.chat_formats import SWITCHES, RenderedFormat, WrapperFormat, chat_format, keeps_thoughts
from ratchet.inference.completion import ChatTurn
from ratchet.inference.thoughts import CLOSING, OPENING
from ratchet.inference.tokenizer import SENTINEL, render_messages
from ratchet.inference.weights import language_config, trained_linears

Chat = WrapperFormat | RenderedFormat
ASKED, THOUGHT = ChatTurn("user", "u"), "far away"
CALLS = {
    "object": "a JSON object with name and arguments",
    "json": "JSON behind the name",
    "pairs": "tags for each argument",
    "words": "bare words",
}
"""Ways to write tool calls (`inference.tool_calls`)."""


class Finding(NamedTuple):
    """True if one part of Ratchet works with a model."""

    part: str
    works: Literal["yes", "no", "set"]
    """set: it works with the setting that `text` names."""
    text: str


def check_chat(tokenizer: Any, where: str = "the model", variables: Mapping[str, Any] | None = None) -> list[Finding]:
    """Check a tokenizer and its chat template. Raises UserError where the template cannot be used at all."""
    chat = chat_format(tokenizer, where, variables)
    return [
        Finding("chat format", "yes", _format(chat, where)),
        Finding("system messages", "yes", _system(chat)),
        Finding("thinking", *_thinking(chat, where)),
        Finding("tools", *_tools(chat)),
        Finding("grammar", *_grammar(chat)),
    ]


def check_weights(path: str, revision: str | None = None) -> list[Finding]:
    """Check config.json. Raises UserError where it cannot be read."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        config, is_part = language_config(path, revision)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # the readers of damaged files raise anything
        raise UserError(f"{path}: cannot use its config.json: {first_line(error)}") from error
    return weights_findings(model, is_part)


def weights_findings(model: Any, is_part: bool) -> list[Finding]:
    """Check a language model, which may be part of a multimodal one, whatever its weights are."""
    trained = trained_linears(model)
    linear = sorted({name.rpartition(".")[2] for name in trained})
    left = [", in the language model alone"] if is_part else []
    if any(".experts" in name for name, _ in model.named_modules()):
        left.append("; experts and routers keep the base model's weights")
    from ratchet.inference.local.decoder import KNOWN  # late: they import torch
    from ratchet.inference.local.model import why_unpaged

    prefix = "model.language_model" if is_part else "model"
    whole = "multimodal model" if is_part else type(model).__name__
    window = getattr(model.config, "max_position_embeddings", None) or ModelConfig.model_fields["max_context"].default
    unpaged = why_unpaged(model.config, window)
    if unpaged or getattr(model.config, "kv_lora_rank", None):
        engine = "in transformers' code, one conversation at a time; engine: vllm for more"
    elif type(model).__name__ in KNOWN:
        engine = "in code of its own on a CPU; engine: vllm on a GPU"
    else:
        engine = "in transformers' code; engine: vllm on a GPU"
    return [
        Finding("engine: local", "yes", engine),
        Finding("training", "yes", f"all-linear means {', '.join(linear)}{''.join(left)}"),
        Finding("adapter in vLLM", "yes", f"its layers are named {prefix}..., as in the {whole}; checked when served"),
    ]


def _format(chat: Chat, where: str) -> str:
    if isinstance(chat, WrapperFormat):
        return "wrappers: fixed texts around messages, and past replies as they were said"
    if chat.variables:
        return "rendered, since variables of the template are set"
    if not keeps_thoughts(chat.tokenizer, where):
        return "rendered, since the template does not show the thoughts of past turns as they were said"
    try:
        WrapperFormat.from_tokenizer(chat.tokenizer, where)
    except UserError as error:
        return f"rendered: {str(error).removeprefix(where).lstrip(': ')}"
    return "rendered"


def _system(chat: Chat) -> str:
    folded = getattr(chat, "folds_system", False)
    joined = "; user messages in a row are joined" if getattr(chat, "alternates", False) else ""
    return ("before the first user message, in its turn" if folded else "as the template writes them") + joined


def _prompt(chat: Chat, *turns: ChatTurn) -> str:
    return chat.decode([i for _, ids in chat.follow(turns, 0, str)[1] for i in ids])


def _thinking(chat: Chat, where: str) -> tuple[Literal["yes", "no", "set"], str]:
    template = str(chat.tokenizer.chat_template)
    if not OPENING.search(template) and not CLOSING.search(template):
        return "no", "the template knows no thoughts"

    def changes(name: str, *values: Any) -> bool:
        """Return whether a variable of the template changes a prompt."""
        asked = [{"role": "user", "content": "u"}]
        return len({render_messages(chat.tokenizer, asked, True, where, (), {name: value}) for value in values}) > 1

    switch = any(changes(name, True, False) for name in SWITCHES)
    closed = CLOSING.search(_prompt(chat, ASKED))
    if not chat.reply_opening and closed and not closed[0].endswith("assistant"):  # as a turn of gpt-oss begins
        setting = "; models.X.thoughts: {enabled: true} lets it think" if switch else ""
        return "set" if switch else "no", f"the prompt closes the thought before it begins{setting}"
    shown = _prompt(chat, ASKED, ChatTurn("assistant", "a", THOUGHT), ASKED)
    kept = "kept in" if THOUGHT in shown or isinstance(chat, WrapperFormat) else "dropped from"
    begun = "begun by the prompt" if chat.reply_opening else "begun by the model"
    setting = "; models.X.thoughts: {enabled: false} turns it off" if switch else ""
    if changes("reasoning_effort", "low", "medium"):
        setting += "; models.X.template: {reasoning_effort: low} shortens it"
    return "yes", f"{begun}, {kept} later turns{setting}"


def _tools(chat: Chat) -> tuple[Literal["yes", "no", "set"], str]:
    name = SENTINEL.format("n")
    tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
    try:
        shown = name in render_messages(chat.tokenizer, [{"role": "user", "content": "u"}], True, tools=[tool])
    except UserError as error:
        return "no", f"the template refuses tools: {first_line(error)}"
    if not shown or chat.calls is None:
        return "no", "the template shows none; systems of Ratchet write actions as JSON in text"
    return "yes", f"calls are {CALLS[chat.calls.arguments]}"


def _grammar(chat: Chat) -> tuple[Literal["yes", "no", "set"], str]:
    import xgrammar

    try:
        info = xgrammar.TokenizerInfo.from_huggingface(chat.tokenizer, stop_token_ids=[chat.end_of_turn])
        xgrammar.GrammarCompiler(info).compile_json_schema('{"type": "object"}')
    except Exception as error:  # of a library, about any tokenizer
        return "no", f"xgrammar does not know its vocabulary: {first_line(error)}"
    thought = ", from the end of a thought on" if chat.thinking else ""
    return "yes", f"xgrammar knows its {info.vocab_size} tokens ({info.vocab_type.name}){thought}"
