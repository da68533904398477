"""Ladders: envelopes run one after another, each judged, each once; the first that fails names the next root cause."""
