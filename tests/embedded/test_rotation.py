"""The permutation of q and k, proven against the forward formula: attention scores are the same."""

from __future__ import annotations

import numpy
import pytest

from sm86.embedded.llama_gguf import undo_interleaving

BASE = 100000.0


def angles(positions: numpy.ndarray, head: int) -> numpy.ndarray:
    """[positions, head / 2]"""
    return positions[:, None] / BASE ** (numpy.arange(0, head, 2) / head)


def rotate_interleaved(x: numpy.ndarray, theta: numpy.ndarray) -> numpy.ndarray:
    """GGUF's llama: the pair (2i, 2i+1) turns by angle i. x: [positions, heads, head]"""
    cos, sin = numpy.cos(theta)[:, None, :], numpy.sin(theta)[:, None, :]
    out = numpy.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def rotate_halves(x: numpy.ndarray, theta: numpy.ndarray) -> numpy.ndarray:
    """Hugging Face's llama: x cos + rotate_half(x) sin, the pair (i, i + head/2) turns by angle i."""
    half = x.shape[-1] // 2
    cos = numpy.concatenate([numpy.cos(theta)] * 2, -1)[:, None, :]
    sin = numpy.concatenate([numpy.sin(theta)] * 2, -1)[:, None, :]
    return x * cos + numpy.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def scores(rotate, wq, wk, hidden, heads, kv_heads):
    """Attention scores [heads, positions, positions] of grouped queries."""
    positions, head = hidden.shape[0], wq.shape[0] // heads
    theta = angles(numpy.arange(positions, dtype=numpy.float64), head)
    q = rotate((hidden @ wq.T).reshape(positions, heads, head), theta)
    k = rotate((hidden @ wk.T).reshape(positions, kv_heads, head), theta)
    k = numpy.repeat(k, heads // kv_heads, axis=1)
    return numpy.einsum("qhd,khd->hqk", q, k)


@pytest.mark.parametrize(("heads", "kv_heads", "head"), [(9, 3, 64), (4, 4, 8), (8, 1, 2), (2, 1, 6)])
def test_converted_weights_give_the_same_attention_scores(heads, kv_heads, head):
    rng = numpy.random.default_rng(7)
    width = 32
    wq, wk = rng.standard_normal((heads * head, width)), rng.standard_normal((kv_heads * head, width))
    hidden = rng.standard_normal((11, width))
    original = scores(rotate_interleaved, wq, wk, hidden, heads, kv_heads)
    converted = scores(
        rotate_halves, undo_interleaving(wq, heads), undo_interleaving(wk, kv_heads), hidden, heads, kv_heads
    )
    numpy.testing.assert_allclose(converted, original, rtol=1e-9, atol=1e-9)
    if head > 2:
        left_as_it_was = scores(rotate_halves, wq, wk, hidden, heads, kv_heads)
        assert numpy.abs(left_as_it_was - original).max() > 1, "the test would not see a missing permutation"


def test_it_undoes_what_the_exporter_of_gguf_does():
    """The exporter's permutation: [heads, 2, half, width] with the two middle axes swapped."""
    rng = numpy.random.default_rng(3)
    weight = rng.standard_normal((3 * 8, 5))
    exported = weight.reshape(3, 2, 4, 5).swapaxes(1, 2).reshape(24, 5)
    numpy.testing.assert_array_equal(undo_interleaving(exported, 3), weight)
