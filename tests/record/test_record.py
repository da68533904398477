"""Records are written whole, read back equal, and refused when they are something else."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sm86.errors import CouldNotRun
from sm86.record import Conditions, Number, Record, Verdict, latest, load, record_path, results_dir, save, store

RECORD = Record(
    kind="bench",
    envelope="cpu-smoke",
    envelope_digest="0123456789abcdef",
    started=datetime(2026, 11, 30, 12, 0, 1, tzinfo=UTC),
    seconds=12.5,
    conditions=Conditions(engine="cpu", mark="CPU", gpus=({"uuid": "GPU-1", "power_limit_w": 350},)),
    numbers=(Number("aggregate decode", 20.0, "tok/s", (19.0, 20.0, 22.0)),),
    verdicts=(Verdict("coherence", "not applicable", "failed alone"),),
    details={"prompt_tokens": [256, 256]},
)


def test_there_and_back(tmp_path):
    path = save(RECORD, tmp_path)
    assert path == tmp_path / "cpu-smoke" / "20261130T120001Z-bench.json"
    assert load(path) == RECORD
    assert json.loads(path.read_text())["numbers"][0]["spread"] == 3.0


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_a_record_that_another_program_wrote_anew(tmp_path, coding):
    path = save(RECORD, tmp_path)
    path.write_text(path.read_text(encoding="utf-8"), encoding=coding)
    assert load(path) == RECORD


def test_a_second_record_of_the_same_second_keeps_the_first(tmp_path):
    first, second = save(RECORD, tmp_path), save(replace(RECORD, seconds=1.0), tmp_path)
    assert first != second
    assert load(first) == RECORD and load(second).seconds == 1.0


def test_latest(tmp_path):
    assert latest("cpu-smoke", "bench", tmp_path) is None
    save(RECORD, tmp_path)
    newer = replace(RECORD, started=RECORD.started.replace(hour=13))
    save(newer, tmp_path)
    assert latest("cpu-smoke", "bench", tmp_path) == newer
    assert latest("cpu-smoke", "verify", tmp_path) is None


@pytest.mark.parametrize(
    "change", [{"schema": "other"}, {"version": 2}, {"conditions": None}, {"started": "yesterday"}]
)
def test_other_files_are_refused(tmp_path, change):
    values = RECORD.to_json() | change
    path = tmp_path / "r.json"
    path.write_text(json.dumps(values))
    with pytest.raises(CouldNotRun):
        load(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_not_records(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(CouldNotRun):
        load(path)


def test_nothing_half_written(tmp_path, monkeypatch):
    path = record_path(RECORD, tmp_path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CouldNotRun, match="No space left"):
        save(RECORD, tmp_path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_writers_of_the_same_moment_keep_each_others_records(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    with ThreadPoolExecutor(16 if links else 1) as pool:
        paths = list(pool.map(lambda n: save(replace(RECORD, seconds=float(n)), tmp_path), range(64)))
    assert len(set(paths)) == 64
    assert sorted(load(path).seconds for path in paths) == [float(n) for n in range(64)]
    assert len(list((tmp_path / "cpu-smoke").iterdir())) == 64


def test_the_default_place_is_the_clone_s_whatever_the_working_folder_is(tmp_path, monkeypatch):
    clone = store.CLONE
    assert (clone / "tasks.py").is_file()
    monkeypatch.delenv("SM86_RESULTS")
    monkeypatch.chdir(tmp_path)
    assert results_dir() == clone / "results" and record_path(RECORD).is_relative_to(clone / "results")
    assert results_dir(tmp_path / "other") == tmp_path / "other"
    monkeypatch.chdir(clone)
    assert str(results_dir()) == "results"
    monkeypatch.setenv("SM86_RESULTS", str(tmp_path / "named"))
    assert save(RECORD).parent == tmp_path / "named" / "cpu-smoke"
    assert latest("cpu-smoke", "bench") == RECORD
    monkeypatch.delenv("SM86_RESULTS")
    monkeypatch.setattr(store, "CLONE", tmp_path)
    assert str(results_dir()) == "results", "installed without a clone"
