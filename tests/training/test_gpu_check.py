"""make gpu-check on a CPU: the same steps on tiny shapes, so that the script is never out of date."""

import pytest

from benchmarks.gpu_check import CPU, STEPS, Line, StepFailed, check, main
from benchmarks.training import benchmark, parse
from tests.helpers.experiment import preloaded


@pytest.mark.slow
def test_every_step_runs_on_a_cpu_and_nothing_falls_short(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", preloaded()["PYTHONPATH"])
    assert main(["--cpu"]) == 0
    said = capsys.readouterr().out
    assert "FALLS SHORT" not in said and "without padding" in said and "FSDP on 2 processes" in said
    assert "2 of 2 rows the same; the adapters differ" in said and "needs a GPU" in said


def test_a_step_that_fails_or_falls_short_makes_the_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(sizes: object) -> list[Line]:
        raise StepFailed("exit status 1: out of memory\nmore")

    monkeypatch.setitem(STEPS, "loss", fails)
    monkeypatch.setitem(STEPS, "packed", lambda sizes: [Line("gain", "1.1 times", "at least 1.3 times", False)])
    assert [line.passed for line in check(CPU, ["loss", "packed"])] == [False, False]
    assert main(["--cpu", "--steps", "packed"]) == 1
    assert "FALLS SHORT" in capsys.readouterr().out


@pytest.mark.slow
def test_trls_own_trainer_has_the_same_losses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shape", "tiny", "--length", "64", "--spread", "0.3", "--rows", "4", "--micro-batch", "2"]
    words += ["--dtype", "float32", "--device", "cpu", "--steps", "3"]
    ours, theirs = benchmark(parse(words)), benchmark(parse([*words, "--trl"]))
    assert theirs["losses"] == pytest.approx(ours["losses"], rel=1e-5)
    assert theirs["tokens_per_cpu_second"] > 0 and ours["tokens_per_cpu_second"] > 0
