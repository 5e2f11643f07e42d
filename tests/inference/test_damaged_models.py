"""Model folders whose files are damaged, incomplete, or a pickle: each is one line that names the folder."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ratchet.core.errors import UserError
from ratchet.inference.tokenizer import load_tokenizer, render
from ratchet.inference.weights import load_causal_model
from tests.inference.test_local_engine import make_model

WEIGHTS = "model.safetensors"


class Exploit:
    """What unpickling would run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (Path.write_text, (self.marker, "it ran"))


def cut(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1000])


def empty(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def huge_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\xff" * 7 + b"\x7f" + b"{}" * 100)


def as_pickle(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps(Exploit(folder / "it-ran")))


def beside_nothing(folder: Path) -> None:
    as_pickle(folder)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def lacking(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def other_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": config["intermediate_size"] + 16}))


def garbled_config(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\x00\xff{")


def odd_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "many"}))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


DAMAGES = [cut, empty, huge_header, as_pickle, beside_nothing, lacking, other_shape, garbled_config, odd_config]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_one_line(model: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage(tmp_path)
    with pytest.raises(UserError) as caught:
        load_causal_model(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}: ") and "\n" not in str(caught.value)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", pickle.dumps({})], ids=repr)
def test_a_damaged_tokenizer_is_one_line(model: Path, tmp_path: Path, content: bytes) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_tokenizer(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{{ messages[99].content.upper() }}",
        "{{ raise_exception('no') }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages | tojson(indent='x' * -1, nonsense=1) }}",
        "{% for",
        "{{ 'x'.encode('no such codec') }}",
    ],
)
def test_a_chat_template_may_raise_anything(model: Path, template: str) -> None:
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=r"its chat template refuses a dialogue of user: ") as caught:
        render(tokenizer, [("user", "Who?")], where="model x")
    assert "\n" not in str(caught.value)
