"""The one source of truth: pins, families and envelopes as TOML, read into frozen typed classes."""

from sm86.spec.checkpoint import Checkpoint
from sm86.spec.envelope import Bench, Boot, Envelope, Graphs, Model, Published, Serve
from sm86.spec.load import PROOF, envelope_names, load_all, load_checkpoint, load_envelope, load_pins, load_proofs
from sm86.spec.pins import Pin, Pins

__all__ = [
    "PROOF",
    "Bench",
    "Boot",
    "Checkpoint",
    "Envelope",
    "Graphs",
    "Model",
    "Pin",
    "Pins",
    "Published",
    "Serve",
    "envelope_names",
    "load_all",
    "load_checkpoint",
    "load_envelope",
    "load_pins",
    "load_proofs",
]
