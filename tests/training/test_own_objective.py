"""An objective is one file: one's own trains by its path, and no other file names a built-in one."""

import re
import subprocess
from pathlib import Path

import pytest

from ratchet.commands.config import open_config
from ratchet.commands.train import train_round
from ratchet.core.config import TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_log
from ratchet.core.plugins import known_plugins
from ratchet.training.adapter import read_facts
from ratchet.training.objectives.objective import (
    load_objective,
)
from ratchet.training.rows import read_rows
from tests.helpers.attempts import make_attempts

REPO = Path(__file__).parents[2]
NAMING = {"core/config/training.py"}
"""The config describes the built-in objectives."""


PAIRS = """
from ratchet.training.objectives.dpo import DirectPreference


class IdentityPreference(DirectPreference):
    def losses(self, examples):
        margin = examples.chosen - examples.rejected
        return (margin - 1 / (2 * self.training.preference.beta)) ** 2


OBJECTIVE = IdentityPreference
"""
"""Of the pairs that `dpo` learns from (Azar et al. 2023, arXiv 2310.12036)."""


@pytest.mark.slow
def test_the_guides_objective_trains_by_its_path(tmp_path: Path) -> None:
    text = (REPO / "docs/guides/extend.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "OBJECTIVE = " in block]
    file = tmp_path / "own.py"
    file.write_text(code)
    path, config, folder = make_attempts(tmp_path, objective=str(file), max_steps=2)
    assert open_config(path).training.objective == str(file)
    train_round(config, 1)
    rows = read_rows(folder.rows).table
    by_key = {row["trajectory"]: row["weight"] for row in rows.to_pylist()}
    assert by_key["t3-0"] == 1.0 and by_key["t3-3"] == 0.75 and "t3-1" not in by_key, "a weight is the reward"
    assert read_log(folder.training / "log.jsonl")[-1]["step"] == 2 and not (folder.training / "reference").exists()
    facts = read_facts(folder.adapter)
    assert facts is not None and facts["training"]["objective"].startswith("own-")


@pytest.mark.slow
def test_an_objective_of_pairs_trains_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(PAIRS)
    _, config, folder = make_attempts(tmp_path, objective=str(file), max_steps=2, batch_size=8)
    train_round(config, 1)
    first = read_log(folder.training / "log.jsonl")[0]
    assert first == {"step": 0, "dev_loss": pytest.approx(25.0)}, "1 / (2 beta) squared, where nothing has moved yet"


def test_an_objective_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"training\.objective: there is no 'dpp' in training/objectives/.*'dpo'"):
        load_objective(TrainingConfig(objective="dpp"))


def test_no_other_file_names_a_built_in_objective() -> None:
    names = set(known_plugins("objectives")) - {TrainingConfig().objective}
    assert names == {"weighted", "dpo", "kto"}
    named = re.compile(rf"""["'`=]({"|".join(names)})["'`]""")
    files = subprocess.check_output(["git", "ls-files", "*.py", "*.j2"], cwd=REPO, text=True).split()
    naming = {name for name in files if not name.startswith("tests/") and named.search((REPO / name).read_text())}
    assert naming <= NAMING | {f"training/objectives/{name}.py" for name in names}
