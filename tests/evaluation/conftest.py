"""An experiment that several files evaluate."""

from pathlib import Path

import pytest

from tests.helpers.adapter_folders import save_adapter
from tests.helpers.scripted import scripted_experiment

PEOPLE = ("Ada Pell", "Jory Fenn", "Mina Ostler", "Sanna Leith", "Ilse Varrow", "Tomas Quern")


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    """A baseline system on a scripted engine that knows half of the answers, and an adapter folder."""
    questions = [
        {"id": f"q{i}", "text": f"Who keeps light {i}?", "answers": [name], "kind": "ab"[i % 2]}
        for i, name in enumerate(PEOPLE)
    ]
    script = [{"match": f"light {i}?", "reply": PEOPLE[i]} for i in range(3)] + [{"default": "nobody"}]
    baselines = {"plain": {"name": "no_retrieval", "settings": {"style": "brief"}}}
    evaluation = {"scores": ["em", "f1"], "baselines": baselines}
    save_adapter(tmp_path / "run" / "round-1" / "adapter")
    return scripted_experiment(tmp_path, script, {"test": questions}, evaluation=evaluation)
