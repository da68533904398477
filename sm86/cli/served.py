"""What the benchmark has to know about a running server: its address, its conditions, what its log proves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sm86.cli.engines import open_engine
from sm86.errors import CouldNotRun
from sm86.manifest import Value
from sm86.record import Conditions
from sm86.spec import Envelope, load_envelope

if TYPE_CHECKING:
    from sm86.host.engine import ServerEngine
    from sm86.host.telemetry import Watcher
    from sm86.verify.findings import Report


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: base URL, conditions for records, the report of its log."""

    base_url: str
    conditions: Conditions
    report: Report


def served(envelope: Envelope, server: ServerEngine, git_rev: str | None = None) -> Served:
    """Look at a running server. Raises CouldNotRun when it does not run or its log cannot be judged."""
    from sm86.host.facts import conditions
    from sm86.verify.verify import verify_log

    state = server.state()
    if not state.is_up:
        raise CouldNotRun(
            f"{envelope.name} does not serve: {state.words()}",
            f"start it: invoke up --envelope {envelope.name}, or name a server with --url",
        )
    log = server.log_chunks(follow=False, this_run=True)
    report = verify_log(envelope, log, git_rev, f"the log of {envelope.name}")
    return Served(server.base_url, conditions(server, envelope, cast(Mapping[str, Value], report.manifest)), report)


def bench(
    envelope_name: str,
    engine: str = "docker",
    url: str | None = None,
    api_key_file: str | None = None,
    repeats: str | int | None = None,
    decode_tokens: str | int | None = None,
    port: str | int | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Benchmark the running envelope, or the server at `url` (whose image, rig and log then stay unknown).

    Its log is verified first: a number of a server that is not what it claims cannot be compared with a published
    one. Exit codes as `sm86.cli.bench.bench`.
    """
    from sm86.cli import bench as cli

    envelope = load_envelope(envelope_name)
    if url is not None:
        return cli.bench(envelope_name, url, api_key_file, repeats, decode_tokens, json, dry_run=dry_run)
    # wrong arguments are told before anything is asked of the server
    cli.read_arguments(envelope, repeats, decode_tokens, api_key_file)
    server = open_engine(envelope, engine, port)
    if dry_run:
        base_url = server.base_url if server.state().is_up else cli.BASE_URL
        return cli.bench(envelope_name, base_url, api_key_file, repeats, decode_tokens, json, dry_run=True)
    now = served(envelope, server)
    state = "pass" if now.report.passed else "fail"
    return cli.bench(
        envelope_name,
        now.base_url,
        api_key_file,
        repeats,
        decode_tokens,
        json,
        conditions=now.conditions,
        verify_state=state,
        telemetry=gpu_watcher(envelope, now.report.manifest),
    )


def gpu_watcher(envelope: Envelope, manifest: Mapping[str, object] | None = None) -> Watcher | None:
    """Who watches the GPUs that the server says it runs on; None on the CPU engine, which has none."""
    from sm86.host.telemetry import Watcher

    return Watcher(uuids=gpus_of(manifest)) if envelope.uses_gpu else None


def gpus_of(manifest: Mapping[str, object] | None) -> tuple[str, ...]:
    """UUIDs of the server's GPUs by its manifest; none where it does not say."""
    named = (manifest or {}).get("gpus")
    return tuple(str(uuid) for uuid in named) if isinstance(named, list) else ()
