"""The text of `nvidia-smi topo -m`: of real machines, of other drivers, and as people paste it."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm86.doctor.facts import Rig
from sm86.doctor.groups import BRIDGE, NV, SOCKET, SWITCH, groups, link
from sm86.doctor.topo_text import from_topo_text, looks_like_topology
from sm86.errors import CouldNotRun
from tests.doctor.rigs import REAL

QUAD = ((0, 1, 2, 3), (4, 5, 6, 7))
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
ALONE = tuple((index,) for index in range(8))
ALL = (tuple(range(8)),)
SIX_TWO = ((0, 1, 2, 3, 4, 5), (6, 7))


@pytest.mark.parametrize(
    ("name", "switches", "bridges", "sockets", "nodes", "counts"),
    [
        ("p01", PAIRS, PAIRS, QUAD, [0] * 4 + [1] * 4, {"PIX": 4, "NODE": 8, "SYS": 16}),
        ("p03", QUAD, QUAD, ALL, [None] * 8, {"PIX": 4, "PXB": 8, "NODE": 16}),
        ("p04", ALONE, QUAD, QUAD, [None] * 8, {"PHB": 12, "SYS": 16}),
        ("p06", ALONE, PAIRS, SIX_TWO, [0] * 6 + [1] * 2, {"PHB": 4, "NODE": 12, "SYS": 12}),
        ("p09", ALL, ALL, ALL, [0] * 8, {"NV1": 8, "NV2": 8, "NODE": 12}),
    ],
)  # fmt: skip
def test_real_machines(name, switches, bridges, sockets, nodes, counts) -> None:
    rig = from_topo_text(REAL[name])
    assert rig.missed == ()
    assert rig.gpus is not None and [gpu.numa for gpu in rig.gpus] == nodes
    assert (groups(rig, SWITCH), groups(rig, BRIDGE), groups(rig, SOCKET)) == (switches, bridges, sockets)
    pairs = Counter(link(rig, one, other) for one in range(8) for other in range(one))
    assert pairs == counts


def test_affinity_of_a_real_machine() -> None:
    rig = from_topo_text(REAL["p01"])
    assert rig.gpus is not None
    assert [gpu.cpus for gpu in rig.gpus] == ["0-63,128-191"] * 4 + ["64-127,192-238"] * 4


def test_the_nvlink_cube_is_two_islands_and_more() -> None:
    rig = from_topo_text(REAL["p09"])
    assert groups(rig, NV) == ALL
    assert [link(rig, 0, other) for other in range(1, 8)] == ["NV2", "NV1", "NV2", "NODE", "NODE", "NV1", "NODE"]


def tabs(*rows: str) -> str:
    return "\n".join("\t".join(row.split()) if not row.startswith("!") else row[1:] for row in rows) + "\n"


NICS = tabs(
    "!\tGPU0\tGPU1\tNIC0\tmlx5_bond_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
    "!GPU0\t X \tPHB\tNODE\tSYS\t0-31\t0\t\tN/A",
    "!GPU1\tPHB\t X \tNODE\tSYS\t0-31\t0\t\tN/A",
    "!NIC0\tNODE\tNODE\t X \tSYS\t\t\t",
    "!mlx5_bond_0\tSYS\tSYS\tSYS\t X \t\t\t",
    "!",
    "!NIC Legend:",
    "!  NIC0: mlx5_0",
)


def test_rows_and_columns_of_network_cards_are_passed_over() -> None:
    rig = from_topo_text(NICS)
    assert rig.topology.links == (("X", "PHB"), ("PHB", "X"))
    assert rig.gpus is not None and [(gpu.numa, gpu.cpus) for gpu in rig.gpus] == [(0, "0-31")] * 2
    assert rig.missed == ()


@pytest.mark.parametrize(
    "text",
    [
        tabs("!\tGPU0\tGPU1\tCPU Affinity", "!GPU0\t X \tSOC\t0-7", "!GPU1\tSOC\t X \t8-15"),
        tabs("!\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity", "!GPU0\t X \tSYS\t0-7\t0", "!GPU1\tSYS\t X \t8-15\t1"),
        "      GPU0  GPU1  CPU Affinity  NUMA Affinity  GPU NUMA ID\n"
        "GPU0   X    SYS   0-7    0   N/A\nGPU1  SYS    X    8-15  1  N/A",
        "\ufeff\tGPU0\tGPU1\r\nGPU0\t X \tSYS\r\nGPU1\tSYS\t X \r\n",
        "\x1b[1m\tGPU0\tGPU1\x1b[0m\n\x1b[32mGPU0\x1b[0m\t X \t\x1b[31mSYS\x1b[0m\nGPU1\tSYS\t X \n",
        "$ nvidia-smi topo -m\n\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
        "$ nvidia-smi topo -m\n\tGPU0\tGPU1\nGPU0\t X \tSYS\n",
        "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\t\t X \n",
    ],
    ids=["an old driver", "no NUMA id", "spaces", "BOM and CRLF", "colours", "pasted twice", "a cell is empty"],
)  # fmt: skip
def test_other_drivers_and_other_ways_to_paste(text: str) -> None:
    assert from_topo_text(text).topology.links == (("X", "SYS"), ("SYS", "X"))


def test_affinity_of_an_old_driver_and_of_spaces() -> None:
    for text in (
        tabs("!\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity", "!GPU0\t X \tSYS\t0-7\t0", "!GPU1\tSYS\t X \t8-15\t1"),
        "   GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X SYS 0-7 0\nGPU1 SYS X 8-15 1\n",
        "GPU0 X SYS 0-7 0\nGPU1 SYS X 8-15 1\n",
    ):
        rig = from_topo_text(text)
        assert rig.gpus is not None
        assert [(gpu.numa, gpu.cpus) for gpu in rig.gpus] == [(0, "0-7"), (1, "8-15")]


def test_peer_access_from_the_other_table() -> None:
    text = REAL["p04"] + "\n" + "\tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tOK\tX\n"
    rig = from_topo_text(text)
    assert rig.topology.links is not None and len(rig.topology.links) == 8
    assert rig.topology.peers is not None and rig.topology.peers[0][:3] == ("X", "CNS", None)
    assert from_topo_text("\tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tOK\tX\n").topology.peers == (("X", "CNS"), ("OK", "X"))


def test_a_gpu_that_is_missing_is_named() -> None:
    rows = [line for line in REAL["p04"].splitlines() if not line.startswith("GPU5")]
    text = "\n".join(
        " ".join(cell for at, cell in enumerate(row.split()) if at != (5 if row == rows[0] else 6)) for row in rows
    )
    rig = from_topo_text(text)
    assert rig.gpus is not None and len(rig.gpus) == 7
    assert rig.missed == ("the table has no GPU5; the GPUs are counted anew, from 0",)


def test_rows_that_disagree_are_named_and_the_farther_link_counts() -> None:
    rig = from_topo_text("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n")
    assert rig.missed == ("GPU1 to GPU0 is SYS in one row and PIX in the other",)
    assert link(rig, 0, 1) == "SYS"


def test_a_cut_table_says_what_is_missing() -> None:
    rig = from_topo_text(REAL["p06"][:300])
    assert "the table is cut: GPU4, GPU5, GPU6, GPU7 have no whole row" in rig.missed
    assert link(rig, 0, 7) == "SYS" and link(rig, 6, 7) is None


@settings(deadline=None)
@given(st.sampled_from(sorted(REAL)), st.integers(0, 1500))
def test_wherever_it_is_cut_no_link_is_invented(name: str, at: int) -> None:
    whole = from_topo_text(REAL[name]).topology.links
    try:
        rig = from_topo_text(REAL[name][:at])
    except CouldNotRun as told:
        assert "no table" in told.what
        return
    assert whole is not None and rig.topology.links is not None
    for row, words in enumerate(rig.topology.links):
        for column, word in enumerate(words):
            # a cell cut in the middle of NV12 could read NV1: only the last cell can, and none of these has two digits
            assert word is None or word == whole[row][column]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "\tGPU0\tGPU1\n",
        "Legend:\n  X    = Self\n  SYS  = Connection",
        "GPU0 is fine\n",
        "GPU 0: NVIDIA RTX 3090\n",
    ],
)
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(CouldNotRun, match="no table"):
        from_topo_text(text, "t.txt")


def test_a_table_that_is_too_large() -> None:
    header = " ".join(f"GPU{number}" for number in range(200))
    rows = "\n".join(
        f"GPU{row} " + " ".join("X" if row == column else "SYS" for column in range(200)) for row in range(200)
    )
    with pytest.raises(CouldNotRun, match="200 GPUs"):
        from_topo_text(f"  {header}\n{rows}")


def test_one_gpu() -> None:
    rig = from_topo_text("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n")
    assert rig.topology.links == (("X",),)
    assert rig.gpus is not None and rig.gpus[0].cpus == "0-7"


@settings(deadline=None)
@given(st.text(alphabet="GPU0123 XSYPHB\t\n\x1b[mNVOK", max_size=300))
def test_noise_never_ends_in_anything_but_a_refusal(text: str) -> None:
    looks_like_topology(text)
    with contextlib.suppress(CouldNotRun):
        assert isinstance(from_topo_text(text), Rig)
