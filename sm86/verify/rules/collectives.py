"""The rule on what the plugin says of the all-reduce: whether it chose, and whether that is what the run asked for."""

from __future__ import annotations

from sm86.verify import events as ev
from sm86.verify.case import MEND_BOOT, MEND_CUT, Case, failed, is_on, not_applicable, not_seen, passed, text_of
from sm86.verify.findings import Finding

SECTION = "collectives"


def host_allreduce(case: Case) -> Finding:
    """The plugin said by which way small all-reduces go, no rank reported a failure, and 1 or 0 is what happened."""
    if case.envelope.engine != "cuda":
        return not_applicable("the CPU engine has no all-reduce")
    if case.envelope.serve.tensor_parallel < 2:
        return not_applicable("with one GPU there is no all-reduce")
    broken = _last(case, "failed")
    if broken is not None:
        return failed(
            f"a rank gave up: {text_of(broken.value)}",
            "look at what the missing rank's log and `nvidia-smi` say; SM86_HOST_ALLREDUCE=0 serves without it",
            [broken],
        )
    choice, reason = _last(case, "choice"), _last(case, "reason")
    if choice is None:
        return not_seen(
            "no choice of the all-reduce in this boot",
            f"{MEND_CUT}; an engine without the sm86 plugin makes none",
        )
    way = text_of(choice.value)
    why = text_of(reason.value) if reason is not None else "no reason given"
    if way not in ("host", "nccl"):
        return failed(f"the all-reduce goes by {way!r}, which is neither host nor nccl", MEND_BOOT, [choice])
    asked = case.override("SM86_HOST_ALLREDUCE")
    mode = asked.value if asked is not None else "auto"
    if mode == "1" and way != "host":
        return failed(
            f"SM86_HOST_ALLREDUCE=1 was asked for, but NCCL serves: {why}",
            "mend what the reason names, or leave the choice to auto",
            [choice, reason, asked.entry if asked else None],
        )
    if mode != "auto" and not is_on(mode) and way != "nccl":
        return failed(
            "SM86_HOST_ALLREDUCE=0 was asked for, but the all-reduce goes by host memory",
            MEND_BOOT,
            [choice, reason, asked.entry if asked else None],
        )
    if "value check failed" in why:
        return failed(
            f"the host all-reduce gave wrong sums here, so NCCL serves: {why}",
            "report it with the lines before; SM86_HOST_ALLREDUCE=0 leaves the check out",
            [choice, reason],
        )
    return passed(f"{way}: {why}", [choice, reason, *case.boot.reported(SECTION, "measured")])


def _last(case: Case, key: str) -> ev.ManifestEntry | None:
    found = case.boot.reported(SECTION, key)
    return found[-1] if found else None
