"""Disks of the folders that the product needs, asked in a child that a dead mount cannot take along."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm86.doctor.facts import Disk
from sm86.host.rig.child import Ended, json_lines

CHILD = Path(__file__).with_name("disk_child.py")
ANSWER_S = 5.0


def disks(
    folders: Sequence[tuple[str, str, bool | None]],
    argv: tuple[str, ...] | None = None,
    answer_s: float = ANSWER_S,
) -> tuple[tuple[Disk, ...], tuple[str, ...]]:
    """folders: (use, path, whether what is to lie there does). The disks, and what could not be asked, in words.

    A folder that does not answer is a disk of which nothing is known; those after it are not asked.
    """
    command = (*(argv or (sys.executable, "-P", str(CHILD))), *(path for _, path, _ in folders))
    told: list[dict[str, Any]] = []
    missed: tuple[str, ...] = ()
    for item in json_lines(command, answer_s, 2 * answer_s):
        if not isinstance(item, Ended):
            told.append(item)
        elif len(told) < len(folders):
            reason = f"no answer within {answer_s:.0f} s (a dead mount?)" if item.how == "silent" else "no answer"
            missed = (f"the disk of {folders[len(told)][0]} at {folders[len(told)][1]}: {reason}",)
    known = [_disk(use, present, facts) for (use, _, present), facts in zip(folders, told, strict=False)]
    return (*known, *(Disk(use, path) for use, path, _ in folders[len(told) :])), missed


def _disk(use: str, present: bool | None, facts: dict[str, Any]) -> Disk:
    return Disk(
        use=use,
        path=facts.get("path"),
        exists=facts.get("exists"),
        filesystem=facts.get("filesystem"),
        total=facts.get("total"),
        free=facts.get("free"),
        readable=facts.get("readable"),
        rotational=facts.get("rotational"),
        present=present,
        device=facts.get("device"),
    )
