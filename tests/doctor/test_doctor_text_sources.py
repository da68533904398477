"""The CSV of nvidia-smi and the kernel's log, as they come."""

from __future__ import annotations

import pytest

from sm86.doctor.kernel_text import from_lines
from sm86.doctor.smi_csv import FIELDS, from_csv

ROW = (
    "00000000:{bus}:00.0, GPU-{bus}, NVIDIA GeForce RTX 3090, 8.6, 24576, 24131, 445, [N/A], 210, 2100, 24.61, 350.00, "
    "350.00, 366.00, 34, 0, Enabled, Disabled, 1, 4, 4, 16, 580.126.09"
)


def test_cards_in_bus_order() -> None:
    gpus, driver = from_csv("\n".join(ROW.format(bus=bus) for bus in ("21", "01")))
    assert driver == "580.126.09"
    assert [gpu.uuid for gpu in gpus] == ["GPU-01", "GPU-21"]
    gpu = gpus[0]
    assert (gpu.memory_total, gpu.capability, gpu.ecc, gpu.persistence) == (24576 << 20, (8, 6), None, True)
    assert (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.max_width, gpu.pcie.busy) == (1, 4, 16, False)


@pytest.mark.parametrize("word", ["N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", "", "-1", "nan"])
def test_words_for_no_value(word: str) -> None:
    cells = [word] * len(FIELDS)
    cells[0], cells[-1] = "00000000:01:00.0", "580.126.09"
    gpus, _ = from_csv(", ".join(cells))
    gpu = gpus[0]
    assert (gpu.memory_total, gpu.power, gpu.power_limit, gpu.capability, gpu.pcie.width) == (None,) * 5
    assert (gpu.ecc, gpu.persistence, gpu.temperature) == (None, None, None)


def test_warnings_and_cut_lines_are_no_cards() -> None:
    text = f"WARNING: infoROM is corrupted at gpu 0000:01:00.0\n{ROW.format(bus='01')}\n{ROW.format(bus='02')[:40]}\n"
    assert [gpu.bus_id for gpu in from_csv(text)[0]] == ["00000000:01:00.0"]
    assert from_csv("No devices were found\n") == ((), None)


XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (f"[   81.250000] box kernel: {XID}", 81.25),
        (f"[   81.250000] {XID}", 81.25),
        (f"4,1234,81250000,-;{XID}", 81.25),
        (XID, None),
    ],
)
def test_an_xid_in_every_way_it_is_written(line: str, at: float | None) -> None:
    log = from_lines(["[    0.000000] Linux version 6.8.0", line], "journal")
    assert log.readable and log.xids is not None
    entry = log.xids[0]
    assert (entry.number, entry.bus_id, entry.at) == (79, "0000:01:00.0", at)
    assert "fallen off the bus" in entry.text


def test_faults_of_the_bus_are_counted_and_the_last_ones_kept() -> None:
    lines = [f"[ {at}.0] pcieport 0000:00:01.1: AER: Corrected error message received from {at}" for at in range(50)]
    log = from_lines([*lines, "[ 99.0] AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:00.0]"], "journal")
    assert (log.other_count, len(log.others or ())) == (51, 20)
    assert "IO_PAGE_FAULT" in (log.others or ())[-1]


def test_a_quiet_log_is_clean_and_an_empty_one_was_not_read() -> None:
    quiet = from_lines(
        ["[    0.000000] Linux version 6.8.0", "[ 1.0] NVRM: loading NVIDIA UNIX Open Kernel Module"], "journal"
    )
    assert (quiet.readable, quiet.xids, quiet.others) == (True, (), ())
    assert from_lines([], "journal").readable is False
    assert from_lines(["", "  "], "journal").xids is None
