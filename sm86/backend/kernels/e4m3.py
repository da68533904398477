"""e4m3 without hardware: encode and decode with integers, for torch and inside Triton kernels.

SM86 has no e4m3 conversion and Triton refuses the type there, so codes are plain bytes everywhere.
A scale is always a power of two (UE8M0), so a decoded value is exact in bf16 and in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sm86.backend.layout import E4M3_MAX, MIN_ABSMAX

DOT_TYPE = tl.constexpr(tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16)
"""Operand type of matrix products: Triton's interpreter multiplies the bit patterns of bf16 as integers.
Every operand is a bf16 value either way, so products are exact in both."""

_NORMAL_FROM = (127 - 6) << 23
"""fp32 bits of 2^-6: below it an e4m3 value is subnormal, a multiple of 2^-9."""


def encode(values: torch.Tensor) -> torch.Tensor:
    """fp32 [...] -> e4m3 codes, uint8 [...]: nearest, ties to even, saturating at 448; NaN becomes 0x7f.

    Torch's own cast turns infinities and values beyond 464 into NaN; the cache's writers clamp first, and so does this.
    """
    x = values.float()
    bits = x.view(torch.int32)
    sign = (bits >> 24) & 0x80
    magnitude = (bits & 0x7FFFFFFF).clamp(max=0x43E00000)
    # Keeping three mantissa bits is dropping twenty: add half of the last kept place, less one unless it is odd.
    rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    normal = rounded - ((127 - 7) << 3)
    subnormal = torch.round(magnitude.view(torch.float32) * 512.0).to(torch.int32)
    code = torch.where(magnitude < _NORMAL_FROM, subnormal, normal)
    code = torch.where(torch.isnan(x), torch.full_like(code, 0x7F), code)
    return (code | sign).to(torch.uint8)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """e4m3 codes, uint8 [...] -> fp32 [...], exact for the 254 finite codes; 0x7f and 0xff give NaN."""
    c = codes.to(torch.int32)
    magnitude = c & 0x7F
    # The seven bits stand in fp32's exponent and mantissa as they are; the bias differs by 120.
    normal = ((magnitude << 20) + (120 << 23)).view(torch.float32)
    subnormal = magnitude.to(torch.float32) * 2.0**-9
    value = torch.where(magnitude < 8, subnormal, normal)
    value = torch.where(magnitude == 0x7F, torch.full_like(value, float("nan")), value)
    return torch.where((c & 0x80) != 0, -value, value)


def scale_exponent(absmax: torch.Tensor) -> torch.Tensor:
    """fp32 absolute maxima -> int32 exponents e of the group scale: 2^e = 2^ceil(log2(max(absmax, 1e-4) / 448)).

    Taken from the bits, so a maximum that is exactly 448 * 2^k gets e = k on every machine.
    """
    ratio = absmax.float().clamp_min(MIN_ABSMAX) * (1.0 / E4M3_MAX)
    bits = ratio.view(torch.int32)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """int32 exponents -126..127 -> fp32 2^e, exact."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def quantize_groups(values: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 [..., n*group] -> (codes uint8 [..., n*group], exponents int32 [..., n])."""
    parts = values.float().unflatten(-1, (-1, group))
    exponent = scale_exponent(parts.abs().amax(-1))
    codes = encode(parts * power_of_two(-exponent).unsqueeze(-1))
    return codes.flatten(-2), exponent


@triton.jit
def encode_bits(x):
    """Triton: fp32 -> e4m3 code as int32 (0..255); the same rounding as `encode`."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)
    rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    normal = rounded - 960
    # Adding 2^23 leaves a rounded integer (ties to even) in the mantissa: no rounding instruction is needed.
    lifted = magnitude.to(tl.float32, bitcast=True) * 512.0 + 8388608.0
    subnormal = lifted.to(tl.int32, bitcast=True) & 0xF
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    code = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7F, code)
    return code | sign


@triton.jit
def decode_bits(code):
    """Triton: e4m3 code (any integer type) -> fp32, exact for finite codes; NaN codes give +-480."""
    c = code.to(tl.int32)
    magnitude = c & 0x7F
    sign = (c & 0x80) << 24
    # Through fp16, where no code becomes an fp32 subnormal: those could be flushed to zero.
    half = (magnitude << 7).to(tl.int16).to(tl.float16, bitcast=True)
    value = half.to(tl.float32) * 256.0
    return (value.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def scale_exponent_bits(absmax):
    """Triton: the same as `scale_exponent`."""
    ratio = tl.maximum(absmax, 1e-4) * (1.0 / 448.0)
    bits = ratio.to(tl.int32, bitcast=True)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def power_of_two_bits(exponent):
    """Triton: the same as `power_of_two`."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def rounded_bf16(x):
    """Triton: fp32 -> the nearest bf16 (ties to even), by integers: Triton's interpreter truncates in its cast."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(x != x, bits, nearest).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def _encode_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + at, encode_bits(value).to(tl.uint8), mask=at < n)


@triton.jit
def _decode_kernel(codes, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + at, mask=at < n, other=0)
    tl.store(out + at, decode_bits(code), mask=at < n)


def encode_on_device(values: torch.Tensor) -> torch.Tensor:
    """Contiguous fp32 or bf16 [n] -> uint8 [n] with the kernels' own encode (tests, not the serving path)."""
    out = torch.empty(values.shape, dtype=torch.uint8, device=values.device)
    _encode_kernel[(triton.cdiv(values.numel(), 1024),)](values, out, values.numel(), BLOCK=1024)
    return out


def decode_on_device(codes: torch.Tensor) -> torch.Tensor:
    """Contiguous uint8 [n] -> fp32 [n] with the kernels' own decode (tests, not the serving path)."""
    out = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
    _decode_kernel[(triton.cdiv(codes.numel(), 1024),)](codes, out, codes.numel(), BLOCK=1024)
    return out
