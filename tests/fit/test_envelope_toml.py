"""A fitted envelope is one like the published ones: it loads, renders, passes the launcher's dry run, and verifies."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sm86.fit.envelope_toml import name_of, to_toml
from sm86.fit.memory_plan import plan_envelope, server_of
from sm86.fit.rig import PlanRig
from sm86.fit.search import Candidate, Wish, search
from sm86.manifest import format_manifest, manifest_of
from sm86.render import render_all
from sm86.spec import Envelope, load_all, load_envelope, load_pins
from sm86.spec.argv import serve_argv
from sm86.spec.validate import NAME
from sm86.verify.verify import verify_log
from tests.fit.fit_rigs import RIG, RIGS
from tests.verify.verify_logs import PLACEHOLDER, REVISION, claims, path_of

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(set(RIGS) - {"4x3090"})


def written(rig: PlanRig, candidate: Candidate, folder: Path) -> Path:
    name = name_of(rig, candidate.server)
    path = folder / f"{name}.toml"
    path.write_text(to_toml(candidate, rig, name), encoding="utf-8")
    return path


@pytest.fixture(params=NAMES)
def fitted(request, tmp_path) -> tuple[PlanRig, Candidate, Envelope, Path]:
    rig = RIGS[request.param]
    best = search(rig).best
    path = written(rig, best, tmp_path)
    return rig, best, load_envelope(str(path)), path


def test_it_loads_and_is_what_was_planned(fitted):
    rig, best, spec, path = fitted
    assert server_of(spec) == best.server
    assert plan_envelope(spec, rig).left == best.plan.left
    assert spec.serve.gpu_memory_utilization == best.utilization
    assert spec.name == path.stem and NAME.fullmatch(spec.name)
    assert spec.status == "experimental" and spec.published is None and "not run" in spec.caveat
    # all rules of the published ones judge its logs
    assert spec.rules == load_envelope("sm86-262k").rules


def test_it_renders_beside_the_shipped_ones(fitted):
    _, best, spec, _ = fitted
    files = render_all((*load_all(), spec), load_pins())
    service = yaml.safe_load(files[f"compose/{spec.name}.yaml"])["services"][spec.name]
    command = service["command"]
    argv = tuple(command[command.index("--") + 1 :])
    # only the model's folder is a person's to change
    assert argv[0] == "serve" and argv[2:] == serve_argv(spec)[2:]
    assert str(best.server.blocks) in command and spec.digest() in command
    assert f"compose/{spec.name}.yaml" in files["compose.yaml"]


def test_the_launchers_dry_run_takes_it(fitted, tmp_path):
    _, best, spec, path = fitted
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sm86.launch", "--envelope", str(path), "--dry-run"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(done.stdout.splitlines())
    assert manifest is not None
    assert manifest["check.kv_blocks"] == "pass" and manifest["num_gpu_blocks_override"] == str(best.server.blocks)
    assert manifest["envelope_digest"] == spec.digest() and manifest["tensor_parallel"] == str(best.server.ranks)


def test_a_good_boot_of_it_verifies(tmp_path):
    """The composed good log, with the names of a fitted envelope of the same shape."""
    published = load_envelope("sm86-80k-4seq")
    best = search(RIG, Wish(context=81_920, sequences=4)).best
    spec = load_envelope(str(written(RIG, best, tmp_path)))
    assert server_of(spec) == server_of(published)
    log = path_of("composed_sm86-80k-4seq").read_text(encoding="utf-8")
    log = log.replace(PLACEHOLDER, "\n".join(format_manifest(claims(spec))))
    log = log.replace(published.serve.served_model_name, spec.serve.served_model_name)
    good = verify_log(spec, [log.encode()], REVISION)
    assert good.passed, [found for found in good.findings if found.state != "pass"]
    other = replace(spec, serve=replace(spec.serve, num_gpu_blocks_override=best.server.blocks + 32))
    assert not verify_log(other, [log.encode()], REVISION).passed


def test_names():
    server = search(RIG).best.server
    assert name_of(RIG, replace(server, context=262_144, sequences=1)) == "8x3090-256k"
    assert name_of(RIG, replace(server, context=81_920, sequences=4)) == "8x3090-80k-4seq"
    assert name_of(RIG, replace(server, context=100_000, sequences=1)) == "8x3090-100000t"


def test_what_is_its_own_is_written_out(tmp_path):
    best = search(RIG, Wish(context=81_920, sequences=4, async_scheduling=True, batched_tokens=256)).best
    bound = replace(best, plan=replace(best.plan, server=replace(best.server, max_logits_mib=64, capture_sizes=())))
    spec = load_envelope(str(written(RIG, bound, tmp_path)))
    assert server_of(spec) == bound.server and spec.graphs.mode == "NONE"
    assert dict(spec.environment)["VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"] == "64"
