"""The launcher's command line. Pure; a wrong one is told in two lines like everything else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sm86.errors import CouldNotRun
from sm86.launch.overrides import parse_setting

PROGRAM = "python3 -P -m sm86.launch"


@dataclass(frozen=True, slots=True)
class Options:
    """argv: the arguments after `--`, None where the packaged spec gives them."""

    envelope: str
    envelope_digest: str | None
    settings: tuple[tuple[str, str], ...]
    model_path: str | None
    host: str | None
    port: int | None
    dry_run: bool
    argv: tuple[str, ...] | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CouldNotRun(f"the launcher's arguments: {message}", f"{PROGRAM} --help lists them")


def parse(arguments: Sequence[str]) -> Options:
    """Raises CouldNotRun for wrong arguments. `--help` prints and exits 0."""
    own, argv = list(arguments), None
    if "--" in own:
        cut = own.index("--")
        own, argv = own[:cut], tuple(own[cut + 1 :])
    parser = _Parser(prog=PROGRAM, allow_abbrev=False, description="Check, print the manifest, become vLLM.")
    parser.add_argument("--envelope", required=True, metavar="NAME", help="envelope to serve")
    parser.add_argument("--envelope-digest", metavar="D", help="digest of the envelope that the arguments came from")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="an override of this run"
    )
    parser.add_argument("--model-path", metavar="P", help="the checkpoint's folder")
    parser.add_argument("--host", metavar="H", help="address to listen on")
    parser.add_argument("--port", type=int, metavar="N", help="port to listen on")
    parser.add_argument("--dry-run", action="store_true", help="print the manifest and end")
    found = parser.parse_args(own)
    if argv is not None:
        _require_whole(argv, found)
    if found.port is not None and not 1024 <= found.port <= 65535:
        raise CouldNotRun(f"--port {found.port} is none that vLLM takes", "use 1024 to 65535")
    return Options(
        envelope=found.envelope,
        envelope_digest=found.envelope_digest,
        settings=tuple(parse_setting(text) for text in found.settings),
        model_path=found.model_path,
        host=found.host,
        port=found.port,
        dry_run=found.dry_run,
        argv=argv,
    )


def _require_whole(argv: tuple[str, ...], found: argparse.Namespace) -> None:
    if not argv or argv[0] != "serve":
        raise CouldNotRun(
            f"the arguments after -- start with {argv[0]!r}" if argv else "there are no arguments after --",
            "write -- serve MODEL and vLLM's arguments",
        )
    for name in ("model_path", "host", "port"):
        if getattr(found, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise CouldNotRun(f"{flag} stands beside the arguments after --", "say it there, once")
