"""Real servers' logs, judged: made on H200s told to be SM86, a random 8-layer checkpoint.

`sm86-proof.log` is of the launcher alone, 20,000 tokens and more; `sm86-proof-up.log` is of `invoke up --engine local`
with a benchmark, a trace and single questions. Of their 20,529 and 3,066 dispatch lines the first and last forty are
kept (of the second log no access lines of questions); paths are those of the image. Each mutation is an honest one:
the log as it would read if that one thing had gone wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sm86.manifest import manifest_of, parse_line
from sm86.spec import load_envelope
from sm86.verify.verify import verify_log

DATA = Path(__file__).parent / "data"
LOGS = {name: (DATA / f"{name}.log").read_bytes().decode() for name in ("sm86-proof", "sm86-proof-up")}
LOG = LOGS["sm86-proof"]


def judged(text: str) -> dict[str, str]:
    report = verify_log(load_envelope("sm86-proof"), iter([text.encode()]), None, "the log")
    return {finding.rule: finding.state for finding in report.findings}


@pytest.mark.parametrize("log", LOGS)
def test_the_log_passes_every_rule(log: str) -> None:
    states = judged(LOGS[log])
    assert len(states) == 19 and set(states.values()) == {"pass"}, states


def replaced(pattern: str, by: str, count: int = 0) -> Callable[[str], str]:
    def change(text: str) -> str:
        changed, times = re.subn(pattern, by, text, count=count)
        assert times, pattern
        return changed

    return change


def without(words: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        kept = [line for line in text.split("\n") if words not in line]
        assert len(kept) < len(text.split("\n")), words
        return "\n".join(kept)

    return change


def after_start(line: str) -> Callable[[str], str]:
    return replaced(r"(Application startup complete\.\n)", rf"\g<1>{line}\n")


MUTATIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "a hook was left out": (
        "attention-backend",
        replaced(r"backend hooks=", 'backend left_out_for_a_test=["routed-experts"]\n[sm86] backend hooks=', 1),
    ),
    "another attention class": (
        "attention-backend",
        replaced(r"backend attention_backend=FLASHINFER_MLA_SPARSE_DSV4", "backend attention_backend=FLASHMLA_SPARSE"),
    ),
    "the plugin did not say what it took": ("attention-backend", without("[sm86] backend attention_backend=")),
    "a decode batch missed its graph": (
        "dispatch",
        replaced(r"SM86 cudagraph hit cg_mode=FULL num_tokens=4", "SM86 cudagraph miss cg_mode=NONE num_tokens=4", 1),
    ),
    "graphs were off for a batch": (
        "dispatch",
        replaced(r"SM86 cudagraph hit cg_mode=FULL num_tokens=1", "SM86 cudagraph skip cg_mode=NONE num_tokens=1", 1),
    ),
    "nothing was dispatched": ("dispatch", without("SM86 cudagraph")),
    "two of three sizes captured": ("graphs-captured", replaced(r"100%\|[^|]*\| 3/3", " 67%|██████▋   | 2/3")),
    "no graphs": ("graphs-captured", without("Capturing CUDA graphs")),
    "fewer blocks": ("block-override", replaced(r"num_gpu_blocks_override=864\b(?!,)", "num_gpu_blocks_override=800")),
    "another MoE backend": ("moe-backend", replaced("Using 'MARLIN' WNA16", "Using 'HUMMING' WNA16")),
    "the experts ran in a fixed order": (
        "moe-backend",
        replaced(r"backend hooks=", "backend deterministic_moe=true\n[sm86] backend hooks=", 1),
    ),
    "another KV dtype": ("kv-cache-dtype", replaced(r"kv_cache_dtype=fp8_ds_mla", "kv_cache_dtype=fp8")),
    "another vLLM": ("vllm-version", replaced(r"LLM engine \(v0\.26\.0\)", "LLM engine (v0.27.0)")),
    "another context": ("context-served", replaced(r"max_model_len=32768", "max_model_len=16384")),
    "the manifest is cut": ("manifest", without("[sm86] manifest end")),
    "an argument was changed": ("argv", replaced(r'"--max-num-seqs","4"', '"--max-num-seqs","8"')),
    "the engine died": (
        "ready",
        after_start("(EngineCore pid=1591) ERROR 11-30 18:00:00 [core.py:1] EngineCore encountered a fatal error."),
    ),
    "out of memory": (
        "out-of-memory",
        after_start("(EngineCore pid=1591) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
    ),
    "it never became ready": ("ready", without("Application startup complete")),
}


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("name", MUTATIONS)
def test_an_honest_mutation_fails(name: str, log: str) -> None:
    rule, change = MUTATIONS[name]
    states = judged(change(LOGS[log]))
    assert states[rule] in ("fail", "not seen"), states


def test_the_command_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sm86.cli.verify import verify

    assert verify("sm86-proof", str(DATA / "sm86-proof.log"), results=tmp_path) == 0
    assert "sm86-proof: verified (19 pass)" in capsys.readouterr().out
    broken = tmp_path / "broken.log"
    broken.write_text(without("SM86 cudagraph")(LOG))
    assert verify("sm86-proof", str(broken), results=tmp_path) == 1
    # the wrong envelope does not prove anything either
    assert verify("sm86-proof-tp2", str(DATA / "sm86-proof.log"), results=tmp_path) == 1


@pytest.mark.parametrize("log", LOGS)
def test_what_the_plugin_said(log: str) -> None:
    lines = [re.sub(r"^\(\w+ pid=\d+\) ", "", line) for line in LOGS[log].split("\n")]
    said = {entry.key: entry.value for entry in map(parse_line, lines) if getattr(entry, "section", "") == "backend"}
    assert said["active"] == "true" and said["forced"] == "true" and said["vllm"] == "0.26.0"
    assert said["attention_backend"] == "FLASHINFER_MLA_SPARSE_DSV4"
    assert said["swiglu_limit"] == "2.0" and said["rope_table_rows"] == "33024"
    assert isinstance(said["hooks"], list) and "routed-experts" in said["hooks"]
    manifest = manifest_of(lines)
    assert manifest is not None and manifest["attention_backend"] == "FLASHINFER_MLA_SPARSE_DSV4"


def test_the_newer_log_is_of_a_build_with_plain_rope_and_a_checked_checkpoint() -> None:
    assert "[sm86] backend window_rope=plain" in LOGS["sm86-proof-up"]
    assert "[sm86] backend checkpoint_tensors=1486" in LOGS["sm86-proof-up"]


def test_the_two_gpu_envelope_is_valid_too() -> None:
    two = load_envelope("sm86-proof-tp2")
    assert two.serve.tensor_parallel == 2 and set(two.rules) - {"host-allreduce"} == set(
        load_envelope("sm86-proof").rules
    )
