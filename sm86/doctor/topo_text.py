"""The text of `nvidia-smi topo -m` (and `topo -p2p r`) as facts. Pure.

Drivers write it with tabs or spaces, with terminal codes in the header, with rows and columns for network cards, and
with one, two or three columns of affinity. People paste it cut. What stands in it is taken; what is missing is None
and said in `Rig.missed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sm86.doctor.facts import Gpu, Rig, Topology
from sm86.errors import CouldNotRun

MOST_GPUS = 128
SOURCE = "nvidia-smi topo -m"

_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")
_LINK = re.compile(r"NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS")
_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"})
_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_GPU = re.compile(r"GPU[0-9]{1,3}")
_ROW = re.compile(r"\s*GPU([0-9]{1,3})(?=[\s]|$)")
_CPUS = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")
_NODES = re.compile(r"[0-9]{1,4}(?:[-,][0-9]{1,4})*")

MEND = "give the whole output: nvidia-smi topo -m > topo.txt"


@dataclass(slots=True)
class _Table:
    """One table: GPU numbers of its columns, then per row the cells under them and what stands behind them."""

    columns: tuple[str, ...]
    affinity: tuple[str, ...]
    rows: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)


def looks_like_topology(text: str) -> bool:
    """Whether there is a row of a GPU, which is all that a cut table may have left."""
    return any(_ROW.match(_CODES.sub("", line)) for line in text.splitlines())


def from_topo_text(text: str, where: str = "the topology") -> Rig:
    """A rig of which only topology and affinity are known. Raises CouldNotRun: no table of GPUs in it."""
    tables = _tables([_CODES.sub("", line).replace("\xa0", " ").rstrip() for line in text.splitlines()])
    links = next((table for table in tables if _is_of(table, _is_link)), None)
    peers = next((table for table in tables if _is_of(table, _PEER.__contains__)), None)
    chosen = links or peers
    if chosen is None:
        raise CouldNotRun(f"{where} holds no table of `nvidia-smi topo -m`", MEND)
    numbers = _numbers(chosen)
    if len(numbers) > MOST_GPUS:
        raise CouldNotRun(f"{where} names {len(numbers)} GPUs", MEND)
    missed: list[str] = []
    if numbers != list(range(len(numbers))):
        gone = sorted(set(range(max(numbers) + 1)) - set(numbers))
        missed.append(f"the table has no {_names(gone)}; the GPUs are counted anew, from 0")
    link_square = _square(links, numbers, _link) if links else None
    if link_square:
        missed += _cut(links, numbers) + _one_sided(link_square)
    peer_square = _square(peers, numbers, lambda cell: cell if cell in _PEER else None) if peers else None
    return Rig(
        gpus=tuple(_gpu(place, chosen, number) for place, number in enumerate(numbers)),
        topology=Topology(link_square, peer_square, SOURCE),
        missed=tuple(missed),
    )


def _tables(lines: list[str]) -> list[_Table]:
    found: list[_Table] = []
    for line in lines:
        header = _header(line)
        if header is not None:
            found.append(header)
            continue
        row = _ROW.match(line)
        if row is None:
            continue
        if not found:
            # the header was cut off: the columns can only be GPU0, GPU1, ... (a table with network cards has more)
            found.append(_Table((), ()))
        table = found[-1]
        cells = _cells(line[row.end() :], "\t" in line)
        if not table.columns and not table.rows:
            width = next((at for at, cell in enumerate(cells) if not _is_link(cell) and cell != "X"), len(cells))
            table.columns = tuple(f"GPU{number}" for number in range(width))
        split = len(table.columns)
        # a row that comes twice (the output pasted twice) says the same; the first one counts
        table.rows.setdefault(int(row[1]), (tuple(cells[:split]), tuple(cells[split:])))
    return [table for table in found if table.rows and table.columns]


def _header(line: str) -> _Table | None:
    found = _AFFINITY.search(line)
    columns = line[: found.start() if found else len(line)].split()
    if not columns or columns[0] != "GPU0" or _has_cells(line):
        return None
    return _Table(tuple(columns), tuple(_AFFINITY.findall(line)))


def _has_cells(line: str) -> bool:
    """A row "GPU0  X  PHB" against a header "GPU0  GPU1" or "GPU0  CPU Affinity"."""
    words = line.split()
    return len(words) > 1 and (_link(words[1]) is not None or words[1] in _PEER)


def _cells(text: str, tabs: bool) -> list[str]:
    if not tabs:
        return text.split()
    return [cell.strip() for cell in text.removeprefix("\t").split("\t")]


def _is_link(cell: str) -> bool:
    return _link(cell) not in (None, "X")


def _link(cell: str) -> str | None:
    if cell == "SOC":
        # what drivers before 384 called it
        return "SYS"
    return cell if cell == "X" or _LINK.fullmatch(cell) else None


def _is_of(table: _Table, kind) -> bool:  # type: ignore[no-untyped-def]
    cells = [cell for row, _ in table.rows.values() for cell in row]
    known = sum(1 for cell in cells if kind(cell))
    others = [cell for cell in cells if cell and cell != "X" and not kind(cell) and cell not in ("N/A", "?")]
    # one lonely GPU has nothing but its X
    return known > len(others) or (not others and list(table.rows) == [0] and kind is _is_link)


def _numbers(table: _Table) -> list[int]:
    columns = {int(name[3:]) for name in table.columns if _GPU.fullmatch(name)}
    return sorted(columns | set(table.rows))


def _square(table: _Table, numbers: list[int], read) -> tuple[tuple[str | None, ...], ...]:  # type: ignore[no-untyped-def]
    at = {name: place for place, name in enumerate(table.columns)}

    def told(row: int, column: int) -> str | None:
        cells = table.rows.get(row, ((), ()))[0]
        place = at.get(f"GPU{column}", len(cells))
        return read(cells[place]) if place < len(cells) else None

    return tuple(
        tuple("X" if row == column else told(row, column) or told(column, row) for column in numbers) for row in numbers
    )


def _cut(table: _Table | None, numbers: list[int]) -> list[str]:
    if table is None:
        return []
    short = [
        number
        for number in numbers
        if len([cell for cell in table.rows.get(number, ((), ()))[0] if _link(cell)]) < len(table.columns)
    ]
    return [f"the table is cut: {_names(short)} {'has' if len(short) == 1 else 'have'} no whole row"] if short else []


def _one_sided(square: tuple[tuple[str | None, ...], ...]) -> list[str]:
    return [
        f"GPU{row} to GPU{column} is {square[row][column]} in one row and {square[column][row]} in the other"
        for row in range(len(square))
        for column in range(row)
        if square[row][column] != square[column][row]
    ]


def _gpu(place: int, table: _Table, number: int) -> Gpu:
    behind = table.rows.get(number, ((), ()))[1]
    by_name = dict(zip(table.affinity, behind, strict=False))
    if not table.affinity and behind:
        by_name = {"CPU Affinity": behind[0], **({"NUMA Affinity": behind[1]} if len(behind) > 1 else {})}
    cpus, nodes = by_name.get("CPU Affinity", ""), by_name.get("NUMA Affinity", "")
    return Gpu(
        index=place,
        cpus=cpus if _CPUS.fullmatch(cpus) else None,
        # a GPU near several nodes ("0-1") is near none of them in particular
        numa=int(nodes) if _NODES.fullmatch(nodes) and nodes.isdigit() else None,
    )


def _names(numbers: list[int]) -> str:
    return ", ".join(f"GPU{number}" for number in numbers)
