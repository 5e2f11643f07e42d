"""ratchet slurm: what would be submitted, and what is."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.adapter_folders import save_adapter
from tests.helpers.experiment import make_experiment
from tests.helpers.fake_slurm import ROOT, Slurm, changed

JUDGED = {"weights": {"correctness": 1.0}, "judge": "agent"}
QWEN = "Qwen/Qwen3-8B"
VLLM = {"agent": {"path": "org/agent", "engine": "vllm"}, "judge": {"path": "org/judge", "engine": "vllm"}}
SERVED = {"models": VLLM, "rewards": JUDGED | {"judge": "judge"}, "evaluation": {"scores": ["f1", "correctness"]}}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    for name in [name for name in os.environ if name.startswith("RATCHET_")]:
        monkeypatch.delenv(name)
    return Slurm(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config; its folder's name has a blank and a per cent sign."""
    folder = tmp_path_factory.mktemp("slurm") / "50% off"
    folder.mkdir()
    return make_experiment(folder, questions=2)


def options_of(call: Any) -> dict[str, str]:
    """Those of sbatch, before the script."""
    words = call[0][: call[0].index(str(ROOT / "slurm" / "job.sh"))]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def command_of(call: Any) -> list[str]:
    words: list[str] = call[0]
    return words[words.index(str(ROOT / "slurm" / "job.sh")) + 1 :]


def submitted(slurm: Slurm, *arguments: str | Path) -> dict[str, Any]:
    """The calls of sbatch, by the job's name without the run's."""
    done = slurm.command(*arguments)
    assert done.returncode == 0, done.stderr
    return {options_of(call)["--job-name"].rpartition(".")[2]: call for call in slurm.calls}


def prepared(config: Path) -> Path:
    """The config, after stand-ins for what jobs look for: an index, trajectories, a selection and an adapter."""
    data = yaml.safe_load(config.read_text())
    data |= {"run": str(config.parent / "run"), "index": data["index"] | {"path": str(config.parent / "index")}}
    config.write_text(yaml.safe_dump(data))
    folder = config.parent / "run" / "round-1"
    for file in (config.parent / "index" / "manifest.json", folder / "trajectories" / "a.jsonl"):
        file.parent.mkdir(parents=True)
        file.touch()
    (folder / "selection.json").touch()
    save_adapter(folder / "adapter")
    return config


@pytest.mark.slow
def test_each_stage_is_a_job_with_resources_of_its_own(slurm: Slurm, experiment: Path) -> None:
    site = slurm.site("partition: gpu\njobs:\n  default: {cpus: 3}\n  train: {gpus: 2, memory: 99G, partition: big}\n")
    config = changed(experiment, slurm.folder / "config.yaml", models=agent(experiment, device="auto"))
    calls: dict[str, Any] = {}
    for job in ("index", "sample", "rewards", "train", "evaluate"):
        calls |= submitted(slurm, job, "--config", prepared(config) if job == "index" else config, "--site", site)
    assert list(calls) == ["index", "manifest", "sample", "rewards", "train", "evaluate"]
    options = {name: options_of(call) for name, call in calls.items()}
    waits = [options[name].get("--dependency", "") for name in calls]
    assert waits == ["", "afterok:100", "", "", "", ""]
    assert options["index"]["--array"] == "0-7" and "--array" not in options["sample"]
    assert {name: found["--cpus-per-task"] for name, found in options.items()} == dict.fromkeys(calls, "3")
    train = options["train"]
    assert (train["--mem"], train["--partition"], train["--gres"]) == ("99G", "big", "gpu:2")
    assert options["sample"]["--partition"] == "gpu"
    # The scripted engine opens no model.
    assert [name for name in calls if "--gres" in options[name]] == ["train"]
    command = command_of(calls["train"])
    assert command[:3] == [sys.executable, "-m", "ratchet.training.launch"]
    assert "--multi_gpu" in command and "--num_processes=2" in command
    assert " -m ratchet train " in " ".join(command)
    assert {found["--signal"] for found in options.values()} == {"B:USR1@300"}
    assert all({"--requeue", "--kill-on-invalid-dep", "--export"} <= found.keys() for found in options.values())


def agent(config: Path, **keys: Any) -> dict[str, Any]:
    models: dict[str, Any] = yaml.safe_load(config.read_text())["models"]
    return {"agent": models["agent"] | keys}


def on_gpus(experiment: Path, target: Path) -> Path:
    """The config with a model that trains on GPUs, and rows for eight of them."""
    training = yaml.safe_load(experiment.read_text())["training"] | {"batch_size": 16}
    return changed(experiment, target, models=agent(experiment, device="auto"), training=training)


def test_servers_are_around_the_jobs_that_ask_them_and_no_others(slurm: Slurm, experiment: Path) -> None:
    serve = {"arguments": {"data-parallel-size": 2, "tensor-parallel-size": 2}}
    config = changed(experiment, slurm.folder / "config.yaml", **SERVED)
    data = yaml.safe_load(config.read_text())
    data["models"]["judge"]["serve"] = serve
    config.write_text(yaml.safe_dump(data))
    prepared(config)
    calls: dict[str, Any] = {}
    for job in ("sample", "rewards", "evaluate"):
        calls |= submitted(slurm, job, "--config", config)
    assert list(calls) == ["sample", "rewards", "evaluate-sample", "evaluate"]
    served = {
        name: command[command.index("--models") + 1]
        for name, call in calls.items()
        if "serve" in (command := command_of(call))
    }
    assert served == {"sample": "agent", "rewards": "judge", "evaluate-sample": "agent", "evaluate": "judge"}
    gpus = {name: options_of(call).get("--gres", "") for name, call in calls.items()}
    assert (gpus["sample"], gpus["rewards"], gpus["evaluate"]) == ("gpu:1", "gpu:4", "gpu:4")


def test_a_sweep_whose_judge_has_a_server_samples_first_and_scores_task_by_task(slurm: Slurm, experiment: Path) -> None:
    config = changed(experiment, slurm.folder / "config.yaml", **SERVED, sweep={"runs": []})
    calls = submitted(slurm, "sweep", "--config", config, "--tasks", "2")
    commands = {name: " ".join(command_of(call)) for name, call in calls.items()}
    assert list(calls) == ["sweep-sample", "sweep", "merge", "test-sample", "test"]
    waits = [options_of(call).get("--dependency", "") for call in calls.values()]
    assert waits == ["", "aftercorr:100", "afterany:101", "afterok:102", "afterok:103"]
    assert options_of(calls["sweep-sample"])["--array"] == options_of(calls["sweep"])["--array"]
    served = {name: command.partition(" --models ")[2].split(" ")[0] for name, command in commands.items()}
    assert served == {"sweep-sample": "agent", "sweep": "judge", "merge": "", "test-sample": "agent", "test": "judge"}
    phases = {name: command.partition("--phase ")[2].split(" ")[0] for name, command in commands.items()}
    assert phases == {"sweep-sample": "sample", "sweep": "score", "merge": "", "test-sample": "sample", "test": "score"}


def test_an_ablation_samples_what_its_arms_share_before_they_run(slurm: Slurm, experiment: Path) -> None:
    arms = slurm.folder / "arms.yaml"
    arms.write_text("best:\ntwo: [rewards.select.ties=2]\ncool: [sampling.temperature=0.2]\n")
    asked: list[str | Path] = ["--config", experiment, "--arms", arms, "--seeds", "1,2"]
    calls = submitted(slurm, "ablate", *asked)
    assert list(calls) == ["ablate-sample", "ablate", "table"]
    assert [options_of(call).get("--array", "") for call in calls.values()] == ["0-3", "0-5", ""]
    assert [options_of(call).get("--dependency", "") for call in calls.values()] == ["", "afterok:100", "afterany:101"]
    commands = [" ".join(command_of(call)) for call in calls.values()]
    assert commands[0].endswith("--phase sample --part @TASK@/4") and commands[1].endswith("--part @TASK@/6")
    assert commands[2].endswith("--phase table") and all(f"--arms {arms} --seeds 1,2" in one for one in commands)


def test_a_dry_run_is_a_script_that_submits_just_what_would_be_submitted(slurm: Slurm, experiment: Path) -> None:
    """Blanks, quotes and what a shell would take for its own, in paths, overrides, set-up and options."""
    site = slurm.site(
        "setup: |\n  echo \"it's $HOME\" `date`\n  source 'a b'\nmodules: [a/1, b]\n"
        "environment: {CACHE: '/x y/$USER'}\noptions: ['--comment=two words; $(date)']\n"
    )
    asked: list[str | Path] = ["index", "--config", experiment, "--set", "rewards.weights={f1: 2.0}", "--site", site]
    mail = ["--", "--mail-user=me & you"]
    slurm.command(*asked, *mail)
    submitted_calls = slurm.calls
    slurm.forget()
    shown = slurm.command(*asked, "--dry-run", *mail)
    assert shown.returncode == 0 and slurm.calls == []
    ran = subprocess.run(["bash", "-eu", "-c", shown.stdout], check=True, capture_output=True, text=True)
    assert slurm.calls == submitted_calls and not ran.stderr
    arguments, environment = submitted_calls[1]
    assert "rewards.weights={f1: 2.0}" in arguments and "--mail-user=me & you" in arguments
    assert "--comment=two words; $(date)" in arguments
    assert environment["RATCHET_SETUP"].splitlines()[0] == 'echo "it\'s $HOME" `date`'
    assert (environment["RATCHET_MODULES"], environment["CACHE"]) == ("a/1 b", "/x y/$USER")


@pytest.mark.slow
def test_a_dry_run_says_how_servers_would_share_gpus_that_are_not_here(slurm: Slurm, experiment: Path) -> None:
    names = {"agent": "Qwen/Qwen3-8B", "judge": "Qwen/Qwen2.5-14B-Instruct"}
    models = {name: {"path": path, "engine": "vllm"} for name, path in names.items()}
    served = changed(experiment, experiment.parent / "served.yaml", **SERVED | {"models": models})
    asked = ("--config", served, "--dry-run", "--gpu")
    shown = slurm.command("round", *asked, "a100-80").stdout
    assert "# The servers of agent, on 1 GPU of 80 GB:\n# GPU 0: " in shown
    assert "# The servers of judge, on 1 GPU of 80 GB:\n# GPU 0: " in shown
    assert "the servers do not fit GPU 0 (24.0 GB" in slurm.command("round", *asked, "NVIDIA RTX4090").stderr
    refused = slurm.command("round", *asked, "RTX 490")
    assert refused.returncode == 2 and "did you mean 'RTX 4090'" in refused.stderr and slurm.calls == []


def test_what_is_printed_says_how_to_watch_and_cancel_and_where_the_logs_are(slurm: Slurm, experiment: Path) -> None:
    done = slurm.command("index", "--config", experiment, "--tasks", "3")
    assert done.stdout.splitlines()[-2:] == ["watch:  squeue --jobs 100,101", "cancel: scancel 100 101"]
    shard, manifest = slurm.calls
    assert options_of(shard)["--array"] == "0-2" and command_of(shard)[-2:] == ["--job", "@TASK@/3"]
    log = options_of(manifest)["--output"]
    assert log.endswith("/50%% off/run/slurm/manifest-%j.out")  # SLURM reads %% as %
    assert Path(log.replace("%%", "%")).parent.is_dir()


def test_what_is_in_the_queue_already_is_not_submitted_twice(slurm: Slurm, experiment: Path) -> None:
    slurm.program(
        "squeue", '#!/bin/sh\ncase "$*" in *--me*--name=50-off.run.index,*) echo 77_3 50-off.run.index;; esac\n'
    )
    done = slurm.command("index", "--config", experiment)
    assert done.returncode == 2 and "in the queue already, as 77_3" in done.stderr and slurm.calls == []
    assert slurm.command("index", "--config", experiment, "--again").returncode == 0


def test_a_refusal_halfway_names_what_was_submitted(slurm: Slurm, experiment: Path) -> None:
    site = slurm.site("jobs: {merge: {options: [--refused]}}")
    done = slurm.command("index", "--config", experiment, "--site", site)
    assert done.returncode == 2 and len(slurm.calls) == 1
    assert "refused manifest: sbatch: error: invalid partition" in done.stderr and "scancel 100" in done.stderr


def test_without_slurm_it_says_what_is_missing(slurm: Slurm, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(slurm.folder))
    done = slurm.command("index", "--config", experiment)
    assert done.returncode == 2 and "squeue: cannot run" in done.stderr and "--dry-run" in done.stderr


@pytest.mark.parametrize(
    ("job", "sections", "message"),
    [
        ("sample", {}, "the index is not built; `ratchet slurm index --config"),
        ("rewards", {}, "no trajectories; `ratchet slurm sample --config"),
        ("train", {}, "there is no selection"),
        ("evaluate", {}, "there is no adapter"),
        ("selftrain", {"rounds": {"cuont": 2}}, "cuont: unknown key (did you mean 'count'?)"),
        ("selftrain", {"system": {"name": "mrga"}}, "did you mean 'mrag'?"),
        ("selftrain", {"questions": {s: {"path": "gone.jsonl"} for s in ("train", "dev", "test")}}, "gone.jsonl"),
        (
            "selftrain",
            {"models": {"agent": {"path": "/nowhere/model"}}},
            "models.agent.path: /nowhere/model does not exist",
        ),
        ("index", {"index": {"url": "http://127.0.0.1:1"}}, "another machine serves the index"),
        (
            "selftrain",
            {"models": {"agent": {"path": "configs/gone"}}},
            "models.agent.path: configs/gone does not exist",
        ),
        ("sweep", {"sweep": {"dev": ["beauty"]}}, "sweep.dev: beauty: no such split"),
    ],
)
def test_what_would_fail_later_is_refused_now(
    slurm: Slurm, experiment: Path, job: str, sections: dict[str, Any], message: str
) -> None:
    config = changed(experiment, slurm.folder / "config.yaml", **sections)
    for flags in ([], ["--dry-run"]):
        done = slurm.command(job, "--config", config, *flags)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    assert slurm.calls == []


def test_a_round_comes_after_the_one_before_it_is_decided(slurm: Slurm, experiment: Path) -> None:
    config = changed(experiment, slurm.folder / "config.yaml", rounds={"count": 3})
    done = slurm.command("sample", "--config", config, "--round", "2")
    assert done.returncode == 2 and "round 1 is not decided yet" in done.stderr
    done = slurm.command("round", "--config", config, "--round", "4")
    assert done.returncode == 2 and "rounds.count is 3" in done.stderr
    calls = submitted(slurm, "round", "--config", config, "--round", "2")
    assert command_of(calls["round"])[-2:] == ["--until", "2"]


def test_an_evaluation_needs_the_adapters_of_its_controls(slurm: Slurm, experiment: Path) -> None:
    evaluation = yaml.safe_load(experiment.read_text())["evaluation"] | {"controls": ["random"]}
    config = prepared(changed(experiment, slurm.folder / "config.yaml", evaluation=evaluation))
    refused = slurm.command("evaluate", "--config", config)
    assert refused.returncode == 2 and "no adapter of the control random" in refused.stderr
    save_adapter(slurm.folder / "run" / "round-1" / "control-random" / "adapter")
    assert "evaluate" in submitted(slurm, "evaluate", "--config", config)


def test_in_an_image_the_command_runs_by_its_python_with_the_checkout_seen(slurm: Slurm, experiment: Path) -> None:
    """Right down to the call of apptainer, through slurm/job.sh."""
    image = slurm.folder / "my image.sif"
    image.touch()
    site = slurm.site(
        f"apptainer: {{image: '{image}', binds: ['/scratch:/s'], options: [--cleanenv]}}\n"
        "jobs: {selftrain: {gpus: 1}}\n"
    )
    call = submitted(slurm, "selftrain", "--config", experiment, "--site", site)["selftrain"]
    words = slurm.folder / "words"
    slurm.program("apptainer", f"#!/bin/sh\nfor word; do echo \"$word\"; done > '{words}'\n")
    script = [str(ROOT / "slurm" / "job.sh"), *command_of(call)]
    subprocess.run(["bash", *script], check=True, capture_output=True, cwd=options_of(call)["--chdir"])
    assert words.read_text().splitlines() == [
        "exec",
        "--nv",
        f"--bind={ROOT}",
        "--bind=/scratch:/s",
        f"--env=PYTHONPATH={ROOT / 'src'}",
        f"--pwd={ROOT}",
        "--cleanenv",
        str(image),
        *("python", "-P", "-m", "ratchet", "selftrain"),
        "--config",
        str(experiment),
    ]


def test_training_over_two_nodes_starts_on_each_and_meets_at_the_first(slurm: Slurm, experiment: Path) -> None:
    config = on_gpus(experiment, slurm.folder / "config.yaml")
    site = slurm.site("jobs:\n  train: {nodes: 2, gpus: 4}\n")
    train = submitted(slurm, "train", "--config", prepared(config), "--site", site)["train"]
    options, command = options_of(train), command_of(train)
    assert (options["--nodes"], options["--ntasks-per-node"], options["--gres"]) == ("2", "1", "gpu:4")
    assert (options["--cpus-per-task"], options["--mem"]) == ("32", "256G"), "of each node"
    assert command[:4] == ["srun", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=32"]
    assert command[5:8] == ["bash", str(ROOT / "slurm" / "node.sh"), sys.executable]
    assert {"--num_machines=2", "--num_processes=8", "--machine_rank=@NODE@"} <= set(command)
    sample = submitted(slurm, "sample", "--config", config, "--site", site)["sample"]
    assert options_of(sample)["--nodes"] == "1" and "srun" not in command_of(sample)


@pytest.mark.parametrize(
    ("job", "resources", "said"),
    [
        ("sample", "sample: {gpus: 4}", "jobs.sample.gpus: 4, and the models of sample use 1: the others stay idle"),
        ("sample", "sample: {gpus: 1}", ""),
        ("rewards", "rewards: {gpus: 2}", "error: jobs.rewards.gpus: 2, and the models of rewards need 4"),
        ("rewards", "rewards: {gpus: 0}", ""),
        ("evaluate", "default: {gpus: 8}", "jobs.default.gpus: 8, and the models of evaluate-sample use 1"),
        (
            "sweep",
            "default: {gpus: 8}",
            "jobs.default.gpus: 8, and the models of merge use none: they stay idle\n",
        ),
        ("round", "train: {nodes: 2}", "jobs.train.nodes: 2 holds for `ratchet slurm train` alone: `round` trains on"),
        (
            "selftrain",
            "selftrain: {gpus: 8}",
            "jobs.selftrain.gpus: 8, and the models of selftrain use 5 (training uses",
        ),
        ("train", "train: {nodes: 3, gpus: 1}", "error: training.batch_size=4 cannot be divided into"),
    ],
)
def test_what_a_site_asks_for_and_no_job_uses_is_said_at_once(
    slurm: Slurm, experiment: Path, job: str, resources: str, said: str
) -> None:
    config = changed(experiment, slurm.folder / "config.yaml", **SERVED)
    data = yaml.safe_load(config.read_text())
    data["models"]["judge"]["serve"] = {"arguments": {"tensor-parallel-size": 4}}
    config.write_text(yaml.safe_dump(data))
    site = slurm.site(f"jobs:\n  {resources}\n")
    done = slurm.command(job, "--config", prepared(config), "--site", site, "--dry-run")
    assert done.returncode == (2 if said.startswith("error") else 0)
    assert said in done.stderr and ("jobs." in done.stderr) == ("jobs." in said), done.stderr


@pytest.mark.slow
def test_a_dry_run_plans_questions_that_are_not_here(slurm: Slurm, experiment: Path) -> None:
    gone = {split: {"path": f"gone/{split}.jsonl"} for split in ("train", "dev", "test")}
    models = {name: {"path": path, "engine": "vllm"} for name, path in (("agent", QWEN), ("judge", QWEN))}
    config = changed(experiment, slurm.folder / "config.yaml", **SERVED | {"models": models}, questions=gone)
    asked = ("round", "--config", config, "--questions", "4000")
    shown = slurm.command(*asked, "--dry-run", "--gpu", "A100-80")
    assert shown.returncode == 0, shown.stderr
    assert "\n# The work of 4,000 questions:\n# sample: 16,000 trajectories, " in shown.stdout
    assert "\n# evaluate: ? trajectories" in shown.stdout
    sample = slurm.command("sample", *asked[1:], "--dry-run")
    assert sample.returncode == 0 and "16,000 trajectories" in sample.stdout, "its index need not be here either"
    refused = slurm.command(*asked)
    assert refused.returncode == 2 and "add --dry-run" in refused.stderr and slurm.calls == []


def test_an_encoder_of_unknown_size_is_said_where_servers_share_the_gpu(slurm: Slurm, experiment: Path) -> None:
    models = {name: {"path": QWEN, "engine": "vllm"} for name in ("agent", "judge")}
    embedder = {"path": "gone/encoder", "device": "cuda"}
    config = changed(experiment, slurm.folder / "config.yaml", **SERVED | {"models": models}, embedder=embedder)
    shown = slurm.command("round", "--config", config, "--dry-run", "--gpu", "A100-80")
    assert "# warning: the memory of embedder gone/encoder is not known" in shown.stdout, shown.stderr


def test_training_is_launched_as_the_sites_accelerate_config_says(slurm: Slurm, experiment: Path) -> None:
    found = [path for path in ("ddp.yaml", "fsdp.yaml") if (ROOT / "configs" / "accelerate" / path).exists()]
    file = ROOT / "configs" / "accelerate" / found[0]
    processes = yaml.safe_load(file.read_text())["num_processes"]
    config = on_gpus(experiment, slurm.folder / "config.yaml")
    site = slurm.site(f"accelerate: {file}\n")
    call = submitted(slurm, "train", "--config", prepared(config), "--site", site)["train"]
    assert options_of(call)["--gres"] == f"gpu:{processes}"
    assert command_of(call)[3:6] == ["--config_file", str(file), f"--num_processes={processes}"]
    slurm.forget()
    call = submitted(slurm, "selftrain", "--config", config, "--site", site)["selftrain"]
    assert command_of(call)[-2:] == ["--accelerate", str(file)] and options_of(call)["--gres"] == f"gpu:{processes}"


def test_a_gpu_of_a_round_on_cpus_stays_idle_in_training_too(slurm: Slurm, experiment: Path) -> None:
    done = slurm.command(
        "round", "--config", experiment, "--site", slurm.site("jobs: {default: {gpus: 1}}\n"), "--dry-run"
    )
    assert "jobs.default.gpus: 1, and the models of round use none: they stay idle" in done.stderr
