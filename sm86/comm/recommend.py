"""Rows -> the setting to use, as `.env` and `--override` take it, with the reasons. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm86.comm.matrix import BASELINE, FLASHINFER, HOST
from sm86.comm.numbers import Gain, Row, gain_of, verdict_at
from sm86.comm.step import PREFILL_BYTES, size_words


@dataclass(frozen=True, slots=True)
class Recommendation:
    """setting: a row's name, "nccl" where nothing is to be set; overrides: NAME, VALUE; reasons: one line each;
    prefill_ms: what one prefill chunk's all-reduces would lose (positive) at their medians, None where not measured;
    known: something was measured well enough to say anything at all."""

    setting: str
    overrides: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    gains: tuple[Gain, ...] = ()
    prefill_ms: float | None = None
    known: bool = True


def recommend(rows: Sequence[Row], sizes: Sequence[int], calls: int, mark: str = "") -> Recommendation:
    """The setting that no other beats beyond the spread at every one of `sizes`, and that beats NCCL's own choice at
    one of them at least; of several the one with the fewest variables, then the fastest. Otherwise NCCL left alone."""
    base = next((row for row in rows if row.setting.name == BASELINE), None)
    if mark:
        return _nothing(f"{mark}: nothing can be recommended from numbers that are not a rig's")
    if base is None or not base.measured:
        why = base.why if base is not None and base.why else "it is not among the settings"
        return _nothing(f"NCCL's own choice was not measured, so there is nothing to compare with: {why}")
    wanted = [size for size in sizes if size in base.timings]
    if not wanted:
        return _nothing("none of the sizes that a decode step uses was measured")
    # what a server cannot use must not hide what it can
    usable = [row for row in rows if not _inert(row)]
    verdicts = [verdict_at(size, usable, mark) for size in wanted]
    thin = next((v for v in verdicts if "too few" in v.why or "nothing to compare" in v.why), None)
    if thin is not None:
        return _nothing(thin.why)
    common = set(verdicts[0].leaders).intersection(*(verdict.leaders for verdict in verdicts[1:]))
    able = [row for row in usable if row.setting.name in common]
    better = [row for row in able if any(row.timings[size].beats(base.timings[size]) for size in wanted)]
    words = " and ".join(size_words(size) for size in wanted)
    if not better:
        return Recommendation(BASELINE, (), (_why_none(base, verdicts, words, common),))
    best = min(better, key=lambda row: (row.setting.changes, sum(row.timings[size].median for size in wanted)))
    gains = tuple(gain for size in wanted if (gain := gain_of(best, base, size, calls)) is not None)
    reasons = [f"{best.setting.words}: at {words} no other setting that a server can use is faster beyond the spread"]
    for gain in gains:
        own, other = best.timings[gain.size].median, base.timings[gain.size].median
        change = f"{abs(gain.ms):.2f} ms {'shorter' if gain.ms >= 0 else 'longer'}"
        reasons.append(
            f"{size_words(gain.size)}: {own:.2f} us against {other:.2f} us; a step of {gain.calls} calls gets {change} "
            f"(the repeats allow {gain.least_ms:.2f} to {gain.most_ms:.2f})"
        )
    equal = sorted(name for name in common if name not in (best.setting.name, BASELINE))
    if equal:
        reasons.append(f"within the spread of it: {', '.join(equal)}")
    if best.differs:
        reasons.append(best.differs)
    prefill = _prefill_ms(best, base, calls)
    if (
        prefill is not None
        and best.setting.path != HOST
        and base.timings[PREFILL_BYTES].beats(best.timings[PREFILL_BYTES])
    ):
        reasons.append(
            f"it holds for prefill as well: a chunk of 512 tokens takes {prefill:.1f} ms longer in its all-reduces"
        )
    return Recommendation(best.setting.name, best.setting.overrides, tuple(reasons), gains, prefill)


def dotenv_lines(found: Recommendation) -> tuple[str, ...]:
    """Lines for `.env`; a comment where nothing is to be set."""
    if not found.known:
        return (f"# nothing is recommended: {found.reasons[0]}",)
    if not found.overrides:
        return (f"# leave NCCL alone: {found.reasons[0]}",)
    return tuple(f"{name}={value}" for name, value in found.overrides)


def _nothing(why: str) -> Recommendation:
    return Recommendation(BASELINE, (), (why,), known=False)


def _inert(row: Row) -> bool:
    # vLLM 0.26.0 has no size table of FlashInfer's for SM86 and leaves the all-reduce to NCCL whatever is set
    return row.setting.path == FLASHINFER


def _why_none(base: Row, verdicts: Sequence[object], words: str, common: set[str]) -> str:
    if BASELINE in common:
        return f"at {words} nothing is faster than NCCL's own choice beyond the spread"
    return f"no one setting leads at each of {words}"


def _prefill_ms(best: Row, base: Row, calls: int) -> float | None:
    if PREFILL_BYTES not in best.timings or PREFILL_BYTES not in base.timings:
        return None
    return calls * (best.timings[PREFILL_BYTES].median - base.timings[PREFILL_BYTES].median) / 1000
