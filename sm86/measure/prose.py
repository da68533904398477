"""Seeded prose for long prompts: plain sentences with a changing vocabulary, none of it copied from anywhere. Pure.

Real sentences matter: one repeated word compresses to nothing in a sparse indexer and routes to the same experts,
and so measures another server than the one people use.
"""

from __future__ import annotations

import random
from collections.abc import Iterator


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(";"))


_WHO = _phrases(
    """
    the harbour master; a retired surveyor; the younger clerk; our cook; the night ferryman; a glass cutter; the
    schoolteacher; one of the divers; the miller's daughter; a travelling dentist; the lock keeper; her uncle;
    the new magistrate; a beekeeper; the organ builder; the postmistress; an apprentice rope maker; the ship's
    carpenter; the botanist; a courier from the hills; the oldest of the brothers; the signalman; a widow from
    the quay; the printer
    """
)
_DID = _phrases(
    """
    counted; repaired; described; bought; hid; measured; sketched; returned; misplaced; borrowed; weighed;
    examined; polished; traded; carried off; catalogued; unpacked; photographed; inherited; refused; mended;
    lost sight of; asked about; wrote down
    """
)
_WHAT = _phrases(
    """
    a crate of lanterns; the brass barometer; three bolts of sailcloth; an unsigned letter; the tide tables; a
    sack of barley; the church accounts; a box of lenses; two copper kettles; the map of the marshes; a broken
    oar; the winter timetable; a jar of blue pigment; the old ledger; forty feet of chain; a basket of quinces;
    the spare key; an iron stove; a bundle of reeds; the weather diary; a pair of scales; the foghorn; some
    salted fish; a portrait in oils
    """
)
_WHERE = _phrases(
    """
    behind the granary; on the lower bridge; at the edge of the market; in the customs shed; beside the canal;
    near the signal tower; under the arcade; outside the bakery; in the upper orchard; at the ferry landing;
    along the sea wall; in a room above the chandler's; by the ruined mill; at the crossroads; inside the
    boathouse; on the chapel steps; across the water meadow; in the station yard
    """
)
_WHEN = _phrases(
    """
    before the first frost; on a Tuesday; while the river was still high; at noon; shortly after the fair; in
    the spring; when the bells had stopped; a week later; during the long drought; that same evening; early in
    the morning; as the mist was lifting; at the end of the season; without telling anyone
    """
)
_WHY = _phrases(
    """
    because the roads were closed; for the sake of an old promise; although nobody had asked for it; to settle a
    quarrel; since the price had fallen; in the hope of better weather; so that the children could learn from
    it; out of plain curiosity; which surprised the whole street; and nothing more was said of it; as the
    council had ordered; for reasons that stayed unclear
    """
)
_FRAMES = (
    "{when} {who} {did} {what} {where}.",
    "{who} {did} {what} {where}, {why}.",
    "{where}, {who} {did} {what} {when}.",
    "It was {who} who {did} {what} {when}, {why}.",
    "{when}, {why}, {who} {did} {what}.",
    "Nobody saw how {who} {did} {what}, but {other} found {thing} {where}.",
    "{who} {did} {what}; {other} only {also} {thing}.",
)


def sentences(rng: random.Random) -> Iterator[str]:
    """Sentences without end, the same for the same generator state."""
    while True:
        text = rng.choice(_FRAMES).format(
            who=rng.choice(_WHO),
            did=rng.choice(_DID),
            what=rng.choice(_WHAT),
            where=rng.choice(_WHERE),
            when=rng.choice(_WHEN),
            why=rng.choice(_WHY),
            other=rng.choice(_WHO),
            also=rng.choice(_DID),
            thing=rng.choice(_WHAT),
        )
        yield text[0].upper() + text[1:]


def words(seed: str, count: int) -> list[str]:
    """The first `count` words of the prose of that seed, with their punctuation; a paragraph ends with a line break."""
    rng = random.Random(seed)
    found: list[str] = []
    for number, sentence in enumerate(sentences(rng), 1):
        parts = sentence.split(" ")
        if number % 6 == 0:
            parts[-1] += "\n\n"
        found += parts
        if len(found) >= count:
            break
    return found[:count]
