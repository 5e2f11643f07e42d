"""configs/small/tool_mad.yaml: every row of the paper's tables, by a script; and the tables of costs on the pages."""

from pathlib import Path

import pytest

from ratchet.core.config import load_config
from ratchet.core.records import Label
from ratchet.inference.scripted import ScriptedEngine
from ratchet.questions.labels import AVERITEC, FEVER, YES_NO_MAYBE
from tests.helpers.any_system import Library
from tests.helpers.cost_tables import PAGES, page_with_table
from tests.helpers.pages import ROOT
from tests.helpers.playing import CLAIM, play
from tests.helpers.tiny import save_tiny_tokenizer

SMALL, PAPER = (load_config(f"configs/{folder}/tool_mad.yaml") for folder in ("small", "papers"))
CHOICES = tuple(Label(name=name, meaning=f"choice {name}", stance="") for name in "ABCD")
ROWS = {"tool_mad (base)": SMALL.system, **SMALL.evaluation.baselines}


def test_its_rows_have_the_settings_of_the_paper() -> None:
    rows = [{name: (one.name, one.settings) for name, one in c.evaluation.baselines.items()} for c in (SMALL, PAPER)]
    assert rows[0] == rows[1]
    assert SMALL.system.settings == PAPER.system.settings


@pytest.mark.parametrize("labels", [FEVER, AVERITEC, YES_NO_MAYBE, CHOICES], ids=lambda labels: labels[0].name)
@pytest.mark.parametrize("row", ROWS)
async def test_the_script_is_in_form_for_every_row_and_task(
    row: str, labels: tuple[Label, ...], tmp_path: Path
) -> None:
    model = SMALL.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(tmp_path))})
    claim = CLAIM.model_copy(update={"labels": labels, "label": labels[0].name})
    played = await play(ROWS[row], ScriptedEngine.from_config(model), Library(), question=claim)
    assert played.status == "finished" and played.answer in [label.name for label in labels]
    assert [call.text for call in played.model_calls if call.parse == "malformed"] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_table_of_costs_is_that_of_its_configs_rows(page: str) -> None:
    assert (ROOT / f"docs/papers/{page}.md").read_text() == page_with_table(page), (
        "run `python -m tests.helpers.cost_tables`"
    )
