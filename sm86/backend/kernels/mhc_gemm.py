"""The first layer's hyper-connection GEMM: 24 mixing products of a token's hidden state, and its sum of squares.

Replaces DeepGEMM's `tf32_hc_prenorm_gemm`, which vLLM 0.26.0 calls without asking whether the GPU has it.
The products are fp32 (the hidden state is bf16, the matrix fp32), so nothing is rounded to tf32 on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def reference(hidden: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, squares: torch.Tensor) -> None:
    """hidden bf16 [n, k], matrix fp32 [m, k] -> out fp32 [splits, n, m], squares fp32 [splits, n], in place.

    The sum over the splits is the result; the reference puts everything in split 0.
    """
    wide = hidden.double()
    out.zero_()
    squares.zero_()
    out[0] = (wide @ matrix.double().t()).float()
    squares[0] = wide.square().sum(-1).float()


@triton.jit(do_not_specialize=["tokens", "per_split"])
def mhc_gemm_kernel(
    hidden,
    hidden_stride,
    matrix,
    matrix_stride,
    out,
    squares,
    tokens,
    size,
    per_split,
    MIXES: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    mix = tl.arange(0, PADDED)
    product = tl.zeros([PADDED, BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    last = tl.minimum(size, (split + 1) * per_split)
    for first in range(split * per_split, last, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(hidden + token * hidden_stride + at, mask=at < last, other=0.0).to(tl.float32)
        inside = (mix[:, None] < MIXES) & (at[None, :] < last)
        row = tl.load(matrix + mix[:, None] * matrix_stride + at[None, :], mask=inside, other=0.0)
        product += row * x[None, :]
        square += x * x
    place = split.to(tl.int64) * tokens + token
    tl.store(out + place * MIXES + mix, tl.sum(product, axis=1), mask=mix < MIXES)
    tl.store(squares + place, tl.sum(square, axis=0))


def launch(hidden: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, squares: torch.Tensor, splits: int) -> None:
    """The same as `reference`, spread over `splits` = out.shape[0] parts; the signature of the function it replaces."""
    tokens, size = hidden.shape
    if not tokens:
        return
    mixes = matrix.shape[0]
    block = 128
    per_split = triton.cdiv(triton.cdiv(size, splits), block) * block
    mhc_gemm_kernel[(tokens, splits)](
        hidden,
        hidden.stride(0),
        matrix,
        matrix.stride(0),
        out,
        squares,
        tokens,
        size,
        per_split,
        MIXES=mixes,
        PADDED=triton.next_power_of_2(mixes),
        BLOCK=block,
        num_warps=4,
    )
