"""examples/quickstart.ipynb runs from its first cell to its last, and is stored without outputs."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from tests.helpers.experiment import preloaded
from tests.helpers.pages import ROOT
from tests.helpers.small_models import terse_model

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
REWARD = """
def score(question, trajectory):
    return float(bool(trajectory.response)), ""
"""
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
    """In a folder with the checkout's data and config, so that the checkout gets no run folder. The model answers
    nonsense, to which one more reward gives something."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    for name in ("configs", "models"):
        (tmp_path / name).mkdir()
    config = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    config["rewards"]["weights"]["./said.py"] = 1.0
    (tmp_path / "configs/demo.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "said.py").write_text(REWARD)
    terse_model(MODEL, tmp_path / "models" / MODEL.name)
    kernel = tmp_path / "jupyter/kernels/preloaded/kernel.json"
    kernel.parent.mkdir(parents=True)
    words = [sys.executable, str(ROOT / "tests/helpers/notebook_kernel.py"), "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": words, "display_name": "Python", "language": "python"}))
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JUPYTER_PATH": str(tmp_path / "jupyter")}
    for name, value in preloaded(**variables).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="preloaded", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output["data"] for output in outputs if "data" in output]
    assert any("image/png" in one for one in data), "the plot"
    assert any("lexical_support" in one.get("text/html", "") for one in data), "the table"
    assert (tmp_path / "runs/quickstart/round-1/adapter/adapter_model.safetensors").exists()
    text = "".join(output.get("text", "") for output in outputs)
    assert "18 trajectories" in text and "error:" not in text and os.fspath(tmp_path / "indexes") not in text
