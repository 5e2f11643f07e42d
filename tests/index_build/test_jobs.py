"""Job arrays: several machines build shards of one index side by side, and whoever finds all of them lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.index_build import build as builder
from ratchet.retrieval.loader import open_folder
from tests.helpers.building import SMALL, build, corpus, queries, results, tree
from tests.helpers.tiny_index import index_config


def whole_and_jobs(folder: Path) -> tuple[IndexConfig, IndexConfig]:
    config = index_config(folder, corpus(50), shard_documents=8, **SMALL)
    return config.model_copy(update={"path": str(folder / "whole")}), config


@pytest.mark.slow
@pytest.mark.parametrize("order", [[2, 1, 0], [1, 2, 0]])
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
def test_workers_build_the_same_index(tmp_path: Path) -> None:
    whole, config = whole_and_jobs(tmp_path)
    build(whole)
    assert build(config, workers=2) == 7
    assert tree(Path(config.path)) == tree(Path(whole.path))
