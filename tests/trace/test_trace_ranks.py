"""Several ranks: work told from waiting, exactly; and ranks that do not belong together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm86.errors import CouldNotRun
from sm86.trace.analysis import analyse
from sm86.trace.files import choose
from sm86.trace.kernels import Bucket
from sm86.trace.ranks import compare
from sm86.trace.testing.generator import EAGER, Recipe, write, write_ranks

LAYERS = ("SWA", "CSA", "HCA")


def names(folder: Path, world: int) -> list[Path]:
    return [folder / f"dp0_pp0_tp{r}_dcp0_ep0_rank{r}.1790{r}.pt.trace.json" for r in range(world)]


def test_work_and_waiting_are_exact(tmp_path: Path) -> None:
    paths = names(tmp_path, 3)
    truths = write_ranks(paths, Recipe(steps=6, layers=LAYERS, world=3))
    found = compare([analyse(path) for path in paths])
    whole = range(6)
    calls = len(truths[0].whole[0]["collectives"])
    gather = calls - 1  # the last collective of a step is the all-gather of the logits
    assert found.units == 6 and found.unit == "step"
    assert found.calls == {Bucket.ALL_REDUCE: gather, Bucket.ALL_GATHER: 1}
    work = sum(sum(truths[0].whole[i]["transports"][:gather]) for i in whole) / 6
    assert found.work[Bucket.ALL_REDUCE] == pytest.approx(work, abs=0.001)
    assert found.work[Bucket.ALL_GATHER] == pytest.approx(
        sum(truths[0].whole[i]["transports"][gather] for i in whole) / 6
    )
    for row, truth in zip(found.rows, truths, strict=True):
        own = sum(sum(truth.whole[i]["collectives"][:gather]) for i in whole) / 6
        assert row.own[Bucket.ALL_REDUCE] == pytest.approx(own)
        assert row.waiting[Bucket.ALL_REDUCE] == pytest.approx(own - work, abs=0.001)
        assert row.waiting[Bucket.ALL_REDUCE] > 0
    least = min(found.rows, key=lambda row: sum(row.waiting.values()))
    assert found.slowest is least and found.ranks_missing == ()


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    paths = names(tmp_path, 4)
    write_ranks(paths, Recipe(steps=4, layers=LAYERS, world=4))
    assert compare([analyse(paths[0]), analyse(paths[2])]).ranks_missing == (1, 3)


def test_eager_steps_of_ranks_are_compared_too(tmp_path: Path) -> None:
    paths = names(tmp_path, 2)
    write_ranks(paths, Recipe(steps=4, layers=LAYERS, world=2, mode=EAGER, partial=0, orphans=0, cut_tail=False))
    assert compare([analyse(path) for path in paths]).units == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("the same rank twice", "both of rank 0"),
        ("another number of ranks", "is of 2 ranks"),
        ("another model", "has the layers"),
        ("another time", "do not run at the same time"),
        ("a rank beyond the world", "is of rank 1, but says there are 1"),
        ("no collectives", "no collective"),
        ("steps against graphs", "is counted by"),
        ("no rank said", "says nowhere which rank"),
    ],
)
def test_ranks_that_do_not_belong_together(tmp_path: Path, fault: str, words: str) -> None:
    paths = names(tmp_path, 2)
    recipe = Recipe(steps=4, layers=LAYERS, world=2)
    write_ranks(paths, recipe)
    text = paths[1].read_text()
    if fault == "the same rank twice":
        paths[1] = tmp_path / "copy.json"
        paths[1].write_text(paths[0].read_text())
    elif fault == "another number of ranks":
        paths[1].write_text(text.replace('"world_size": 2', '"world_size": 4'))
    elif fault == "another model":
        write_ranks([tmp_path / "x.json", paths[1]], Recipe(steps=4, layers=("SWA", "CSA", "CSA"), world=2))
    elif fault == "another time":
        paths[1].write_text(text.replace('"baseTimeNanoseconds": 1790', '"baseTimeNanoseconds": 1791'))
    elif fault == "a rank beyond the world":
        for path in paths:
            path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 1'))
    elif fault == "no collectives":
        for path in paths:
            path.write_text(path.read_text().replace("ncclDevKernel_All", "local_copy_"))
    elif fault == "steps against graphs":
        paths[1].write_text(text.replace("execute_context", "renamed_context"))
    elif fault == "no rank said":
        paths[1] = tmp_path / "trace.json"
        paths[1].write_text(text.replace('"distributedInfo"', '"other"'))
    with pytest.raises(CouldNotRun, match=re.escape(words)) as caught:
        compare([analyse(path) for path in paths])
    assert "\n" not in caught.value.what and caught.value.mend


def test_a_folder_gives_the_newest_capture_of_every_rank(tmp_path: Path) -> None:
    for name in (
        "dp0_pp0_tp0_dcp0_ep0_rank0.100.pt.trace.json.gz",
        "dp0_pp0_tp0_dcp0_ep0_rank0.90.pt.trace.json.gz",
        "dp0_pp0_tp1_dcp0_ep1_rank1.101.pt.trace.json.gz",
        "host_12.async_llm.100.pt.trace.json.gz",
        "profiler_out_0.txt",
        "notes.json",
    ):
        (tmp_path / name).write_text("{}")
    found, notes = choose([tmp_path])
    assert [path.name.split(".")[1] for path in found] == ["100", "101"]
    assert len(notes) == 1 and "2 captures" in notes[0]
    assert [path.name for path in choose([tmp_path], rank=1)[0]] == ["dp0_pp0_tp1_dcp0_ep1_rank1.101.pt.trace.json.gz"]
    with pytest.raises(CouldNotRun, match="of rank 5"):
        choose([tmp_path], rank=5)


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CouldNotRun, match="there is no trace"):
        choose([tmp_path])
    (tmp_path / "host_12.async_llm.100.pt.trace.json.gz").write_text("{}")
    with pytest.raises(CouldNotRun, match="async_llm"):
        choose([tmp_path])
    with pytest.raises(CouldNotRun, match="there is no"):
        choose([tmp_path / "missing"])


def test_one_rank_alone_needs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    write(path, Recipe(steps=3, layers=LAYERS))
    assert analyse(path).main is not None


@pytest.mark.parametrize("late", [0, 40_000])
def test_a_slow_rank_is_named_only_when_there_is_one(tmp_path: Path, late: int) -> None:
    import io

    from rich.console import Console

    from sm86.trace.table import print_comparison
    from sm86.trace.testing import generator

    paths = names(tmp_path, 4)
    original = generator._simulate
    with pytest.MonkeyPatch.context() as patch:

        def one_is_late(nodes, begins, rng):
            """Rank 2 comes `late` ns after the others to every step; all wait for it at the first collective."""
            return original(nodes, [begin + late * (rank == 2) for rank, begin in enumerate(begins)], rng)

        patch.setattr(generator, "_simulate", one_is_late)
        write_ranks(paths, Recipe(steps=6, layers=LAYERS, world=4))
    found = compare([analyse(path) for path in paths])
    out = io.StringIO()
    print_comparison(Console(file=out, width=132, markup=False, highlight=False), found)
    if late:
        assert found.slowest.rank == 2 and "Rank 2 is slow" in out.getvalue()
    else:
        assert "No rank is slow alone" in out.getvalue()
