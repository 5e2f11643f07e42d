"""Loading a tokenizer, without code that comes with a model and, where possible, without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file
from ratchet.core.hub import hub_reason, is_absent, leave_unreachable_hub, unreachable

SMALL_MODEL = Path("models/smollm2-135m-instruct")
"""The folder of the model that runs everywhere."""
FILES = ("*token*", "vocab*", "*.model", "tekken.json")
"""One of them is there where a tokenizer is."""
GGUF = "give the folder with safetensors that the GGUF file was made of"


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """The tokenizer of a local folder or hub name; never runs code that comes with a model."""
    is_name = path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).parent.is_dir()
    looks_local = not is_name or Path(path) == SMALL_MODEL
    if looks_local and not Path(path).is_dir():
        hint = (
            GGUF
            if path.endswith(".gguf")
            else f"`ratchet model --out {path}` builds the small one"
            if Path(path).name == SMALL_MODEL.name
            else "give a folder or a name on the hub"
        )
        raise UserError(f"{path}: no such model folder; {hint}")
    if Path(path).is_dir() and not any(file for kind in FILES for file in Path(path).glob(kind)):
        hint = GGUF if any(Path(path).glob("*.gguf")) else "give the folder of a model"
        raise UserError(f"{path}: cannot load its tokenizer: there is no tokenizer.json; {hint}")
    leave_unreachable_hub(path)
    if is_absent(path):
        raise UserError(f"{path}: cannot load its tokenizer: {unreachable()}")
    try:
        if _is_plain(Path(path)):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    except Exception as error:  # the readers of damaged files raise anything, bare Exception included
        raise UserError(f"{path}: cannot load its tokenizer: {hub_reason(error, path)}") from error


def _is_plain(folder: Path) -> bool:
    """Whether AutoTokenizer would choose PreTrainedTokenizerFast, as it does for the folders that we make.

    Choosing it directly saves every command about three seconds: AutoTokenizer imports torch to find it.
    """
    model = folder / "config.json"
    try:
        kind = read_json_file(model)["model_type"] if model.exists() else "llama"
        tokenizer = read_json_file(folder / "tokenizer_config.json")
        return (kind, tokenizer["tokenizer_class"]) == ("llama", "TokenizersBackend") and "auto_map" not in tokenizer
    except (OSError, ValueError, KeyError, TypeError):
        return False
