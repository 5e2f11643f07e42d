"""Self-training of a model that thinks, through the real commands: sampled, judged, trained and evaluated."""

from pathlib import Path

import pytest

from tests.helpers.experiment import command
from tests.helpers.thinking import check_thinking_run, make_thinking_experiment


@pytest.mark.slow
def test_a_round_of_a_model_that_thinks(tmp_path: Path) -> None:
    config = make_thinking_experiment(tmp_path)
    done = command("selftrain.py", "--config", str(config))
    assert done.returncode == 0, done.stdout
    check_thinking_run(config)
