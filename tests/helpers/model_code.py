"""A model folder whose every part names code of its own, which transformers would offer to run."""

import json
from pathlib import Path

PARTS = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM")


def add_code(folder: Path) -> Path:
    """Make the model and the tokenizer in `folder` need code; returns the file that this code would write."""
    marker = folder / "it-ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Own:\n    pass\n")
    auto = {**dict.fromkeys(PARTS, "own.Own"), "AutoTokenizer": ["own.Own", "own.Own"]}
    for name, more in (("config.json", {"model_type": "own"}), ("tokenizer_config.json", {"tokenizer_class": "Own"})):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(values | {"auto_map": auto} | more))
    return marker


def add_generation_code(folder: Path) -> Path:
    """Put code beside a model that can do without it."""
    marker = folder / "it-ran"
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    return marker
