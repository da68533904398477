"""The build's effects with stand-ins: docker clients as small programs, the engine as an object, a real git."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sm86.cli import build as cli
from sm86.errors import CouldNotRun
from sm86.host import base as base_image
from sm86.host import build as host
from sm86.host import builder
from sm86.host.containers import EngineFacts, ImageFacts
from sm86.image.arguments import Build
from sm86.image.failures import BuildFailed
from sm86.image.lock_check import base_lock
from sm86.image.lock_sums import SUMS_FILE, sums_text
from sm86.image.names import OFFICIAL_BASE, OFFLINE_BASE

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "builds"
IMAGE = "sm86-vllm-cpu:0.28.0"


@dataclass
class Engine:
    """An engine that has the images named; `built` appears when the stand-in client has run."""

    facts: EngineFacts
    images: set[str] = field(default_factory=set)
    marker: Path | None = None

    def image(self, name: str) -> ImageFacts | None:
        if name in self.images or (name == IMAGE and self.marker and self.marker.exists()):
            return ImageFacts("sha256:abc", (name,), {}, 2_000_000_000, "")
        return None

    def image_inside(self, name: str, argv: tuple[str, ...], within_s: float) -> tuple[int, str, str]:
        return 0, json.dumps({"paper": argv[-1]}), ""

    def image_history(self, name: str) -> tuple[tuple[str, int], ...]:
        return (("COPY x", 1_500_000_000), ("RUN y", 500_000_000))

    def local_only(self) -> None: ...


def program(path: Path, version: str, buildx: bool, build: str = "exit 0") -> Path:
    """A docker client: answers --version and buildx version, and runs `build` (shell) for a build."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "#!/bin/sh\n"
        f'case "$1 $2" in\n"--version ") echo "{version}"; exit 0;;\n'
        f'"buildx version") exit {0 if buildx else 1};;\nesac\n'
        f'if [ "$1" = build ] || [ "$2" = build ]; then printf "%s\\n" "$@" > {path.parent}/argv; {build}; fi\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a build looks at, as a git repository of one commit; no settings of this machine."""
    root = tmp_path / "clone"
    (root / "docker" / "wheels").mkdir(parents=True)
    shutil.copytree(ROOT / "docker" / "locks", root / "docker" / "locks")
    (root / "docker" / "Dockerfile").write_text("FROM scratch\n")
    (root / "sm86").mkdir()
    (root / "sm86" / "a.py").write_text("a = 1\n")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1")):
        subprocess.run(["git", *words], cwd=root, check=True)
    for name in (
        *host.CA_BUNDLES,
        host.BASE_VARIABLE,
        host.NETWORK_VARIABLE,
        "SM86_WHEELS",
        "SM86_DOCKER",
        host.TORCH_INDEX_VARIABLE,
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "SYSTEM_BUNDLES", ())
    monkeypatch.setattr(host.local_wheels, "pip_settings", lambda: {"proxy": "http://user:secret@proxy:1"})
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(
        EngineFacts("unix:///x", "20.10", (1, 41), "linux", "x86_64", root_dir=str(tmp_path)),
        {OFFICIAL_BASE},
        tmp_path / "built",
    )


def said(lines: list[str]) -> Any:
    return lines.append


def run_build(clone: Path, engine: Engine, client: Path, monkeypatch: pytest.MonkeyPatch, **wishes: Any) -> host.Built:
    monkeypatch.setenv("SM86_DOCKER", str(client))
    lines: list[str] = []
    the = host.plan(host.Request("cpu", **wishes), clone, engine, said(lines))
    return host.build(the, clone, engine, said(lines))


def test_a_build_runs_the_client_in_the_clone_and_finds_the_image(clone, engine, tmp_path, monkeypatch):
    client = program(tmp_path / "bin" / "docker", "Docker version 20.10.24, build 1", False, f"touch {tmp_path}/built")
    built = run_build(clone, engine, client, monkeypatch)
    assert (built.image, built.image_id, built.base) == (IMAGE, "sha256:abc", OFFICIAL_BASE)
    argv = (tmp_path / "bin" / "argv").read_text().splitlines()
    rev = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True).stdout.strip()
    assert argv[0] == "build" and f"GIT_REV={rev}" in argv and "GIT_DIRTY=false" in argv
    secret = next(item for item in argv if item.startswith("id=pip,src="))
    assert not Path(secret.partition("src=")[2]).exists(), "pip's settings are gone after the build"
    assert "secret@" not in "\n".join(argv)
    record, sbom = (json.loads(path.read_text()) for path in built.papers)
    assert record["paper"] == "/opt/sm86/build.json" and record["layers"] == [1_500_000_000, 500_000_000]
    assert (record["image"], record["image_id"], record["size_bytes"]) == (IMAGE, "sha256:abc", 2_000_000_000)
    assert sbom == {"paper": "/opt/sm86/sbom.cdx.json"} and built.papers[0].name.startswith("sm86-vllm-cpu-0.28.0.")


def test_a_changed_file_is_said_and_one_outside_the_image_is_not(clone, engine, tmp_path, monkeypatch):
    assert host.git_state(clone)[1] is False
    (clone / "notes.txt").write_text("x")
    assert host.git_state(clone)[1] is False
    (clone / "sm86" / "new.py").write_text("")
    assert host.git_state(clone)[1] is True
    monkeypatch.setenv("SM86_DOCKER", str(program(tmp_path / "b" / "docker", "Docker version 28.0.0", True)))
    assert "files differ from revision" in host.plan(host.Request("cpu"), clone, engine, said([])).notes[-1]
    monkeypatch.setenv("PATH", str(tmp_path))
    rev, dirty = host.git_state(clone)
    assert (rev, dirty) == ("", None), "without git the build itself reads the revision and compares the files"


@pytest.mark.parametrize(
    ("recorded", "kind"), [("hash", "hash"), ("torch", "torch"), ("step", "step"), ("base", "base")]
)
def test_a_failure_is_typed_and_shows_the_last_words(clone, engine, tmp_path, monkeypatch, recorded, kind):
    log = RECORDED / f"{recorded}.log"
    client = program(tmp_path / "bin" / "docker", "Docker version 20.10.24, build 1", False, f"cat {log}; exit 1")
    with pytest.raises(BuildFailed) as caught:
        run_build(clone, engine, client, monkeypatch)
    assert caught.value.kind == kind and caught.value.exit_code == 2
    assert any("build-cpu.log" in line for line in caught.value.evidence)
    assert (clone / ".cache" / "build-cpu.log").read_text() == log.read_text()


def test_a_build_that_leaves_no_image_is_no_success(clone, engine, tmp_path, monkeypatch):
    client = program(tmp_path / "bin" / "docker", "Docker version 28.0.0, build 1", True)
    with pytest.raises(BuildFailed, match="has no image"):
        run_build(clone, engine, client, monkeypatch)


def test_a_disk_that_is_too_small_is_said_before_anything_starts(clone, engine, tmp_path, monkeypatch):
    client = program(tmp_path / "bin" / "docker", "Docker version 28.0.0, build 1", True, f"touch {tmp_path}/built")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: usage._replace(free=3_000_000_000))
    with pytest.raises(CouldNotRun, match=r"8 GB are needed at .*, 3\.0 GB are free"):
        run_build(clone, engine, client, monkeypatch)
    assert not (tmp_path / "bin" / "argv").exists()
    engine.images.add(IMAGE)
    run_build(clone, engine, client, monkeypatch)


def test_the_base_is_the_registrys_or_made_from_debian_packages(clone, engine, monkeypatch, tmp_path):
    monkeypatch.setenv("SM86_DOCKER", str(program(tmp_path / "b" / "docker", "Docker version 28.0.0", True)))

    def plan(**wishes: Any) -> host.Plan:
        return host.plan(host.Request("cpu", **wishes), clone, engine, said([]))

    assert plan().build.base == OFFICIAL_BASE and not plan().make_base
    assert plan(offline_base=True).build.base == OFFLINE_BASE and plan(offline_base=True).make_base
    engine.images = set()
    monkeypatch.setattr(base_image, "registry_answers", lambda _: True)
    assert plan().build.base == OFFICIAL_BASE
    monkeypatch.setattr(base_image, "registry_answers", lambda _: False)
    silent = plan()
    assert (silent.build.base, silent.make_base) == (OFFLINE_BASE, True) and "no registry answers" in silent.notes[0]
    engine.images = {OFFLINE_BASE}
    assert not plan().make_base, "a base that is there is used again"
    monkeypatch.setenv(host.BASE_VARIABLE, "mirror.example/python:3.12")
    assert plan().build.base == "mirror.example/python:3.12"


@pytest.mark.parametrize(("value", "network"), [(None, "host"), ("default", ""), ("none", "none")])
def test_the_network_of_a_build_is_the_machines_unless_said_otherwise(
    clone, engine, monkeypatch, tmp_path, value, network
):
    monkeypatch.setenv("SM86_DOCKER", str(program(tmp_path / "b" / "docker", "Docker version 28.0.0", True)))
    if value:
        monkeypatch.setenv(host.NETWORK_VARIABLE, value)
    assert host.plan(host.Request("cpu"), clone, engine, said([])).build.network == network


def test_the_first_ca_bundle_that_exists_is_used(tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    monkeypatch.setattr(host, "SYSTEM_BUNDLES", (str(bundle),))
    assert host.ca_bundle({}) == str(bundle)
    assert host.ca_bundle({"SSL_CERT_FILE": "/no/such"}) == str(bundle)
    own = tmp_path / "own.pem"
    own.write_text("x")
    assert host.ca_bundle({"SM86_CA_BUNDLE": str(own), "PIP_CERT": str(bundle)}) == str(own)
    monkeypatch.setattr(host, "SYSTEM_BUNDLES", ())
    assert host.ca_bundle({}) == ""


def test_a_lock_that_does_not_match_is_said_before_anything_starts(clone, engine, monkeypatch, tmp_path):
    client = program(tmp_path / "bin" / "docker", "Docker version 28.0.0, build 1", True, f"touch {tmp_path}/built")
    model = clone / "docker" / "locks" / "model.txt"
    model.write_text(model.read_text().replace("==", "==9."))
    with pytest.raises(CouldNotRun, match="the locks cannot be used: docker/locks/model") as caught:
        run_build(clone, engine, client, monkeypatch)
    assert caught.value.mend.startswith("invoke lock") and not (tmp_path / "bin" / "argv").exists()
    assert not host.plan(host.Request("gpu", variant="wheel"), clone, engine, said([])).build.no_cache


def test_the_base_is_pinned_by_digest_where_the_lock_has_one(clone, engine, monkeypatch, tmp_path):
    monkeypatch.setenv("SM86_DOCKER", str(program(tmp_path / "b" / "docker", "Docker version 28.0.0", True)))
    assert "not pinned by digest" in host.plan(host.Request("cpu"), clone, engine, said([])).notes[0]
    pinned = f"{OFFICIAL_BASE}@sha256:{'5' * 64}"
    locks, base = clone / "docker" / "locks", base_lock(pinned.partition("@")[2])
    (locks / "base.txt").write_text(base)
    with pytest.raises(CouldNotRun, match=r"base\.txt is not what `invoke lock` wrote"):
        host.plan(host.Request("cpu"), clone, engine, said([]))
    (locks / SUMS_FILE).write_text(sums_text((locks / SUMS_FILE).read_text(), {"base.txt": base.encode()}))
    asked: list[str] = []
    monkeypatch.setattr(base_image, "registry_answers", lambda name: bool(asked.append(name)) or True)
    the = host.plan(host.Request("cpu"), clone, engine, said([]))
    assert (the.build.base, asked) == (pinned, [pinned]) and not any("pinned" in note for note in the.notes)


def test_a_registry_that_accepts_and_says_nothing_is_not_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(base_image, "ANSWER_S", 0.3)
        assert base_image.registry_digest(OFFICIAL_BASE) is None
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert base_image.registry_digest(OFFICIAL_BASE) is None


@pytest.mark.parametrize(("variant", "needed"), host.NEEDED_BYTES.items())
def test_each_variant_says_what_it_needs(clone, engine, tmp_path, monkeypatch, variant, needed):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with pytest.raises(CouldNotRun, match=f"^{needed / 1e9:.0f} GB are needed"):
        host.require_space(engine, variant, first=True)
    host.require_space(engine, variant, first=False)


def test_what_is_there_of_another_build_saves_no_space(engine, monkeypatch):
    """Both variants have one name, and without the cache every step is made again."""
    rig = Build(target="gpu", image="sm86-vllm:0.26.0", base="b", variant="native")
    assert host._is_first(engine, rig)
    for label, again in (("native", False), ("wheel", True)):
        there = ImageFacts("sha256:abc", (), {"sm86.variant": label}, 1, "")
        monkeypatch.setattr(engine, "image", lambda _, there=there: there)
        assert host._is_first(engine, rig) is again
    monkeypatch.setattr(engine, "image", lambda _: ImageFacts("sha256:abc", (), {}, 1, ""))
    cpu = Build(target="cpu", image=IMAGE, base="b")
    assert not host._is_first(engine, cpu) and host._is_first(engine, replace(cpu, no_cache=True))
    assert f'{host.VARIANT_LABEL}="${{VARIANT}}"' in (ROOT / "docker/Dockerfile").read_text()


@pytest.mark.parametrize(
    ("wishes", "what"),
    [
        ({"target": "cpu", "cubin": True}, "--cubin is for the gpu image"),
        ({"target": "cpu", "variant": "wheel"}, "--variant is for the gpu image"),
        ({"target": "gpu", "wheels": "/tmp"}, "--wheels is for the cpu image"),
        ({"target": "cpu", "image": "Bad Name"}, "'Bad Name' is no name for an image"),
    ],
)
def test_a_wish_that_would_be_passed_over_is_refused(clone, engine, wishes, what):
    with pytest.raises(CouldNotRun, match=what):
        host.plan(host.Request(**wishes), clone, engine, said([]))


def test_wrong_wishes_are_one_line(clone, engine, monkeypatch, tmp_path):
    with pytest.raises(CouldNotRun, match="no target 'tpu'") as caught:
        host.plan(host.Request("tpu"), clone, engine, said([]))
    assert "gpu, cpu" in caught.value.mend
    with pytest.raises(CouldNotRun, match="no variant 'fast'") as caught:
        host.plan(host.Request("gpu", variant="fast"), clone, engine, said([]))
    assert "native, wheel" in caught.value.mend
    with pytest.raises(CouldNotRun, match="no docker/Dockerfile"):
        host.plan(host.Request("cpu"), tmp_path, engine, said([]))
    monkeypatch.setenv("SM86_DOCKER", str(program(tmp_path / "b" / "docker", "Docker version 28.0.0", True)))
    with pytest.raises(CouldNotRun, match="no folder of wheels /no/such"):
        host.plan(host.Request("cpu", wheels="/no/such"), clone, engine, said([]))


def test_every_client_on_the_way_is_tried(tmp_path, monkeypatch):
    bare = program(tmp_path / "a" / "docker", "Docker version 28.2.2, build 1", False)
    podman = program(tmp_path / "b" / "docker", "podman version 5.0", True)
    old = program(tmp_path / "c" / "docker", "Docker version 20.10.24, build 1", False)
    monkeypatch.setattr(builder, "USUAL_PLACES", ())
    path = os.pathsep.join(str(item.parent) for item in (bare, podman, old))
    assert builder.find_client({"PATH": path}).program == str(old)
    monkeypatch.setattr(builder, "USUAL_PLACES", (str(old),))
    assert builder.find_client({"PATH": str(bare.parent)}).program == str(old)
    monkeypatch.setattr(builder, "USUAL_PLACES", ())
    with pytest.raises(CouldNotRun, match=r"no docker client can build with BuildKit: .*28\.2\.2, without buildx"):
        builder.find_client({"PATH": os.pathsep.join((str(bare.parent), str(podman.parent)))})
    with pytest.raises(CouldNotRun, match="there is no docker client"):
        builder.find_client({"PATH": ""})
    with pytest.raises(CouldNotRun, match="SM86_DOCKER names"):
        builder.find_client({"PATH": str(old.parent), "SM86_DOCKER": str(bare)})
    assert builder.find_client({"PATH": "", "SM86_DOCKER": str(old)}).version == (20, 10, 24)


def test_an_interrupted_build_interrupts_the_client_and_leaves_no_process(tmp_path):
    client = tmp_path / "docker"
    client.write_text(
        "#!/bin/sh\ntrap 'echo interrupted > " + str(tmp_path / "told") + "; exit 130' INT\n"
        "echo '#1 [a 1/1] RUN sleep'\nwhile :; do sleep 0.1; done\n"
    )
    client.chmod(0o755)
    code = (
        "from pathlib import Path; from sm86.host import builder\n"
        f"builder.stream([{str(client)!r}], {{}}, Path({str(tmp_path)!r}), Path({str(tmp_path / 'log')!r}), print)"
    )
    process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline().startswith(b"#1")
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert (tmp_path / "told").read_text() == "interrupted\n"
    time.sleep(0.2)
    left = subprocess.run(["pgrep", "-f", str(client)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_the_command_prints_its_plan_and_its_result(clone, engine, tmp_path, monkeypatch, capsys):
    client = program(tmp_path / "bin" / "docker", "Docker version 20.10.24, build 1", False, f"touch {tmp_path}/built")
    monkeypatch.setenv("SM86_DOCKER", str(client))
    monkeypatch.setattr(host, "engine", lambda: engine)
    assert cli.build("cpu", dry_run=True) == 0
    out = capsys.readouterr().out
    assert "DOCKER_BUILDKIT=1" in out and f"--tag {IMAGE}" in out and not (tmp_path / "built").exists()
    assert cli.build("cpu", json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["version"], printed["image"]) == ("sm86.built", 1, IMAGE)
    assert printed["git_dirty"] is False
    assert cli.build("cpu") == 0
    assert capsys.readouterr().out.startswith(f"built {IMAGE}: 2.00 GB")


def test_debootstrap_is_called_plainly_and_its_words_are_understood(tmp_path, monkeypatch):
    argv = base_image.bootstrap_argv(Path("/r"), None)
    assert argv == (
        "debootstrap",
        "--variant=minbase",
        "--include=python3,python3-venv,ca-certificates",
        "bookworm",
        "/r",
    )
    assert base_image.bootstrap_argv(Path("/r"), "http://m/debian")[-1] == "http://m/debian"
    assert base_image.import_argv("docker") == ("docker", "import", "--change", 'CMD ["python3"]', "-", OFFLINE_BASE)
    for words, expected in (
        ("E: Failed getting release file http://m/debian/dists/bookworm/Release", "mirror could not be reached"),
        ("E: Release signed by unknown key (key id 0E98)", "does not know the keys"),
        ("W: Cannot check Release signature; keyring file not available", "does not know the keys"),
        ("tar: write error: No space left on device", "disk of /var/tmp is full"),
        ("E: something else", "debootstrap failed"),
    ):
        assert expected in base_image.bootstrap_failure(words, ()).what
    monkeypatch.setattr(base_image.shutil, "which", lambda _: None)
    with pytest.raises(CouldNotRun) as caught:
        base_image.make_base("docker", print)
    assert caught.value.mend == "sudo apt-get install debootstrap"
    monkeypatch.setattr(base_image.shutil, "which", lambda _: "/usr/sbin/debootstrap")
    monkeypatch.setattr(base_image.os, "geteuid", lambda: 1000)
    with pytest.raises(CouldNotRun, match="root rights"):
        base_image.make_base("docker", print)
