"""examples/quickstart.ipynb runs from its first cell to its last, and is stored without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers.experiment import preloaded
from tests.helpers.pages import ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
MODEL = ROOT / "models" / "smollm2-135m-instruct"


def test_the_notebook_is_stored_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(not MODEL.is_dir(), reason="make model was not run")
# Of ipykernel and jupyter_client on Python 3.11; a kernel is another process.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the checkout's configs, data and model, so that the checkout gets no run folder."""
    for name in ("configs", "demo", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, value in preloaded(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1").items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output["data"] for output in outputs if "data" in output]
    assert any("image/png" in one for one in data), "the plot"
    assert any("lexical_support" in one.get("text/html", "") for one in data), "the table"
    assert (tmp_path / "runs/quickstart/round-1/adapter/adapter_model.safetensors").exists()
    text = "".join(output.get("text", "") for output in outputs)
    assert "18 trajectories" in text and "error:" not in text and os.fspath(tmp_path / "indexes") not in text
