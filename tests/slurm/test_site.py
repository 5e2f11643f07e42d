"""The site file: what is wrong in it is said by its key."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from ratchet.core.errors import UserError
from ratchet.slurm import site
from ratchet.slurm.site import Site, load_site, resources_of


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partiton: gpu", "partiton: unknown key (did you mean 'partition'?)"),
        ("jobs: {trian: {}}", "jobs.trian: unknown key (did you mean 'train'?)"),
        ("jobs: {train: {memroy: 3G}}", "jobs.train.memroy: unknown key (did you mean 'memory'?)"),
        ("jobs: {train: {time: 24:00:00}}", "jobs.train.time: put the time in quotes"),
        ("jobs: {train: {time: 1 day}}", "jobs.train.time: expected a time such as"),
        ("jobs: {train: {memory: '64'}}", "jobs.train.memory: "),
        ("environment: {HF_TOKEN: abc}", "HF_TOKEN looks like a secret"),
        ("gpu_option: --gres=gpu:a100", "write {count} where the number of GPUs belongs"),
        ("accelerate: gone.yaml", "accelerate: gone.yaml does not exist"),
        ("apptainer: {image: gone.sif}", "apptainer.image: gone.sif does not exist"),
        ("apptainer: {binds: [/scratch]}", "apptainer.image: Field required"),
        ("- a list", "a config is a mapping"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_site(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_the_example_with_and_without_what_it_comments_out_is_a_site_file(tmp_path: Path) -> None:
    example = Path(site.__file__).with_name("site.example.yaml")
    keys = "apptainer|  image|  binds|python|accelerate|qos|constraint|options"
    text = re.sub(rf"^# (?=({keys}))", "", example.read_text(), flags=re.M).replace("/images/ratchet.sif", str(example))
    (tmp_path / "site.yaml").write_text(text)
    plain, every = load_site(example), load_site(tmp_path / "site.yaml")
    assert plain.jobs == every.jobs and plain.apptainer is None and every.apptainer and every.qos == "normal"


def test_a_missing_site_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        load_site(tmp_path / "gone.yaml")


def test_a_jobs_resources_are_its_own_then_the_sites_then_ours() -> None:
    jobs = {"default": {"cpus": 3, "memory": "1G"}, "merge": {"memory": "2G"}}
    merge = resources_of(Site.model_validate({"jobs": jobs}), "merge")
    assert (merge.memory, merge.cpus, merge.time, merge.gpus) == ("2G", 3, "04:00:00", 0)


def test_cpus_and_memory_grow_with_gpus_unless_the_site_sets_them() -> None:
    plain, own = Site(), Site.model_validate({"jobs": {"default": {"cpus": 3, "memory": ""}}})
    train = resources_of(plain, "train")
    assert [(train.cpus_beside(gpus), train.memory_beside(gpus)) for gpus in (0, 1, 8)] == [
        (8, "32G"),
        (8, "64G"),
        (64, "512G"),
    ]
    assert (resources_of(own, "train").cpus_beside(8), resources_of(own, "train").memory_beside(8)) == (3, "")
    assert resources_of(plain, "merge").cpus_beside(0) == 2


def test_only_training_runs_over_several_nodes() -> None:
    with pytest.raises(ValidationError, match=r"jobs\.sample\.nodes: only training"):
        Site.model_validate({"jobs": {"sample": {"nodes": 2}}})
    with pytest.raises(ValidationError, match=r"jobs\.default\.nodes: only training"):
        Site.model_validate({"jobs": {"default": {"nodes": 2}}})
