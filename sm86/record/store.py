"""Records on disk: <results>/<envelope>/<UTC>-<kind>.json, written whole or not at all."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular, write_atomic
from sm86.json_text import parse as parse_json
from sm86.record.schema import Record, from_json

RESULTS_DIR = Path("results")
"""Stands for the default place, whatever the working folder is: `results_dir` says where that is."""

RESULTS_VARIABLE = "SM86_RESULTS"

CLONE = Path(__file__).resolve().parents[2]


def results_dir(results: Path = RESULTS_DIR) -> Path:
    """Where records lie: the folder that was named; by default SM86_RESULTS, else results/ at the top of the clone,
    else (the product is installed without a clone) in the working folder. Relative where it is the working folder's
    own, as a person there would write it."""
    if results != RESULTS_DIR:
        return results
    named = os.environ.get(RESULTS_VARIABLE)
    if named:
        return Path(named).expanduser()
    if not (CLONE / "compose.yaml").is_file() or Path.cwd() == CLONE:
        return RESULTS_DIR
    return CLONE / RESULTS_DIR


def record_path(record: Record, results: Path = RESULTS_DIR) -> Path:
    """Where the record belongs: the time is UTC to the second, then the kind."""
    return results_dir(results) / record.envelope / f"{record.started:%Y%m%dT%H%M%SZ}-{record.kind}.json"


def save(record: Record, results: Path = RESULTS_DIR) -> Path:
    """Write the record and return its path; a second one of the same second and kind gets a number, also when another
    process writes it at the same moment."""
    first = path = record_path(record, results)
    whole = first.with_name(f".{first.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write_atomic(whole, json.dumps(record.to_json(), indent=2, ensure_ascii=False) + "\n")
    except CouldNotRun as error:
        raise CouldNotRun(error.what.replace(str(whole), str(first)), error.mend) from None
    try:
        for serial in itertools.count(2):
            try:
                # a link, unlike a rename, does not replace what another process has just written
                os.link(whole, path)
                return path
            except FileExistsError:
                path = first.with_suffix(f".{serial}.json")
            except OSError:
                # a file system without links
                if not path.exists():
                    write_atomic(path, whole.read_bytes())
                    return path
                path = first.with_suffix(f".{serial}.json")
    finally:
        whole.unlink(missing_ok=True)
    raise AssertionError("unreachable")


def load(path: Path) -> Record:
    """The record in a file; CouldNotRun when it is missing, not JSON or not a record of this version."""
    try:
        values = parse_json(read_regular(path))
    except OSError as error:
        raise CouldNotRun(f"cannot read {path}: {error.strerror}", "give a file from results/") from None
    except ValueError:
        raise CouldNotRun(f"{path} is not JSON", "give a file from results/") from None
    return from_json(values, str(path))


def latest(envelope: str, kind: str, results: Path = RESULTS_DIR) -> Record | None:
    """The newest record of that kind for the envelope; None where there is none."""
    paths = sorted((results_dir(results) / envelope).glob(f"*-{kind}*.json"))
    return load(paths[-1]) if paths else None
