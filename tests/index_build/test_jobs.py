"""Job arrays: several machines build shards of one index side by side, and whoever finds all of them lists them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from index_build import build as builder
from ratchet.config import IndexConfig
from ratchet.errors import UserError
from retrieval.loader import open_folder
from tests.helpers.building import SMALL, build, content, corpus, queries, results, tree, write_config
from tests.helpers.experiment import command, preloaded
from tests.helpers.tiny_index import index_config, write_documents


def whole_and_jobs(folder: Path) -> tuple[IndexConfig, IndexConfig]:
    config = index_config(folder, corpus(50), shard_documents=8, **SMALL)
    return config.model_copy(update={"path": str(folder / "whole")}), config


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_jobs_in_any_order_build_the_same_index(tmp_path: Path, order: list[int]) -> None:
    whole, config = whole_and_jobs(tmp_path)
    assert build(whole) == 7
    for number in order:
        assert not (Path(config.path) / "manifest.json").exists()
        with pytest.raises(UserError, match=r"only a part of an index|no index"):
            open_folder(config.path)
        assert build(config, job=(number, 3)) == len(range(number, 7, 3))
    assert tree(Path(config.path)) == tree(Path(whole.path))
    assert results(config.path, queries(10)) == results(whole.path, queries(10))


def test_the_manifest_is_written_by_the_job_that_ends_last_though_it_began_first(tmp_path: Path) -> None:
    """Jobs of an array begin together: none of them sees the others' shards when it begins."""
    _, config = whole_and_jobs(tmp_path)

    real, began = builder.build_planned_shard, list[int]()

    def piece(*arguments: object) -> None:
        if not began:
            began.append(1)
            assert build(config, job=(1, 2)) == 3
        real(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "build_planned_shard", piece)
        assert build(config, job=(0, 2)) == 4
    assert open_folder(config.path).search(queries(1)[0], 1)


@pytest.mark.slow
def test_jobs_at_the_same_time(tmp_path: Path) -> None:
    """Real processes, among them one job that was started twice; one of the two may be sent away, nothing is harmed."""
    path = write_documents(tmp_path / "d.jsonl", corpus(240))
    config = write_config(tmp_path, [path], shard_documents=8, **SMALL)
    jobs = [f"{number}/2" for number in (0, 1, 1)]
    random.Random(0).shuffle(jobs)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "index_build", "--config", str(config), "--job", job],
            env=preloaded(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job in jobs
    ]
    for process in processes:
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0 or "another process" in errors, errors
        assert process.returncode != 0 or "shards built in" in out or "already built" in out
    assert sum(process.returncode != 0 for process in processes) <= 1
    done = command("-m", "index_build", "--config", str(config))
    assert done.returncode == 0 and "240 documents" in done.stdout
    whole = IndexConfig(path=str(tmp_path / "whole"), documents=(str(path),), shard_documents=8, **SMALL)
    build(whole)
    assert content(tmp_path / "index") == content(tmp_path / "whole")
