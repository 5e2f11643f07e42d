"""What the card says of base models and licences."""

from pathlib import Path

import pytest

from ratchet.core.config import ModelConfig
from ratchet.training.adapter import describe_base


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n# Model\n", "apache-2.0"),
        ("---\nlicense: [a]\n---\n", "unknown"),
        ("---\n: bad: yaml:\n---\n", "unknown"),
        ("# Model\n---\nlicense: mit\n---\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_local_base_model_has_its_name_its_digest_and_its_cards_licence(
    tmp_path: Path, card: str | None, licence: str
) -> None:
    folder = tmp_path / "small-model"
    folder.mkdir()
    if card is not None:
        (folder / "README.md").write_text(card)
    found = describe_base(ModelConfig(path=str(folder)), "0123abcd")
    assert (found["name"], found["licence"]) == ("small-model", licence) and "0123abcd" in found["note"]


def test_a_base_model_of_the_hub_has_its_id() -> None:
    found = describe_base(ModelConfig(path="org/model"), "0123")
    assert found == {"name": "org/model", "note": "", "licence": "unknown"}
