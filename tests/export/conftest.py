"""A trained round of a tiny model, as the exports meet it."""

from pathlib import Path

import pytest
import yaml

from tests.helpers.trained import make_trained


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with a trained round, of which question q0 kept nothing; not to be changed."""
    return make_trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def run_folder(trained: Path) -> Path:
    return Path(yaml.safe_load(trained.read_text())["run"])
