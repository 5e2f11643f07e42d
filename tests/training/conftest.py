"""The model that the tests of training share."""

from pathlib import Path

import pytest

from tests.helpers.world import tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder; not to be changed."""
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")
