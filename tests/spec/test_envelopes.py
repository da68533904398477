"""The shipped specs say what the runbook and the roadmap say."""

import itertools
import json

import pytest

from sm86.spec import load_all, load_envelope, load_pins, load_proofs
from sm86.spec.argv import serve_argv
from sm86.spec.envelope import PublishedRig

PUBLISHED = {
    "sm86-262k": (262_144, 1, 59.6, (59.6,)),
    "sm86-176k-2seq": (180_224, 2, 81.3, (39.3, 42.0)),
    "sm86-114k-3seq": (116_736, 3, 104.5, (32.7, 36.0, 35.8)),
    "sm86-80k-4seq": (81_920, 4, 120.1, (29.2, 30.3, 30.3, 30.2)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_envelopes(name):
    context, sequences, aggregate, each = PUBLISHED[name]
    envelope = load_envelope(name)
    assert envelope.status == "published"
    assert (envelope.serve.context, envelope.serve.sequences) == (context, sequences)
    assert envelope.published is not None
    assert envelope.published.aggregate_tok_s == aggregate
    assert envelope.published.per_sequence_tok_s == each
    assert envelope.published_rig == PublishedRig(8, "RTX 3090", 350.0)
    assert envelope.serve.served_model_name == f"ablit-w4a16-{name}-cudagraph"


def test_the_others_publish_nothing():
    others = {e.name: e.status for e in load_all() if e.name not in PUBLISHED}
    assert others["sm86-64k"] == "development"
    assert others["sm86-393k"] == others["sm86-524k"] == "experimental"
    assert others["cpu-smoke"] == "embedded"
    assert all(load_envelope(name).published is None for name in others)


@pytest.mark.parametrize("envelope", [e for e in load_all() if e.status != "embedded"], ids=lambda e: e.name)
def test_argv_of_a_rig_envelope(envelope):
    argv = serve_argv(envelope)
    assert argv[:2] == ("serve", "/models/DeepSeek-V4-Flash-W4A16-AutoRound")
    value = dict(itertools.pairwise(argv))
    assert value["--kv-cache-dtype"] == "fp8_ds_mla"
    assert value["--block-size"] == "256"
    assert value["--tensor-parallel-size"] == "8"
    assert value["--max-num-batched-tokens"] == "512"
    assert value["--attention-backend"] == "FLASHINFER_MLA_SPARSE_DSV4"
    assert value["--moe-backend"] == "marlin"
    assert value["--max-model-len"] == str(envelope.serve.context)
    assert "--no-async-scheduling" in argv
    assert not any("speculative" in item for item in argv)
    config = json.loads(value["--compilation-config"])
    sequences = envelope.serve.sequences
    assert config == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1] if sequences == 1 else [1, sequences],
        "max_cudagraph_capture_size": sequences,
    }


def test_the_roadmaps_keep_list_is_in_the_environment():
    for envelope in load_all():
        if envelope.uses_gpu:
            environment = dict(envelope.environment)
            assert environment["VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"] == "0"
            assert environment["FUSE_ALLREDUCE_RMS"] == "1"


def test_proofs_are_apart_from_what_a_rig_serves():
    proofs = {envelope.name: envelope for envelope in load_proofs()}
    assert list(proofs) == ["sm86-proof", "sm86-proof-tp2"]
    assert not set(proofs) & {envelope.name for envelope in load_all()}
    for name, envelope in proofs.items():
        assert load_envelope(name) == envelope and envelope.status == "proof" and envelope.published is None
        # no Git checkout lies on the machines that they run on
        assert set(envelope.rules) <= set(load_envelope("sm86-262k").rules) - {"git-revision"}
    assert [proofs[name].serve.tensor_parallel for name in proofs] == [1, 2]


def test_a_proof_among_the_envelopes_is_refused(tmp_path, monkeypatch):
    from sm86.errors import CouldNotRun
    from sm86.spec import load

    (tmp_path / "sm86-proof.toml").write_text((load.PROOFS_DIR / "sm86-proof.toml").read_text())
    monkeypatch.setattr(load, "ENVELOPES_DIR", tmp_path)
    load.load_all.cache_clear()
    try:
        with pytest.raises(CouldNotRun, match="status is 'proof'"):
            load.load_all()
    finally:
        monkeypatch.undo()
        load.load_all.cache_clear()


def test_a_proof_has_no_service_and_says_what_to_do():
    from sm86.cli.engines import open_engine
    from sm86.errors import CouldNotRun

    with pytest.raises(CouldNotRun, match="no Compose service") as refused:
        open_engine(load_envelope("sm86-proof"))
    assert "--engine local" in refused.value.mend


def test_pins():
    pins = load_pins()
    wanted = {
        "cuda-compiler": "13.0.1",
        "python": "3.12.12",
        "torch": "2.11.0+cu130",
        "nccl": "2.28.9",
        "flashinfer": "0.6.14",
        "flashinfer-cubin": "0.6.13",
        "vllm": "0.26.0",
        "driver": "580.126.09",
        "cuda-arch-list": "8.6",
    }
    assert {name: pins.version(name) for name in wanted} == wanted
    assert all(pin.source for pin in pins.by_name.values())


def test_digest_changes_with_the_server_and_not_with_its_words():
    envelope = load_envelope("sm86-262k")
    assert envelope.digest() == load_envelope("sm86-262k").digest()
    assert envelope.with_serve(context=262_400).digest() != envelope.digest()
