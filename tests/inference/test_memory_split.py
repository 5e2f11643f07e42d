"""What goes on which GPU, with which part of its memory, on the shapes of real models; and what each server is told."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ratchet.commands.main import run
from ratchet.core.config import Config, ServeConfig
from ratchet.core.errors import UserError
from ratchet.core.parsing import parse
from ratchet.inference.footprint import Footprint, footprint
from ratchet.inference.serving.memory import (
    CUDA_CONTEXT_BYTES,
    GB,
    SPARE_FRACTION,
    Gpu,
    assign_gpus,
    estimate_memory,
    keep_free,
    plan_cpu_memory,
    planned_gpus,
)
from ratchet.inference.serving.specs import (
    ModelUse,
    Placement,
    ServerSpec,
    server_command,
    server_environment,
    server_specs,
)
from tests.helpers.model_shapes import FALCON3_10B, QWEN25_7B, QWEN25_14B, save_shape

PLAIN = {"serve": {"arguments": {"enable-lora": False}}}
"""As the judge: without adapters."""
FP8 = {"serve": {"arguments": {"quantization": "fp8", "kv-cache-dtype": "fp8"}}}
SHAPES = {"agent": QWEN25_7B, "judge": FALCON3_10B, "second": QWEN25_14B}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, shape in SHAPES.items():
        save_shape(folder / name, shape)
    return folder


@pytest.fixture(scope="module")
def sizes(folder: Path) -> dict[str, Footprint]:
    return {name: footprint(str(folder / name), None, "bfloat16") for name in SHAPES}


def config(folder: Path, **models: dict[str, Any]) -> Config:
    return Config.model_validate(
        {
            "run": "unused",
            "models": {
                name: {"path": str(folder / name), "engine": "vllm", **values} for name, values in models.items()
            },
            "index": {"path": "unused"},
            "questions": {split: {"path": "unused"} for split in ("train", "dev", "test")},
            "rewards": {"weights": {"em": 1.0}},
            "evaluation": {"scores": ["em"]},
        }
    )


def specs_of(
    config: Config, names: list[str] | None = None, uses: dict[str, ModelUse] | None = None
) -> list[ServerSpec]:
    return server_specs(config, names, uses)


def wanted(folder: Path, **models: dict[str, Any]) -> list[ServerSpec]:
    return specs_of(config(folder, **models))


def test_qwen_7b_and_falcon_10b_share_an_a100(folder: Path, sizes: dict[str, Footprint]) -> None:
    both = wanted(folder, agent={}, judge={})
    placements = assign_gpus(both, sizes, planned_gpus(1, 80))
    agent, judge = placements["agent"], placements["judge"]
    # By hand, in GB: weights 2 x 7.616 = 15.231, two adapters of 40.37 million parameters 0.161, activations 3,
    # graphs 1.5, 32,000 tokens of 57,344 bytes 1.835; and 20.611 + 3 + 1.5 + 32,000 x 163,840 = 5.243. With two
    # contexts of 0.6 that is 53.281 of 80 less 3% = 77.6; the 24.319 left are divided as 57,344 to 163,840.
    agent_gb = 15.231 + 0.161 + 4.5 + 1.835 + 24.319 * 57_344 / 221_184
    judge_gb = 20.611 + 4.5 + 5.243 + 24.319 * 163_840 / 221_184
    assert agent.fraction == pytest.approx(agent_gb / 80, abs=1e-3)
    assert judge.fraction == pytest.approx(judge_gb / 80, abs=1e-3)
    assert (agent.fraction + judge.fraction) * 80 * GB + 2 * CUDA_CONTEXT_BYTES <= (1 - SPARE_FRACTION) * 80 * GB
    assert agent.gpus == judge.gpus == ("0",)


@pytest.mark.parametrize(
    ("names", "total", "over"),
    [(("agent", "judge"), "53.1", "14.3"), (("agent", "judge", "second"), "94.1", "55.3")],
)
def test_what_does_not_fit_40_gb_is_refused_with_its_arithmetic(
    folder: Path, sizes: dict[str, Footprint], names: tuple[str, ...], total: str, over: str
) -> None:
    with pytest.raises(UserError) as error:
        assign_gpus(wanted(folder, **dict.fromkeys(names, PLAIN)), sizes, planned_gpus(1, 40))
    said = str(error.value)
    assert f"together {total} GB, {over} GB too much" in said
    assert "weights 15.2 GB" in said and "weights 20.6 GB" in said
    assert "keys and values of 32000 tokens 5.2 GB = 31.0 GB" in said
    assert "--models" in said and "max_context" in said


def test_the_model_with_more_of_the_calls_gets_more_of_the_rest(folder: Path, sizes: dict[str, Footprint]) -> None:
    def rest(uses: dict[str, ModelUse]) -> list[float]:
        specs = specs_of(config(folder, agent=PLAIN, judge={}), None, uses)
        placements = assign_gpus(specs, sizes, planned_gpus(1, 80))
        needed = [estimate_memory(spec, sizes[spec.name]) for spec in specs]
        return [placements[one.spec.name].fraction * 80 * GB - one.total + CUDA_CONTEXT_BYTES for one in needed]

    agent, judge = rest({"agent": ModelUse(calls=18), "judge": ModelUse(calls=2)})
    assert agent / judge == pytest.approx(9 * 57_344 / 163_840, rel=0.05), "calls x bytes of a token"
    agent, judge = rest({"agent": ModelUse(18, 4000), "judge": ModelUse(2, 16_000)})
    assert agent / judge == pytest.approx(9 / 4 * 57_344 / 163_840, rel=0.05), "and x the tokens of a conversation"


def test_requests_in_flight_are_what_the_cache_holds(folder: Path, sizes: dict[str, Footprint]) -> None:
    def placed(agent: dict[str, Any], use: ModelUse) -> tuple[Placement, list[str]]:
        [spec] = specs_of(config(folder, agent=PLAIN | agent), None, {"agent": use})
        placement = assign_gpus([spec], sizes, planned_gpus(1, 40))["agent"]
        return placement, server_command(spec, placement, 1)

    # Of 40 GB: 38.8 less weights 15.231, activations 3, graphs 1.5 and the context 0.6 are 18.469 = 322,000 tokens.
    by_default, command = placed({}, ModelUse(is_measured=True))
    assert by_default.kv_bytes == pytest.approx(18.469e9, rel=0.01)
    assert by_default.concurrency == 40, "of 8,000 tokens, a quarter of the context"
    assert command[command.index("--max-num-seqs") + 1] == "40"
    assert placed({}, ModelUse())[0].concurrency == 64, "until the tokens are measured"
    assert placed({}, ModelUse(conversation_tokens=4000))[0].concurrency == 80
    assert placed({}, ModelUse(conversation_tokens=10))[0].concurrency == 256, "no more than there is memory to sample"
    limited, command = placed({"serve": {"arguments": {"enable-lora": False, "max-num-seqs": 16}}}, ModelUse())
    assert limited.concurrency == 16 and command.count("--max-num-seqs") == 1
    explicit, command = placed({"concurrency": 300}, ModelUse())
    assert explicit.concurrency == 300 and command[command.index("--max-num-seqs") + 1] == "300"


def test_eight_bits_halve_what_they_may_and_are_told_to_vllm(folder: Path, sizes: dict[str, Footprint]) -> None:
    plain, small = (
        wanted(folder, agent={}, judge={})[1],
        wanted(folder, agent={}, judge=FP8)[1],
    )
    before, after = (estimate_memory(spec, sizes["judge"]) for spec in (plain, small))
    # Embeddings and head, 131,072 x 3,072 numbers each, keep their 2 bytes.
    assert after.weights == pytest.approx(before.weights / 2 + 131_072 * 3072 * 2, rel=0.001)
    assert after.token == before.token / 2
    command = server_command(small, Placement(("0",), 0.5), 1)
    assert command[command.index("--quantization") + 1] == command[command.index("--kv-cache-dtype") + 1] == "fp8"
    assert "--quantization" not in server_command(plain, Placement(("0",), 0.5), 1)


def test_eight_bits_are_refused_for_the_trained_model(folder: Path) -> None:
    with pytest.raises(ValidationError, match=r"models\.agent\.serve\.arguments: quantization: this model is trained"):
        config(folder, agent=FP8)


def test_encoders_of_the_command_keep_their_memory(folder: Path, sizes: dict[str, Footprint]) -> None:
    one = wanted(folder, agent={})
    alone = assign_gpus(one, sizes, planned_gpus(1, 80))["agent"]
    gpus = keep_free(planned_gpus(2, 80), [("auto", 3 * GB), ("cuda:0", GB)])
    assert [gpu.kept for gpu in gpus] == [4 * GB + CUDA_CONTEXT_BYTES, 0]
    assert assign_gpus(one, sizes, gpus)["agent"].gpus == ("1",), "where there is more room"
    beside = assign_gpus(one, sizes, gpus[:1])["agent"]
    assert (alone.fraction - beside.fraction) * 80 * GB == pytest.approx(4 * GB + CUDA_CONTEXT_BYTES, abs=0.1 * GB)
    with pytest.raises(UserError, match=r"60\.6 GB of it kept for encoders(?s:.)*encoders on the CPU \(index\.encoder"):
        assign_gpus(one, sizes, keep_free(planned_gpus(1, 80), [("auto", 60 * GB)]))


def test_copies_and_parallel_servers_spread_over_the_gpus(folder: Path, sizes: dict[str, Footprint]) -> None:
    copies, split = ({"serve": {"arguments": {f"{kind}-parallel-size": 2}}} for kind in ("data", "tensor"))
    both = wanted(folder, agent=copies, second=split)
    gpus = [Gpu(name, 80 * GB, 80 * GB) for name in ("GPU-a", "GPU-b", "3", "4")]
    placements = assign_gpus(both, sizes, gpus)
    assert set(placements["agent"].gpus) | set(placements["second"].gpus) == {gpu.name for gpu in gpus}
    command = server_command(both[0], placements["agent"], 1)
    assert command[command.index("--data-parallel-size") + 1] == "2"
    alone = assign_gpus(wanted(folder, agent={}), sizes, gpus)["agent"]
    assert (alone.fraction, alone.concurrency) == (placements["agent"].fraction, placements["agent"].concurrency)
    whole = wanted(folder, agent={}, second={})[1]
    one, two = (estimate_memory(spec, sizes["second"]) for spec in (both[1], whole))
    assert (2 * one.weights, 2 * one.kv) == (two.weights, two.kv)
    with pytest.raises(UserError, match="tensor-parallel-size x data-parallel-size is 2, and there are 1 GPUs"):
        assign_gpus(both, sizes, planned_gpus(1, 80))


def test_main_memory_is_shared_out_where_there_is_no_gpu(folder: Path, sizes: dict[str, Footprint]) -> None:
    one = wanted(folder, agent={"max_context": 1000, "concurrency": 10})
    placement = plan_cpu_memory(one, sizes, 100 * GB)["agent"]
    assert placement.kv_bytes == 10 * 1000 * 57_344, "all that can be in flight, where there is room for it"
    tight = plan_cpu_memory(one, sizes, 16 * GB)["agent"]
    assert tight.kv_bytes == 10 * 1000 * 57_344
    with pytest.raises(UserError, match=r"weights 15\.2 GB \+ keys and values 0\.1 GB"):
        plan_cpu_memory(one, sizes, 15 * GB)


# What is served, and how it is started


def test_equal_models_share_a_server_and_others_do_not(folder: Path) -> None:
    path = str(folder / "agent")
    shared = wanted(folder, agent=PLAIN, judge={"path": path, "timeout": 5.0})
    assert [(s.names, s.concurrency) for s in shared] == [(("agent", "judge"), None)]
    limits = wanted(folder, agent={**PLAIN, "concurrency": 3}, judge={"path": path, "concurrency": 4})
    assert [s.concurrency for s in limits] == [7]
    served = {"serve": {"arguments": {"block-size": 32}}}
    for other in ({"revision": "v2"}, {"max_context": 99}, served, {"path": str(folder / "judge")}):
        assert len(wanted(folder, agent=PLAIN, judge={"path": path, **other})) == 2


def test_the_models_that_are_named(folder: Path) -> None:
    made = config(folder, agent={}, judge={}, far={"url": "http://far:1/v1"}, here={"engine": "local"})
    assert [s.name for s in specs_of(made)] == ["agent", "judge"]
    assert [s.name for s in specs_of(made, ["judge"])] == ["judge"]
    for name, message in (("jugde", "did you mean 'judge'"), ("far", "has the url"), ("here", "engine is local")):
        with pytest.raises(UserError, match=message):
            specs_of(made, [name])


@pytest.mark.parametrize(
    ("judge", "placement", "flags", "absent"),
    [
        # A seeded request whose prompt is prefilled in chunks ends the engine on a CPU.
        ({}, Placement(kv_bytes=1), ["--no-enable-chunked-prefill"], ""),
        ({"send_seed": False}, Placement(kv_bytes=1), [], "--no-enable-chunked-prefill"),
        ({}, Placement(("0",), 0.5), [], "--no-enable-chunked-prefill"),
        (
            {"serve": {"arguments": {"max_num_seqs": 128, "--async-scheduling": False, "block-size": "32"}}},
            Placement(),
            ["--max-num-seqs", "128", "--no-async-scheduling", "--block-size", "32"],
            "--async-scheduling",
        ),
    ],
)
def test_flags_for_a_cpu_and_of_the_users_own(
    folder: Path, judge: dict[str, Any], placement: Placement, flags: list[str], absent: str
) -> None:
    command = server_command(wanted(folder, agent={}, judge=judge)[1], placement, 1)
    assert command[len(command) - len(flags) :] == flags and absent not in command


def test_adapters_fit_the_model_that_is_trained(folder: Path) -> None:
    agent, judge = wanted(folder, agent={}, judge={})
    assert (agent.lora_rank, judge.lora_rank) == (16, 0)
    command = server_command(agent, Placement(("0",), 0.5), 1)
    assert command[command.index("--max-lora-rank") + 1] == "16" and "--enable-lora" in command
    assert server_environment(agent, Placement(("0", "3"), 0.5))["CUDA_VISIBLE_DEVICES"] == "0,3"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in server_environment(agent, Placement())
    assert "--enable-lora" not in server_command(judge, Placement(), 1)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in server_environment(judge, Placement())
    own = wanted(folder, agent={"serve": {"arguments": {"max-lora-rank": 64}}})[0]
    assert server_command(own, Placement(), 1)[-5:] == ["--enable-lora", "--max-lora-rank", "64", "--max-loras", "2"]


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        ({"arguments": {"api-key": "x"}}, "--api-key is set by models"),
        ({"arguments": {"trust_remote_code": True}}, "never run"),
        ({"arguments": {"host": "0.0.0.0"}}, "loopback"),
        ({"argument": {}}, "did you mean 'arguments'"),
        ({"arguments": {"data_parallel_size": 0}}, "data-parallel-size: 0 is not a number from 1"),
    ],
)
def test_settings_that_are_refused(serve: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(ServeConfig, serve, "models.agent.serve")


@pytest.mark.parametrize("card", [("--gpu-gb", "80"), ("--gpu", "NVIDIA A100 80GB"), ("--gpu", "h100")])
def test_a_dry_run_plans_for_another_machine(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    card: tuple[str, str],
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config(folder, agent={}, judge={}).model_dump_json())
    run(["models", "serve", "--config", str(path), "--dry-run", *card, "--merge", "gone", "--", "run", "it"])
    out = capsys.readouterr().out
    assert re.search(r"GPU 0: 0\.\d+ of its memory for agent ", out) and out.count("CUDA_VISIBLE_DEVICES=0 ") == 2
    assert out.count("--gpu-memory-utilization") == 2 and out.endswith("then: run it\n")
    assert not Path("unused").exists()
