"""The planner's answers as plain values, bytes as whole numbers. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sm86.fit.check_log import LogCheck
from sm86.fit.memory_plan import MemoryPlan
from sm86.fit.search import Search
from sm86.fit.what_if import Published, WhatIf
from sm86.plan.units import Bytes


def plan_values(plan: MemoryPlan) -> dict[str, Any]:
    """One plan."""
    return {
        "name": plan.name,
        "rig": {"title": plan.rig.title, "gpus": plan.rig.count, "notes": list(plan.rig.notes), "mark": plan.rig.mark},
        "gpu": asdict(plan.gpu) | {"free": plan.gpu.free},
        "server": asdict(plan.server) | {"in_flight": plan.server.in_flight},
        "stack": plan.stack,
        "parts": [
            {"name": part.name, "kind": part.kind, **_bytes(part.size), "source": part.source} for part in plan.parts
        ],
        "kv_groups": [
            {
                "name": use.group.name,
                "layers": [{"page_bytes": page, "count": count} for page, count in use.group.layers],
                "page_bytes": use.group.page_bytes,
                "tokens": use.group.tokens,
                "pages_prefilling": use.full,
                "pages_decoding": use.decoding,
                "pages_all": use.all,
            }
            for use in plan.groups
        ],
        "needed_blocks": plan.needed_blocks,
        "available_kv_memory": _bytes(plan.available),
        "lines": asdict(plan.lines),
        "loading": _bytes(plan.loading),
        "used": _bytes(plan.used),
        "left": _bytes(plan.left),
        "room": _bytes(plan.room),
        "verdict": plan.verdict,
        "checks": [asdict(check) for check in plan.checks],
        "passed": plan.passed,
    }


def search_values(found: Search) -> dict[str, Any]:
    """What fits a rig."""
    return {
        "schema": "sm86.plan.fit",
        "version": 1,
        "tensor_parallel": found.ranks,
        "idle_gpus": found.idle,
        "why_idle": found.why_idle,
        "candidates": [
            {"sure": candidate.sure, "gpu_memory_utilization": candidate.utilization, **plan_values(candidate.plan)}
            for candidate in found.candidates
        ],
    }


def what_if_values(answers: Sequence[WhatIf], miss: Published) -> dict[str, Any]:
    """What must shrink, and where the published rig's bytes went."""
    return {
        "schema": "sm86.plan.what_if",
        "version": 1,
        "answers": [
            {
                "context": answer.context,
                "short": _bytes(answer.short),
                "enough": None if answer.enough is None else list(answer.enough),
                "levers": [
                    {
                        "name": lever.name,
                        "change": lever.change,
                        "saves": _bytes(lever.saves),
                        "possible": lever.possible,
                        "price": lever.price,
                    }
                    for lever in answer.levers
                ],
                "plan": plan_values(answer.base),
            }
            for answer in answers
        ],
        "published_miss": {
            "stock": plan_values(miss.stock),
            "own": plan_values(miss.own),
            "differences": [{"name": d.name, "stock": _bytes(d.stock), "own": _bytes(d.own)} for d in miss.differences],
            "left_if_the_rest_is_equal": miss.carried,
        },
    }


def check_values(answer: LogCheck) -> dict[str, Any]:
    """A log against its prediction."""
    return {
        "schema": "sm86.plan.check",
        "version": 1,
        "passed": answer.exit_code == 0,
        "boots": answer.boots,
        "lines": answer.lines,
        "settings": [{"name": name, "value": value, "line": line or None} for name, value, line in answer.settings],
        "checks": [asdict(check) | {"line": check.line or None} for check in answer.checks],
        "notes": list(answer.notes),
    }


def _bytes(size: Bytes) -> dict[str, int]:
    return {"low": size.low, "high": size.high}
