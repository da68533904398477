"""The launcher's steps, in order: understand, check, lock, say, become vLLM. Everything before `_become` can refuse."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.launch import (
    arguments,
    cache,
    checks,
    engine,
    environment,
    gpus,
    health,
    kv_check,
    locks,
    manifest_entries,
    overrides,
    provenance,
    quiet,
    secret,
    spec_match,
    translate,
)
from sm86.launch.arguments import facts_of
from sm86.launch.manifest_entries import Start
from sm86.launch.options import Options
from sm86.launch.places import Places, places
from sm86.manifest import format_manifest
from sm86.spec.argv import CONTAINER_PORT, serve_argv
from sm86.spec.envelope import Envelope
from sm86.spec.load import envelope_names, load_envelope
from sm86.spec.validate import FAMILY_DSV4, NAME
from sm86.weights.folder import ModelFolder
from sm86.weights.folder import look as look_at_model

SETTLE_S = 30.0
"""How long to wait for GPU memory that a server which has just ended still gives back."""

PASS = "pass"
DRY = "not made: dry run"
ON_CPU = "not applicable: the CPU engine uses no GPU"


@dataclass(slots=True)
class Launch:
    """A start with what it needs besides the manifest's facts.

    rig, rig_refusal: the GPUs, or why they could not be asked. refused: a dry run's finding, told at its end.
    """

    options: Options
    packaged: Envelope | None
    places: Places
    start: Start
    given: Mapping[str, overrides.Given]
    rig: gpus.Rig | None = None
    rig_refusal: CouldNotRun | None = None
    folder: ModelFolder | None = None
    refused: CouldNotRun | None = None

    @property
    def facts(self) -> arguments.Facts:
        return facts_of(self.start.argv)

    @property
    def dry(self) -> bool:
        return self.options.dry_run

    @property
    def on_gpus(self) -> bool:
        return self.start.kind == "cuda"


def launch(options: Options, process_environment: Mapping[str, str]) -> int:
    """Become vLLM; returns only for a dry run. Raises CouldNotRun for everything that is refused."""
    run = _understand(options, process_environment)
    for step in _STEPS:
        step(run)
    for line in format_manifest(manifest_entries.entries(run.start)):
        print(line)
    sys.stdout.flush()
    if not run.dry:
        _become(run)
    if run.refused:
        raise run.refused
    return 0


def _understand(options: Options, process_environment: Mapping[str, str]) -> Launch:
    packaged = _packaged(options)
    installed = engine.find()
    kind = packaged.engine if packaged else installed.kind or "cuda"
    argv = options.argv if options.argv is not None else _own_argv(options, packaged)
    arguments.require_allowed(argv)
    table = engine.variables(installed.envs_origin)
    checked = environment.check(process_environment, table)
    values = dict(checked.environment)
    if packaged and options.argv is None:
        # without Compose nobody has set the envelope's own variables yet
        values = {**dict(packaged.environment), **values}
    given = overrides.collect(values, options.settings)
    rig, rig_refusal = (None, None) if kind == "cpu" or options.dry_run else _ask()
    where = places(values, kind)
    plugin = engine.loads_plugin(installed, values)
    setting = translate.Setting(kind, _capability(rig), plugin, str(where.traces))
    final_argv, final_values, states, changes = translate.apply(argv, values, given, setting)
    added = quiet.added(final_argv)
    start = Start(
        envelope=packaged.name if packaged else options.envelope,
        envelope_digest=options.envelope_digest or (packaged.digest() if packaged else None),
        packaged_digest=packaged.digest() if packaged else None,
        kind=kind,
        exec_prefix=engine.exec_prefix(),
        argv=(*final_argv, *added),
        environment=final_values,
        engine=installed,
        provenance=provenance.find(where.build, values),
        python=platform.python_version(),
        started=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        spec_differences=spec_match.differences(argv, packaged) if packaged else None,
        environment_differences=_environment_differences(packaged, values),
        removed=checked.removed,
        states=states,
        changes=changes,
        added=added,
        probe=tuple(name for name, item in given.items() if name == "SPECULATIVE_CONFIG" and item.value),
    )
    start.checks["environment"] = PASS if table is not None else "not made: vLLM's table of variables is not here"
    return Launch(options, packaged, where, start, given, rig, rig_refusal)


def _packaged(options: Options) -> Envelope | None:
    """The image's own spec of that name; None for a user's own envelope whose arguments were given."""
    name = options.envelope
    if options.argv is None or name.endswith(".toml") or name in envelope_names():
        return load_envelope(name)
    if not NAME.fullmatch(name):
        raise CouldNotRun(f"{name!r} is no name of an envelope", "use lower-case letters, digits and single hyphens")
    return None


def _own_argv(options: Options, packaged: Envelope | None) -> tuple[str, ...]:
    assert packaged is not None
    return serve_argv(
        packaged,
        options.model_path,
        options.host or "0.0.0.0",
        options.port or CONTAINER_PORT,
    )


def _environment_differences(packaged: Envelope | None, values: Mapping[str, str]) -> list[str] | None:
    """Variables of the envelope that this run has otherwise; its overrides are told one by one anyway."""
    if packaged is None:
        return None
    own = (pair for pair in packaged.environment if pair[0] not in overrides.BY_NAME)
    return [name for name, value in own if values.get(name) != value]


def _ask() -> tuple[gpus.Rig | None, CouldNotRun | None]:
    # what is wrong with the command or the model is told first: it can be mended without a GPU
    try:
        return gpus.ask(), None
    except CouldNotRun as refusal:
        return None, refusal


def _capability(rig: gpus.Rig | None) -> tuple[int, int] | None:
    return min((gpu.capability for gpu in rig.gpus), default=None) if rig else None


def _check_engine(run: Launch) -> None:
    installed, kind = run.start.engine, run.start.kind
    problem = None
    if installed.vllm_version is None or installed.envs_origin is None:
        problem = CouldNotRun("vLLM is not installed beside this launcher", "use the image, or install the engine")
    elif installed.kind != kind:
        words = {"cpu": "the CPU build", "cuda": "the CUDA build"}
        problem = CouldNotRun(
            f"{run.start.envelope} needs {words[kind]} of vLLM, but {words[installed.kind or 'cuda']} is installed",
            "use the image of that engine",
        )
    if problem and not run.dry:
        raise problem
    run.start.checks["engine"] = f"not made: {problem.what}" if problem else PASS


def _check_model(run: Launch) -> None:
    model = run.facts.model
    if model is None:
        raise CouldNotRun("the arguments name no model", "write -- serve MODEL")
    run.folder = folder = look_at_model(Path(model))
    run.start.model_sha256 = folder.sha256
    if run.dry and folder.problem:
        run.start.checks["model"] = f"not made: {model} {folder.problem}"
        return
    try:
        checks.require_model(folder, run.packaged.model if run.packaged else None)
        checks.require_draft_layers(folder, run.facts.speculative)
    except CouldNotRun as refusal:
        if not run.dry:
            raise
        run.refused = refusal
        run.start.checks["model"] = f"fail: {refusal.what}"
        return
    run.start.checks["model"] = PASS


def _check_blocks(run: Launch) -> None:
    if run.packaged:
        architecture: object = run.packaged.model.architecture
    else:
        found = (run.folder.config or {}).get("architectures") if run.folder else None
        architecture = found[0] if isinstance(found, list) and found else None
    if not run.on_gpus or architecture != FAMILY_DSV4:
        run.start.checks["kv_blocks"] = "not applicable: the KV model is DeepSeek-V4's on GPUs"
        return
    if kv_check.needed(run.facts) is None or run.facts.num_gpu_blocks_override is None:
        run.start.checks["kv_blocks"] = "not made: an argument that decides the KV blocks is left to vLLM"
        return
    kv_check.require_blocks(run.facts, tuple(dict.fromkeys(change.override for change in run.start.changes)))
    run.start.checks["kv_blocks"] = PASS


def _read_key(run: Launch) -> None:
    key = secret.read_key(run.places.key_file, run.places.key_file_is_given)
    secret.require_unseen(key, run.start.argv)
    run.start.api_key = key


def _take_gpus(run: Launch) -> None:
    if not run.on_gpus or run.dry:
        for name in ("gpus", "driver", "shm"):
            run.start.checks[name] = DRY if run.on_gpus else ON_CPU
        return
    if run.rig is None:
        raise run.rig_refusal or CouldNotRun("the GPUs were not asked", "report this")
    values = run.start.environment
    wanted, source = _wanted(run, run.rig)
    chosen = checks.select(run.rig.gpus, wanted, source)
    checks.require_driver(run.rig.driver)
    checks.require_capability(chosen, values.get("SM86_FORCE") == "1")
    checks.require_count(chosen, run.facts.ranks)
    run.start.gpus, run.start.driver = chosen, run.rig.driver
    # CUDA's own order is by speed; PCI bus order is the one in which the indices below are counted
    values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    values["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in chosen)
    run.start.checks |= {"gpus": PASS, "driver": PASS}
    shm = gpus.shm_bytes()
    if shm is not None:
        checks.require_shm(shm, run.facts.ranks)
    run.start.checks["shm"] = PASS if shm is not None else "not made: there is no /dev/shm"


def _wanted(run: Launch, rig: gpus.Rig) -> tuple[tuple[str, ...] | None, str]:
    """UUIDs that were asked for and where; None for all."""
    override = run.given.get("SM86_GPUS")
    cuda = run.start.environment.get("CUDA_VISIBLE_DEVICES")
    if override and override.value:
        if cuda is not None:
            raise CouldNotRun("SM86_GPUS and CUDA_VISIBLE_DEVICES are both set", "leave CUDA_VISIBLE_DEVICES out")
        return override.value, "SM86_GPUS"
    if cuda is not None:
        return checks.visible(rig.gpus, cuda), "CUDA_VISIBLE_DEVICES"
    return None, ""


def _take_locks(run: Launch) -> None:
    names = [gpu.uuid for gpu in run.start.gpus] if run.on_gpus else ["cpu"]
    if run.dry:
        run.start.checks["lock"] = DRY
        return
    paths = locks.acquire(run.places.locks, names, run.start.envelope)
    run.start.environment[locks.HELD_VARIABLE] = ":".join(str(path) for path in paths)
    run.start.locks = tuple(str(path) for path in paths)
    run.start.checks["lock"] = PASS


def _check_memory(run: Launch) -> None:
    if not run.on_gpus or run.dry:
        run.start.checks["gpu_memory"] = DRY if run.on_gpus else ON_CPU
        return
    # after the lock: a server of ours that runs there is named by its lock, not by the memory it uses
    deadline = time.monotonic() + SETTLE_S
    utilization, chosen = run.facts.gpu_memory_utilization, run.start.gpus
    while short := checks.short_of_memory(chosen, utilization):
        if time.monotonic() >= deadline:
            raise checks.memory_refusal(short, utilization)
        time.sleep(2)
        uuids = {gpu.uuid for gpu in chosen}
        chosen = tuple(gpu for gpu in gpus.ask().gpus if gpu.uuid in uuids)
    run.start.checks["gpu_memory"] = PASS


def _ready_cache(run: Launch) -> None:
    values = run.start.environment
    installed = run.start.engine
    values |= cache.variables(run.places.cache, values)
    if run.dry:
        run.start.checks["cache"] = DRY
        return
    versions = {
        "vllm": installed.vllm_version,
        "torch": installed.torch_version,
        "flashinfer": installed.flashinfer_version,
        "python": run.start.python,
    }
    run.start.cache = cache.prepare(run.places.cache, cache.identity(run.places.build, versions))
    run.start.checks["cache"] = PASS


_STEPS: tuple[Callable[[Launch], None], ...] = (
    _check_engine,
    _check_model,
    _check_blocks,
    _read_key,
    _take_gpus,
    _take_locks,
    _check_memory,
    _ready_cache,
)


def _become(run: Launch) -> None:
    values = dict(run.start.environment)
    if run.start.api_key is not None:
        values[secret.KEY_VARIABLE] = run.start.api_key
    if run.places.in_image:
        with contextlib.suppress(CouldNotRun):
            health.announce(run.facts.host, run.facts.port)
    command = (*run.start.exec_prefix, *run.start.argv)
    sys.stderr.flush()
    try:
        os.execve(command[0], command, values)
    except OSError as error:
        raise CouldNotRun(f"{command[0]} cannot be started: {error.strerror}", "check the installation") from None
