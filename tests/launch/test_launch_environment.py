"""Unknown, empty, blank and broken variables; what the manifest may show of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from sm86.errors import CouldNotRun
from sm86.launch import environment


def table(values: Mapping[str, str]) -> Mapping[str, Callable[[], object]]:
    def broken() -> object:
        raise RuntimeError("asks the device")

    return {
        "VLLM_PORT": lambda: int(values["VLLM_PORT"]),
        "VLLM_LOGGING_LEVEL": lambda: values.get("VLLM_LOGGING_LEVEL"),
        "VLLM_API_KEY": lambda: None,
        "VLLM_DEVICE_THING": broken,
        "VLLM_CHOICE": lambda: {"a": 1}[values["VLLM_CHOICE"]],
        "VLLM_ALLREDUCE_USE_FLASHINFER": lambda: values,
    }


def check(values: dict[str, str]) -> environment.Checked:
    return environment.check(values, table(values))


def test_known_variables_and_foreign_ones_are_kept() -> None:
    values = {"VLLM_PORT": "9", "NCCL_P2P_LEVEL": "SYS", "NCCL_WHATEVER": "x", "HOME": "/h", "EMPTY": ""}
    assert check(values) == environment.Checked(values, ())


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("VLLM_PORTS", "did you mean VLLM_PORT?"),
        ("VLLM_LOGING_LEVEL", "did you mean VLLM_LOGGING_LEVEL?"),
        ("VLLM_ATTENTION_BACKEND", "leave it out, or see vLLM's list of environment variables"),
        ("SM86_GPU", "did you mean SM86_GPUS?"),
        ("SM86_NUM_BLOCKS", "did you mean SM86_NUM_GPU_BLOCKS?"),
    ],
)
@pytest.mark.parametrize("value", ["1", ""])
def test_unknown_names_are_refused_with_the_nearest_even_when_empty(name: str, mend: str, value: str) -> None:
    with pytest.raises(CouldNotRun) as refusal:
        check({name: value})
    assert name in refusal.value.what
    assert refusal.value.mend == mend


def test_empty_variables_are_taken_out_and_told() -> None:
    values = {
        "NCCL_ALGO": "",
        "NCCL_DEBUG": "",
        "VLLM_PORT": "",
        "SM86_FORCE": "",
        "FUSE_ALLREDUCE_RMS": "",
        "HOME": "",
    }
    checked = check(values)
    assert checked.environment == {"HOME": ""}
    assert checked.removed == ("FUSE_ALLREDUCE_RMS", "NCCL_ALGO", "NCCL_DEBUG", "SM86_FORCE", "VLLM_PORT")


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "VLLM_LOGGING_LEVEL", "SM86_CACHE_DIR", "SPECULATIVE_CONFIG"])
@pytest.mark.parametrize(
    ("value", "words"), [(" ", "blank"), ("\t", "blank"), ("x\r", "line end"), ("a\nb", "line end")]
)
def test_blank_values_and_carriage_returns_are_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(CouldNotRun, match=words) as refusal:
        check({name: value})
    assert "\r" not in refusal.value.what


@pytest.mark.parametrize(("name", "value"), [("VLLM_PORT", "two"), ("VLLM_PORT", "2.0"), ("VLLM_CHOICE", "b")])
def test_a_value_that_vllm_cannot_read_is_refused_now_and_not_under_load(name: str, value: str) -> None:
    with pytest.raises(CouldNotRun, match=f"{name}={value} is nothing that vLLM can read"):
        check({name: value})


def test_a_reader_that_needs_the_engine_is_left_to_the_engine() -> None:
    assert check({"VLLM_DEVICE_THING": "1"}).removed == ()


def test_without_vllm_nothing_is_said_about_its_names() -> None:
    assert environment.check({"VLLM_ANY": "1", "VLLM_PORT": "x"}, None).environment["VLLM_ANY"] == "1"
    with pytest.raises(CouldNotRun):
        environment.check({"SM86_ANY": "1"}, None)


def test_an_api_key_in_the_environment_is_refused_without_showing_it() -> None:
    with pytest.raises(CouldNotRun) as refusal:
        check({"VLLM_API_KEY": "s3cr3t"})
    assert "s3cr3t" not in refusal.value.what + refusal.value.mend


def test_shown_is_what_matters_and_never_a_secret() -> None:
    values = {
        "VLLM_PORT": "1",
        "VLLM_API_KEY": "s3cr3t",
        "NCCL_P2P_LEVEL": "SYS",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS": "x",
        "SM86_API_KEY_FILE": "/run/secrets/k",
        "SPECULATIVE_CONFIG": "none",
        "HF_TOKEN": "s3cr3t",
        "TRITON_SECRET": "s3cr3t",
        "VLLM_S3_CREDENTIALS": "s3cr3t",
        "HOME": "/root",
        "LD_PRELOAD": "x.so",
    }
    shown = environment.shown(values)
    assert "s3cr3t" not in str(shown)
    assert set(shown) == {
        "VLLM_PORT",
        "NCCL_P2P_LEVEL",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "TORCH_LOGS",
        "SM86_API_KEY_FILE",
        "SPECULATIVE_CONFIG",
        "LD_PRELOAD",
    }
    assert list(shown) == sorted(shown)
