"""`invoke model.fetch`, `model.check` and `model.lock`: a checkpoint that is the published one, whole and proven."""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sm86.cli.guard import require_values, whole_number
from sm86.cli.model_view import Bar, say, show, show_to_lock, show_todo
from sm86.errors import EXIT_OK, CheckFailed, CouldNotRun
from sm86.files import write_atomic
from sm86.spec import Model, load_all, load_checkpoint, load_envelope
from sm86.weights.findings import exit_code
from sm86.weights.inspection import Inspection, bytes_to_hash, file_sizes, inspect, make_lock, provenance
from sm86.weights.judge import Wanted
from sm86.weights.lock import Lock, Locked
from sm86.weights.lock import read as read_lock
from sm86.weights.places import HUB_CACHE, Place, locate

VERSION = 1
MAX_CONNECTIONS = 16


def check(
    folder: str, envelope: str | None = None, lock: str | None = None, hash: bool = False, json: bool = False
) -> int:
    """Judge a checkpoint from its headers, without loading it. Exit code 0: it is the one the envelope means; 1: not.

    folder: also a hub cache's folder; lock: the lock file (default: the one beside the folder, where there is one);
    hash: read every byte and compare its SHA-256 with the lock's.
    """
    require_values(folder=folder, envelope=envelope, lock=lock)
    place = locate(Path(folder))
    known = _lock_of(place, lock)
    model = _model(envelope)
    with Bar("hashing", bytes_to_hash(place) if hash else 0) as bar:
        seen = inspect(place, _wanted(model), known, hash, bar.advance)
    code = exit_code(seen.findings)
    if json:
        _print({"schema": "sm86.model-check", "version": VERSION, **_as_json(seen)})
        return code
    show(seen, model.repository, provenance(seen))
    return code


def lock(
    folder: str,
    lock: str | None = None,
    repository: str | None = None,
    revision: str | None = None,
    update: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Write the lock file of a checkpoint: every byte is hashed. Exit code 1 where another lock is there already.

    lock: the file to write (default: beside the folder); repository, revision: where it came from, if the folder does
    not tell; update: replace a lock that differs.
    """
    from sm86.host.hub import require_names

    require_values(folder=folder, lock=lock, repository=repository, revision=revision)
    # they are what another rig fetches by, so they must be names
    require_names(repository or "any/any", revision or "any")
    place = locate(Path(folder))
    path = Path(lock) if lock else place.lock_path
    sizes = file_sizes(place.folder)
    size = sum(sizes.values())
    if dry_run:
        if json:
            values = {"schema": "sm86.model-locked", "version": VERSION, "dry_run": True, "lock": str(path)}
            _print({**values, "bytes": size, "files": len(sizes), "sizes": sizes})
        else:
            show_to_lock(sizes, place.folder, path)
        return EXIT_OK
    before = read_lock(path) if path.exists() else None
    with Bar("hashing", size) as bar:
        made = make_lock(
            place,
            repository or (before.repository if before else None),
            revision or (before.revision if before else None),
            bar.advance,
        )
    _write_lock(path, made, before, update)
    if json:
        values = {"schema": "sm86.model-locked", "version": VERSION, "lock": str(path), "unchanged": made == before}
        _print({**values, "model_hash": made.model_hash, "files": len(made.files)})
    else:
        state = "holds as it is" if made == before else "written"
        print(f"{path} {state}: {len(made.files)} files, {size / 2**30:,.2f} GiB, model hash {made.model_hash}")
    return EXIT_OK


def fetch(
    to: str | None = None,
    envelope: str | None = None,
    repository: str | None = None,
    revision: str | None = None,
    token_file: str | None = None,
    connections: str | int | None = None,
    update: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Fetch a checkpoint from the model hub and lock it; goes on where an earlier fetch stopped.

    to: the folder (default: the envelope's below the models folder); revision: a commit, branch or tag (default: the
    lock's, the family's, or main); update: replace a lock of another revision. Exit code 1: the hub's contents are
    not what it lists, or not what was locked.
    """
    from sm86.host import hub
    from sm86.host.hub_fetch import CONNECTIONS, Fetch, require_room
    from sm86.host.hub_token import find_token

    require_values(to=to, envelope=envelope, repository=repository, revision=revision, token_file=token_file)
    model = _model(envelope)
    target = Path(to) if to else _models_folder(model)
    if target.exists():
        place = locate(target)
        if place.layout == HUB_CACHE:
            raise CouldNotRun(
                f"{target} is a hub cache, which its own tool fills",
                "give another folder (--to); model.check reads both",
            )
    lock_path = Place(target, "folder").lock_path
    before = read_lock(lock_path) if lock_path.exists() else None
    checkpoint = load_checkpoint(model)
    wanted = repository or (before.repository if before else None) or model.repository
    at = revision or (before.revision if before else None) or (checkpoint.revision if checkpoint else "") or "main"
    hub.require_names(wanted, at)
    many = whole_number(connections, "connections", 1, MAX_CONNECTIONS) or CONNECTIONS
    token = find_token(os.environ, Path(token_file) if token_file else None, Path.home())
    the_hub = hub.Hub(hub.endpoint_of(os.environ), token)
    listing = the_hub.listing(wanted, at, time.sleep, say)
    _require_same_pin(before, lock_path, wanted, listing, update)

    if dry_run:
        todo = Fetch(the_hub, listing, target, Bar("", 0), time.sleep).look(check=False)
        if json:
            _print(
                {
                    "schema": "sm86.model-fetched",
                    "version": VERSION,
                    "dry_run": True,
                    **_todo_json(listing, todo, target),
                }
            )
        else:
            show_todo(listing, todo, target)
        require_room(todo, target)
        return EXIT_OK
    with Bar("fetching", 0) as bar:
        one = Fetch(the_hub, listing, target, bar, time.sleep, many)
        first = one.look(check=False)
        require_room(first, target)
        bar.total(first.total_bytes, first.total_bytes - first.missing_bytes)
        bar.say(f"{len(first.files)} files to fetch, {first.missing_bytes / 1e9:.3f} GB, into {target}")
        files = one.run()
    one.tidy()
    made = _lock_fetched(target, wanted, listing.commit, files)
    _write_lock(lock_path, made, before, update)
    if json:
        values = {"schema": "sm86.model-fetched", "version": VERSION, "folder": str(target), "lock": str(lock_path)}
        _print({**values, "repository": wanted, "revision": listing.commit, "model_hash": made.model_hash})
    else:
        total = sum(size for size, _ in files.values()) / 2**30
        print(f"{target} holds {wanted} at {listing.commit}: {len(files)} files, {total:,.2f} GiB, every hash right")
        print(f"locked in {lock_path}; invoke model.check {target} judges it")
    return EXIT_OK


def _model(envelope: str | None) -> Model:
    if envelope:
        return load_envelope(envelope).model
    return next(one.model for one in load_all() if one.uses_gpu)


def _wanted(model: Model) -> Wanted:
    facts = load_checkpoint(model)
    quantized = bool(model.quant_method)
    if facts is None:
        return Wanted(model.repository, model.architecture, quantized)
    return Wanted(
        model.repository,
        model.architecture,
        quantized,
        facts.packing_format,
        facts.autoround_version,
        facts.config,
    )


def _models_folder(model: Model) -> Path:
    """Where the envelopes look for it: below the clone's models/, or where the shell or `.env` says."""
    from sm86.cli import engines
    from sm86.host.settings import effective, read_dotenv
    from sm86.render.variables import MODEL, MODELS_DIR, MODELS_DIR_DEFAULT

    dotenv = read_dotenv(engines.ROOT / ".env")
    models = Path(effective(MODELS_DIR, os.environ, dotenv, MODELS_DIR_DEFAULT)).expanduser()
    return engines.ROOT / models / effective(MODEL, os.environ, dotenv, model.folder)


def _lock_of(place: Place, given: str | None) -> Lock | None:
    if given:
        return read_lock(Path(given))
    return read_lock(place.lock_path) if place.lock_path.exists() else None


def _write_lock(path: Path, made: Lock, before: Lock | None, update: bool) -> None:
    if made == before:
        return
    if before is not None and not update:
        raise CheckFailed(
            f"{path} is a lock of other contents ({_told(before)}) than these ({_told(made)})",
            "invoke model.check shows what differs; --update replaces the lock",
        )
    write_atomic(path, made.text())


def _told(lock: Lock) -> str:
    return f"{lock.repository or 'repository not known'}, {_pin(lock)}, {len(lock.files)} files"


def _pin(lock: Lock) -> str:
    return f"revision {lock.revision[:12]}" if lock.revision else f"model hash {lock.model_hash[:12]}"


def _require_same_pin(before: Lock | None, path: Path, repository: str, listing: Any, update: bool) -> None:
    """The hub still lists what was locked; else nothing is fetched over it."""
    if before is None or update:
        return
    if (before.repository or repository, before.revision or listing.commit) != (repository, listing.commit):
        raise CheckFailed(
            f"{path} locks {before.repository} {_pin(before)}; asked for is {repository} {listing.commit[:12]}",
            "leave --revision out to fetch what is locked; --update fetches the other one and locks it",
        )
    for file in listing.files:
        locked = before.files.get(file.name)
        if locked and (file.size != locked.size or (file.sha256 or locked.sha256) != locked.sha256):
            raise CheckFailed(
                f"the hub lists other contents for {file.name} than {path} has locked",
                "another mirror may be right (HF_ENDPOINT); nothing was fetched",
            )


def _lock_fetched(target: Path, repository: str, revision: str, files: dict[str, tuple[int, str]]) -> Lock:
    from sm86.weights.folder import look
    from sm86.weights.lock import is_part

    found = look(target)
    if found.sha256 is None:
        problems = [found.config_problem, found.index_problem, *(shard.problem for shard in found.shards)]
        why = next((text for text in problems if text), "it holds no weights")
        raise CheckFailed(
            f"{repository} at {revision[:12]} came as the hub lists it, and is no checkpoint: {why}",
            f"use another revision; invoke model.check {target} shows more",
        )
    locked = {name: Locked(size, sha256) for name, (size, sha256) in files.items() if is_part(name)}
    return Lock(repository, revision, found.sha256, locked)


def _as_json(seen: Inspection) -> dict[str, Any]:
    return {
        "folder": str(seen.place.folder),
        "layout": seen.place.layout,
        "repository": seen.repository,
        "revision": seen.revision,
        "model_hash": seen.found.sha256,
        "provenance": provenance(seen),
        "tensors": seen.tensors,
        "weight_bytes": seen.weight_bytes,
        "hashed": seen.hashed,
        "findings": [asdict(finding) for finding in seen.findings],
    }


def _todo_json(listing: Any, todo: Any, target: Path) -> dict[str, Any]:
    return {
        "folder": str(target),
        "repository": listing.repository,
        "revision": listing.commit,
        "files": {file.name: file.size for file in todo.files},
        "present": [file.name for file in todo.present],
        "missing_bytes": todo.missing_bytes,
        "free_bytes": todo.free,
    }


def _print(values: dict[str, Any]) -> None:
    json_module.dump(values, sys.stdout, indent=2)
    print()
