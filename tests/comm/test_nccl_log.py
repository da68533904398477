"""What NCCL says of what really ran. Lines: the format strings of libnccl.so.2 2.28.9, filled in."""

from __future__ import annotations

from sm86.comm.nccl_log import Ran, parse

LOG = """\
NCCL version 2.28.9+cuda13.0
rig:71:71 [0] NCCL INFO NCCL_ALGO set by environment to AllReduce:Tree
rig:71:71 [0] NCCL INFO NCCL_NTHREADS set by environment to 128.
rig:71:90 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer
rig:71:90 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
rig:71:90 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct
rig:71:90 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read
rig:71:71 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
rig:71:71 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
rig:71:71 [0] NCCL INFO AllReduce: 32768 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}
rig:71:71 [0] NCCL INFO AllGather: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
some other library speaks
"""


def test_what_ran_is_read_by_size() -> None:
    said = parse(LOG.splitlines())
    assert said.ran == {8192: (Ran("Tree", "LL", 2),), 32768: (Ran("Ring", "Simple", 1),)}
    assert said.ran[8192][0].words() == "Tree LL, 2 channels"
    assert said.version == "2.28.9"
    assert said.channels == 4


def test_transports_and_settings_are_counted() -> None:
    said = parse(LOG.splitlines())
    assert said.transports == {"SHM/direct/direct": 2, "P2P/CUMEM/read": 1}
    assert said.environment == {"NCCL_ALGO": "AllReduce:Tree", "NCCL_NTHREADS": "128"}
    assert said.refusal is None


def test_two_ways_at_one_size_are_both_kept() -> None:
    more = LOG + "rig:71:71 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}\n"
    assert parse(more.splitlines()).ran[8192] == (Ran("Ring", "LL128", 4), Ran("Tree", "LL", 2))


def test_a_refusal_is_found_among_warnings() -> None:
    text = (
        "\n[2026-11-30 12:00:00] rig:71:71 [0] enqueue.cc:2061 NCCL WARN Error : no algorithm/protocol available for "
        "function AllReduce with datatype ncclBfloat16. NCCL_ALGO was set to AllReduce:Tree.\n"
        "rig:71:71 [0] NCCL WARN something else\n"
    )
    said = parse(text.splitlines())
    assert said.refusal is not None and said.refusal.startswith("Error : no algorithm/protocol available")
    assert len(said.warnings) == 2


def test_an_empty_text_says_nothing() -> None:
    said = parse([])
    assert (said.version, said.ran, said.transports, said.refusal) == (None, {}, {}, None)
