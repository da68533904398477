"""The command: arguments, no GPU, the plan, and everything it makes of recorded runs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sm86.cli import comm as cli
from sm86.cli.comm_view import EMULATED, Matrix
from sm86.cli.guard import guard
from sm86.comm import answer
from sm86.comm.answer import PREFIX
from sm86.errors import CouldNotRun
from sm86.record import load
from sm86.spec import load_envelope
from tests.comm.made import lost, repeated

KIB = 1024


def runs(facts=None):
    made = []
    for name, us, ran in (
        ("nccl", (10.1, 10.0, 10.4), "Ring LL, 1 channel"),
        ("nccl-tree-ll", (8.0, 8.2, 8.1), "Tree LL, 2 channels"),
        ("sm86-host", (3.6, 3.5, 3.7), "LL, one shot"),
    ):
        made += repeated(name, {8 * KIB: us, 32 * KIB: tuple(2 * value for value in us)}, ran)
    made += [lost("nccl-tree-ll128", at, answer.UNAVAILABLE, "no algorithm/protocol available") for at in range(3)]
    return [answer.Run(**{**_fields(run), "facts": {**run.facts, **(facts or {})}}) for run in made]


def _fields(run):
    return {name: getattr(run, name) for name in run.__slots__}


@pytest.fixture(autouse=True)
def own_lock(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cli, "LOCK_FILE", tmp_path / "comm.lock")


@pytest.fixture
def recorded(monkeypatch):
    """The command with recorded runs in place of the driver's output."""

    def use(found, image="sha256:1"):
        def lines():
            yield "a library speaks"
            for run in found:
                yield PREFIX + json.dumps(run.to_json())

        monkeypatch.setattr(cli, "_source", lambda plan, *_: (replace(plan, ranks=plan.ranks or 8), lines(), image))

    return use


GPUS = {"gpus": ["NVIDIA GeForce RTX 3090"] * 8, "capability": [[8, 6]] * 8, "peer_access": False, "nccl": "2.28.9"}
ONLY = ("nccl-tree-ll*", "sm86-host")


def no_docker() -> None:
    raise CouldNotRun("Docker is not installed", "install it")


@pytest.mark.parametrize("engine", ["local", "docker"])
def test_without_a_gpu_it_ends_with_one_clear_line(capsys, monkeypatch, engine) -> None:
    """Also where Docker lacks something as well: with a Docker there would still be no GPU."""
    from sm86.host import docker, facts, preflight

    monkeypatch.setattr(docker, "require_engine", no_docker)

    monkeypatch.setattr(preflight, "DRIVER_FILES", ())
    monkeypatch.setattr(facts, "gpu_facts", lambda: (None, ()))
    monkeypatch.setattr(cli, "_interpreter", lambda *_: Path("/usr/bin/python3"))
    assert guard(lambda: cli.comm(engine=engine)) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "sm86: no NVIDIA GPU answers on this machine, and an all-reduce needs two"
    assert len(said) == 2 and said[1].startswith("mend: ") and "--emulate" in said[1]


@pytest.mark.parametrize("engine", ["local", "docker"])
def test_one_gpu_is_too_few(monkeypatch, tmp_path, engine) -> None:
    from sm86.host import docker, facts, preflight

    monkeypatch.setattr(docker, "require_engine", no_docker)
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(preflight, "DRIVER_FILES", (driver,))
    monkeypatch.setattr(facts, "gpu_facts", lambda: ("580", ({"name": "x"},)))
    monkeypatch.setattr(cli, "_interpreter", lambda *_: Path("/usr/bin/python3"))
    with pytest.raises(CouldNotRun, match="this machine has 1 GPU, and 2 are needed") as caught:
        cli.comm(engine=engine)
    assert "--emulate" in caught.value.mend


def test_gpus_that_docker_cannot_hand_out_keep_the_mend_of_that(monkeypatch, tmp_path) -> None:
    from types import SimpleNamespace

    from sm86.host import docker, facts, preflight

    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(preflight, "DRIVER_FILES", (driver,))
    monkeypatch.setattr(facts, "gpu_facts", lambda: ("580", ({"name": "x"},) * 8))
    monkeypatch.setattr(preflight, "GPU_FOLDERS", tmp_path / "none")
    monkeypatch.setattr(docker, "require_engine", lambda: SimpleNamespace(facts=SimpleNamespace(snap=True)))
    with pytest.raises(CouldNotRun, match="installed from snap") as caught:
        cli.comm()
    assert "snap remove docker" in caught.value.mend


def test_the_whole_answer_of_recorded_runs(recorded, tmp_path, capsys) -> None:
    recorded(runs(GPUS))
    target = tmp_path / "recommended.env"
    assert cli.comm(only=ONLY, results_dir=tmp_path, recommend_file=str(target)) == 0
    said = capsys.readouterr().out
    assert "8 x NVIDIA GeForce RTX 3090, peer access not available" in said
    assert "no algorithm/protocol available" in said, "a refused setting is a row that says so"
    assert "sm86-host, 2.81x as fast as NCCL's own choice" in said
    assert "Tree LL, 2 channels over SHM/direct/direct" in said
    assert "87 calls x the difference: +0.56" in said
    assert "SM86_HOST_ALLREDUCE=1" in target.read_text().splitlines()
    assert EMULATED not in said and "\x1b" not in said
    record = load(next((tmp_path / "rig").glob("*-comm.json")))
    number = next(n for n in record.numbers if n.name == "sm86-host 8 KiB")
    assert (number.value, number.unit, len(number.repeats)) == (3.6, "us", 3)
    assert {v.name: v.state for v in record.verdicts}["nccl-tree-ll128"] == "not applicable"
    assert record.conditions.image_id == "sha256:1"


def test_gpus_that_others_use_are_noted(recorded, tmp_path, capsys) -> None:
    recorded(runs({**GPUS, "used_mib": [400, 19000, *[400] * 6]}))
    cli.comm(only=ONLY, results_dir=tmp_path)
    assert "note: others use the GPUs of ranks 1 (up to 19000 MiB)" in capsys.readouterr().out
    recorded(runs({**GPUS, "used_mib": [400] * 8}))
    cli.comm(only=ONLY, results_dir=tmp_path)
    assert "others use" not in capsys.readouterr().out


def test_json_holds_the_same(recorded, tmp_path, capsys) -> None:
    recorded(runs(GPUS))
    assert cli.comm(only=ONLY, results_dir=tmp_path, json=True) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["schema"], values["version"]) == ("sm86.comm", 1)
    assert values["recommendation"]["dotenv"] == ["SM86_HOST_ALLREDUCE=1"]
    assert [v["winner"] for v in values["verdicts"] if v["size"] == 8192] == ["sm86-host"]


@pytest.mark.parametrize("state", [answer.WRONG, answer.FAILED, answer.TIMEOUT])
def test_a_fault_of_one_setting_is_a_finding(recorded, tmp_path, capsys, state: str) -> None:
    found = [r for r in runs(GPUS) if r.setting != "nccl-tree-ll128"]
    found += [lost("nccl-tree-ll128", at, state, "it broke") for at in range(3)]
    recorded(found)
    assert cli.comm(only=ONLY, results_dir=tmp_path) == 1
    assert f"{state}: it broke" in capsys.readouterr().out


def test_other_gpus_are_marked_and_emulated_ones_recommend_nothing(recorded, tmp_path, capsys) -> None:
    recorded(runs({**GPUS, "capability": [[9, 0]] * 2}))
    cli.comm(only=ONLY, results_dir=tmp_path)
    assert "[SM 9.0, not 8.6]" in capsys.readouterr().out
    recorded([r for r in runs() if r.setting in ("nccl", "sm86-host")])
    cli.comm(emulate=True, repeats=3, results_dir=tmp_path / "second", only=("sm86-host",))
    said = capsys.readouterr().out
    assert said.count(EMULATED) >= 4
    assert "winner" not in said.replace("no winner", "")
    assert "SM86_HOST_ALLREDUCE" not in said
    record = load(next((tmp_path / "second" / "rig").glob("*-comm.json")))
    assert record.conditions.mark == EMULATED
    assert record.numbers and all(number.note.count(EMULATED) == 1 for number in record.numbers)


def test_an_envelope_decides_the_size_and_the_calls(recorded, tmp_path) -> None:
    four = load_envelope("sm86-80k-4seq")
    plan = cli.plan_from(four, (), None, 8, None, None, False)
    assert 32 * KIB in plan.sizes and plan.calls == 87
    found = Matrix(plan, four, tuple(runs(GPUS)), False)
    assert {gain.size for gain in found.gains} == {32 * KIB}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": "8,x"}, "'x' is no size"),
        ({"sizes": "0.001"}, "is no size"),
        ({"sizes": "99999"}, "is no size"),
        ({"ranks": 1}, "--ranks"),
        ({"repeats": "many"}, "--repeats"),
        ({"calls": 0}, "--calls"),
        ({"only": ("nothing",)}, "no setting fits"),
        ({"engine": "podman"}, "there is no engine"),
        ({"png": "a.pdf"}, "does not end in .png"),
        ({"envelope_name": "sm86-263k"}, "sm86-263k"),
        ({"python": "/nowhere/python", "engine": "local", "emulate": True}, "no program"),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(arguments, words: str) -> None:
    with pytest.raises(CouldNotRun, match=words):
        cli.comm(**{"dry_run": "python" not in arguments, **arguments})


def test_a_dry_run_says_what_it_would_do(capsys) -> None:
    assert cli.comm(dry_run=True, only=("nccl-p2p-off",)) == 0
    said = capsys.readouterr().out
    assert "6 groups of processes" in said and "NCCL_P2P_DISABLE=1" in said
    assert cli.comm(dry_run=True, json=True) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "sm86.comm-plan"


def test_the_picture_is_drawn_from_recorded_runs(recorded, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    recorded(runs(GPUS))
    png = tmp_path / "comm.png"
    assert cli.comm(only=ONLY, results_dir=tmp_path, png=str(png)) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_lines_of_one_kind_share_a_colour_and_the_baseline_has_its_own() -> None:
    from sm86.comm.numbers import rows_of
    from sm86.comm.picture import _colour
    from tests.comm.made import some

    names = ("nccl", "nccl-ring-ll", "nccl-ring-simple", "nccl-tree-ll", "nccl-threads-64", "sm86-host")
    colours = {row.setting.name: _colour(row) for row in rows_of(some(*names), [], 3)}
    assert colours["nccl-ring-ll"] == colours["nccl-ring-simple"]
    assert len(set(colours.values())) == 5


def test_labels_keep_apart_and_below_the_top() -> None:
    from sm86.comm.picture import LABEL_POINTS, _apart

    placed = _apart([10.0, 90.0, 91.0, 92.0, 95.0], 100.0)
    assert placed[0] == 10.0 and placed[-1] <= 100.0
    assert all(b - a >= LABEL_POINTS - 1e-9 for a, b in itertools.pairwise(placed))


def test_an_answer_that_is_cut_or_of_another_version_is_refused() -> None:
    line = PREFIX + json.dumps(runs()[0].to_json())
    assert answer.run_in_line(line) == runs()[0]
    assert answer.run_in_line("other words") is None
    with pytest.raises(CouldNotRun, match="cut in the middle"):
        answer.run_in_line(line[:-20])
    with pytest.raises(CouldNotRun, match="not understood"):
        answer.run_in_line(PREFIX + '{"state": "measured"}')


@pytest.mark.docker
def test_the_whole_command_in_the_image_on_cpu_processes(cpu_image, tmp_path, capsys) -> None:
    code = cli.comm(emulate=True, repeats=1, sizes="2", calls=2, results_dir=tmp_path, only=("nccl",))
    assert code == 0
    record = load(next((tmp_path / "rig").glob("*-comm.json")))
    assert record.conditions.mark == EMULATED and record.conditions.image_id
    assert record.numbers[0].value > 0


@pytest.mark.parametrize("option", ["png", "recommend_file", "results_dir"])
def test_what_cannot_be_written_is_told_before_anything_is_measured(monkeypatch, tmp_path, option: str) -> None:
    (tmp_path / "file").write_text("")

    def measure(*_):
        raise AssertionError("measured")

    monkeypatch.setattr(cli, "_source", lambda plan, *_: (plan, iter(()), None))
    monkeypatch.setattr(cli, "_measure", measure)
    places = {"results_dir": tmp_path / "results", option: str(tmp_path / "file" / "out.png")}
    with pytest.raises(CouldNotRun, match=r"cannot write .*file"):
        cli.comm(**places)
