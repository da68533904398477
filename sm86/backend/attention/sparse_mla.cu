// Sparse MLA attention for SM86: queries against entries of the fp8_ds_mla cache, read where they lie.
//
// One block takes one token and eight heads, and every S-th share of its keys. S^T = K Q^T and O^T = V^T P^T with
// mma.m16n8k16: keys (then dims) fill M = 16 and the eight heads fill N = 8, so no padded head row is computed.
// Records go to shared memory as they are (cp.async) and are decoded in registers between ldmatrix and mma:
// an e4m3 code moved into a bf16 is its value times 2^-120, and one bf16x2 fma by 2^120 * scale makes it exact.
//
// Layout in shared memory: Q as mma fragments | BT rows of 576 bytes, 16-byte chunks swizzled by (row >> 1) & 3 so that
// ldmatrix has no bank conflicts without padding | BT x 8 scale bytes | partial scores | key mask.
// The eight warps split QK over keys and dims, meet in shared memory, repeat the softmax, and own 64 dims each in PV.
//
// Lengths are read on the device and clamped to the index width: a graph replays with any lengths, garbage included.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kRecord = 576;               // bytes of a record
constexpr int kScales = 8;                 // bytes of its scales
constexpr int kQueryBytes = 16 * 32 * 16;  // Q of eight heads as B fragments
constexpr int kMaxSplits = 36;             // what the combine's registers hold
constexpr float kNoKey = -1e30f;           // running maximum before the first key; finite, so differences are never NaN
constexpr float kLog2e = 1.4426950408889634f;

enum Combine { kSingle = 0, kLastBlock = 1, kShared = 2 };

}  // namespace

// Mirrored field by field in native.py.
struct SparseMlaArgs {
  const __nv_bfloat16* query;
  long long query_stride;
  const uint8_t* window_cache;
  long long window_block_stride;
  const int* window_index;
  long long window_index_stride;
  const int* window_length;
  const uint8_t* extra_cache;
  long long extra_block_stride;
  const int* extra_index;
  long long extra_index_stride;
  const int* extra_length;
  const float* sink;
  __nv_bfloat16* out;
  long long out_stride;
  float* partial;
  float* partial_ml;
  int* counters;
  int window_log2, window_width, extra_log2, extra_width;
  int tokens, heads, splits, counter_rows;
  float scale_log2;
};

namespace {

struct Grid {
  float inverse_splits;
  int full_tiles_per_split;
};

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool take) {
  int bytes = take ? 16 : 0;  // 0: zero fill
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy8(uint32_t to, const void* from, bool take) {
  int bytes = take ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_done() {
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void load_matrix(uint32_t at, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrix_transposed(uint32_t at, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ uint4 load_shared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_byte(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void multiply(float4& c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t scale_pair(uint32_t value, uint32_t by) {
  // The product of two bf16 pairs as an fma: that form exists from SM80 on and keeps subnormals.
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(value), "r"(by), "r"(0x80008000u));
  return d;
}
// Four e4m3 codes -> the even and the odd pair as bf16x2, times `by` = bf16x2 of 2^120 * scale.
__device__ __forceinline__ void decode(uint32_t codes, uint32_t by, uint32_t& even, uint32_t& odd) {
  even = scale_pair(((codes << 4) & 0x07f007f0u) | ((codes << 8) & 0x80008000u), by);
  odd = scale_pair(((codes >> 4) & 0x07f007f0u) | (codes & 0x80008000u), by);
}
// Two UE8M0 bytes at bits 0..7 and 16..23 -> bf16x2 of 2^(byte - 127 + 120). Bytes up to 134 (absmax 57344).
__device__ __forceinline__ uint32_t multiplier(uint32_t two_bytes) { return two_bytes * 128u + 0x3c003c00u; }
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float inverse_or_zero(float x) { return x > 0.f ? 1.f / x : 0.f; }

// How a token's keys are cut into tiles and the tiles into splits. Floats, since an integer division costs more.
struct Share {
  int window, extra;        // keys
  int window_tiles, tiles;  // tiles of the window, of both
  int per_split, active;    // tiles per split, splits that have any
};
template <int BT>
__device__ __forceinline__ Share share_of(const SparseMlaArgs& p, const Grid& grid, int token) {
  Share s;
  s.window = min(max(p.window_length[token], 0), p.window_width);
  s.extra = p.extra_length ? min(max(p.extra_length[token], 0), p.extra_width) : 0;
  s.window_tiles = (s.window + BT - 1) / BT;
  s.tiles = s.window_tiles + (s.extra + BT - 1) / BT;
  s.per_split = max(1, (int)(((float)(s.tiles + p.splits - 1) + 0.5f) * grid.inverse_splits));
  s.active = max(1, (int)__fdividef((float)(s.tiles + s.per_split - 1) + 0.5f, (float)s.per_split));
  return s;
}

// Sixteen dims of O^T for two heads -> bf16. In NoPE tiles a lane holds neighbouring dims (the even/odd decode), in RoPE tiles not.
__device__ __forceinline__ void store_tile(__nv_bfloat16* head0, __nv_bfloat16* head1, int tile, int g, float4 c) {
  if (tile < 28) {
    int d = tile * 16 + 2 * g;
    *reinterpret_cast<uint32_t*>(head0 + d) = pack(c.x, c.z);
    *reinterpret_cast<uint32_t*>(head1 + d) = pack(c.y, c.w);
  } else {
    int d = 448 + (tile - 28) * 16 + g;
    head0[d] = __float2bfloat16(c.x);
    head0[d + 8] = __float2bfloat16(c.z);
    head1[d] = __float2bfloat16(c.y);
    head1[d + 8] = __float2bfloat16(c.w);
  }
}

__device__ __forceinline__ void add_scaled(float4& a, float4 v, float f0, float f1) {
  a.x += v.x * f0;
  a.y += v.y * f1;
  a.z += v.z * f0;
  a.w += v.w * f1;
}

// Weights of the splits' partial results: lane -> head lane & 7, splits (lane >> 3) + 4k.
struct Weights {
  float of[kMaxSplits / 4];
  float inverse0, inverse1;  // of the denominators of this lane's two heads
};
__device__ __forceinline__ Weights weights_of(const float2* ml, int active, int lane, int t4, float sink0, float sink1) {
  constexpr int kRounds = kMaxSplits / 4;
  float2 v[kRounds];
  float top = kNoKey, total = 0.f;
#pragma unroll
  for (int k = 0; k < kRounds; k++) {
    int i = (lane >> 3) + 4 * k;
    v[k] = i < active ? __ldcg(ml + i * 8 + (lane & 7)) : make_float2(kNoKey, 0.f);
  }
#pragma unroll
  for (int k = 0; k < kRounds; k++) top = fmaxf(top, v[k].x);
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
  Weights w;
#pragma unroll
  for (int k = 0; k < kRounds; k++) {
    w.of[k] = exp2_fast(v[k].x - top);
    total += v[k].y * w.of[k];
  }
  total += __shfl_xor_sync(~0u, total, 8);
  total += __shfl_xor_sync(~0u, total, 16);
  w.inverse0 = inverse_or_zero(__shfl_sync(~0u, total, 2 * t4) + exp2_fast(sink0 - __shfl_sync(~0u, top, 2 * t4)));
  w.inverse1 = inverse_or_zero(__shfl_sync(~0u, total, 2 * t4 + 1) + exp2_fast(sink1 - __shfl_sync(~0u, top, 2 * t4 + 1)));
  return w;
}

template <int KT>
constexpr int shared_bytes() {
  return kQueryBytes + KT * 16 * (kRecord + kScales) + 8 * 8 * 16 * 4 + KT * 16 * 4;
}

template <int KT, int COMBINE>
__global__ void __launch_bounds__(256, 2) sparse_mla(const SparseMlaArgs p, const Grid grid) {
  constexpr int BT = KT * 16;          // keys per tile
  constexpr int DS = 8 / KT;           // shares of the dims in QK
  constexpr int UNITS = 8 / DS;        // 64-dim groups per share
  constexpr int LANES = 16 / KT;       // lanes that load one record
  constexpr int CHUNKS = (36 + LANES - 1) / LANES;
  extern __shared__ __align__(128) uint8_t memory[];
  uint8_t* const records = memory + kQueryBytes;
  float* const scores = reinterpret_cast<float*>(records + BT * (kRecord + kScales));  // [DS][8][BT], key ^ 8 * (head >> 1)
  float* const mask = scores + DS * 8 * BT;                                            // [BT]: 0 or -inf
  __shared__ int is_last;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t4 = lane & 3;
  const int split = blockIdx.x, group = blockIdx.y, token = blockIdx.z;
  const int* const window_index = p.window_index + (long long)token * p.window_index_stride;
  const int* const extra_index = p.extra_width ? p.extra_index + (long long)token * p.extra_index_stride : nullptr;
  const int row = warp * (2 * KT) + lane / LANES, part = lane % LANES;

  // The first tile's index is loaded where full lengths would put it, at the same time as the lengths: mostly right.
  const int full_window_tiles = (p.window_width + BT - 1) / BT;
  const int full_tiles = full_window_tiles + (p.extra_width + BT - 1) / BT;
  const int guess = split * grid.full_tiles_per_split;
  int guessed = -1;
  if (guess < full_tiles) {
    const bool extra = guess >= full_window_tiles;
    const int k = (extra ? guess - full_window_tiles : guess) * BT + row;
    if (k < (extra ? p.extra_width : p.window_width)) guessed = __ldg((extra ? extra_index : window_index) + k);
  }
  uint4 fragment[2];
  {
    const __nv_bfloat16* q = p.query + (long long)token * p.query_stride + group * 8 * 512;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int pair = (threadIdx.x + i * 256) >> 5;
      const __nv_bfloat16* at = q + g * 512 + pair * 32;
      if (pair < 14) {
        const uint2 a = *reinterpret_cast<const uint2*>(at + t4 * 4), b = *reinterpret_cast<const uint2*>(at + 16 + t4 * 4);
        fragment[i] = make_uint4(a.x, a.y, b.x, b.y);
      } else {
        at += t4 * 2;
        fragment[i] = make_uint4(*reinterpret_cast<const uint32_t*>(at), *reinterpret_cast<const uint32_t*>(at + 8),
                                 *reinterpret_cast<const uint32_t*>(at + 16), *reinterpret_cast<const uint32_t*>(at + 24));
      }
    }
  }
  const int head = group * 8 + 2 * t4;
  const float sink0 = __ldg(p.sink + head) * kLog2e, sink1 = __ldg(p.sink + head + 1) * kLog2e;
  const Share share = share_of<BT>(p, grid, token);
  if (split >= share.active) return;
  int tile = split * share.per_split;
  const int end = min(share.tiles, tile + share.per_split);

  auto index_of = [&](int t) {
    if (t >= end) return -1;
    const bool extra = t >= share.window_tiles;
    const int k = (extra ? t - share.window_tiles : t) * BT + row;
    return k < (extra ? share.extra : share.window) ? __ldg((extra ? extra_index : window_index) + k) : -1;
  };
  auto fetch = [&](int t, int index) {
    if (t >= end) return;
    const bool extra = t >= share.window_tiles;
    const int log2 = extra ? p.extra_log2 : p.window_log2, safe = max(index, 0), slot = safe & ((1 << log2) - 1);
    const uint8_t* page = (extra ? p.extra_cache : p.window_cache) +
                          (long long)(safe >> log2) * (extra ? p.extra_block_stride : p.window_block_stride);
    const uint8_t* from = page + slot * kRecord + part * 16;
    const uint32_t to = shared_address(records) + row * kRecord + (part ^ ((row >> 1) & 3)) * 16;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
      if (36 % LANES == 0 || i * LANES + part < 36) copy16(to + i * (LANES * 16), from + i * (LANES * 16), index >= 0);
    if (part == 0)
      copy8(shared_address(records) + BT * kRecord + row * kScales, page + (kRecord << log2) + slot * kScales, index >= 0);
  };

  int index;
  if (tile == guess && guess < full_tiles && tile < share.tiles &&
      (share.window_tiles == full_window_tiles || (tile < share.window_tiles && tile < full_window_tiles))) {
    const bool extra = tile >= share.window_tiles;
    const int k = (extra ? tile - share.window_tiles : tile) * BT + row;
    index = k < (extra ? share.extra : share.window) ? guessed : -1;
  } else {
    index = index_of(tile);
  }
  fetch(tile, index);
  int next = index_of(tile + 1);

  // A b16 ldmatrix gives a lane four neighbouring codes of a key; their even and odd bytes become two A registers,
  // so Q's NoPE dims are permuted once to match.
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int e = threadIdx.x + i * 256;
    uint4 f = fragment[i];
    if ((e >> 5) < 14)
      f = make_uint4(__byte_perm(f.x, f.y, 0x5410), __byte_perm(f.x, f.y, 0x7632), __byte_perm(f.z, f.w, 0x5410),
                     __byte_perm(f.z, f.w, 0x7632));
    *reinterpret_cast<uint4*>(memory + e * 16) = f;
  }

  float4 acc[4];
#pragma unroll
  for (int i = 0; i < 4; i++) acc[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  float top = kNoKey, total = 0.f;  // of head g
  const int key_share = warp % KT, dim_share = warp / KT;
  const uint32_t base = shared_address(records), scale_base = base + BT * kRecord;
  const uint32_t lane_row = base + (((lane >> 3) & 1) * 8 + (lane & 7)) * kRecord;
  const uint32_t even_pair = lane_row + ((lane >> 4) ^ ((lane & 7) >> 1)) * 16;
  const uint32_t odd_pair = lane_row + ((2 + (lane >> 4)) ^ ((lane & 7) >> 1)) * 16;

  for (; tile < end; tile++) {
    if (part == 0) mask[row] = index >= 0 ? 0.f : -INFINITY;
    copies_done();
    __syncthreads();
    {  // ---- partial S^T: this warp's 16 keys and 512 / DS dims
      float4 c[4];
#pragma unroll
      for (int i = 0; i < 4; i++) c[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      const uint32_t even_at = even_pair + key_share * 16 * kRecord, odd_at = odd_pair + key_share * 16 * kRecord;
      const uint32_t query_at = shared_address(memory) + lane * 16 + dim_share * UNITS * 1024;
      const uint32_t scales_at = scale_base + (key_share * 16 + g) * kScales + dim_share * UNITS;
#pragma unroll
      for (int i = 0; i < UNITS; i++) {
        const uint4 q0 = load_shared16(query_at + i * 1024), q1 = load_shared16(query_at + i * 1024 + 512);
        const int unit = dim_share * UNITS + i;
        if (i < UNITS - 1 || unit < 7) {
          uint32_t r[4], x[4], e0, o0, e1, o1;
          load_matrix(even_at + unit * 64, r);
          load_matrix(odd_at + unit * 64, x);
          const uint32_t by0 = multiplier(load_shared_byte(scales_at + i) * 0x10001u);
          const uint32_t by1 = multiplier(load_shared_byte(scales_at + i + 8 * kScales) * 0x10001u);
          decode(r[0], by0, e0, o0); decode(r[1], by1, e1, o1); multiply(c[0], e0, e1, o0, o1, q0.x, q0.y);
          decode(r[2], by0, e0, o0); decode(r[3], by1, e1, o1); multiply(c[1], e0, e1, o0, o1, q0.z, q0.w);
          decode(x[0], by0, e0, o0); decode(x[1], by1, e1, o1); multiply(c[2], e0, e1, o0, o1, q1.x, q1.y);
          decode(x[2], by0, e0, o0); decode(x[3], by1, e1, o1); multiply(c[3], e0, e1, o0, o1, q1.z, q1.w);
        } else {  // the 64 RoPE dims are bf16 already
          uint32_t r[4];
          load_matrix(even_at + 448, r); multiply(c[0], r[0], r[1], r[2], r[3], q0.x, q0.y);
          load_matrix(odd_at + 448, r); multiply(c[1], r[0], r[1], r[2], r[3], q0.z, q0.w);
          load_matrix(even_at + 512, r); multiply(c[2], r[0], r[1], r[2], r[3], q1.x, q1.y);
          load_matrix(odd_at + 512, r); multiply(c[3], r[0], r[1], r[2], r[3], q1.z, q1.w);
        }
      }
      float* low = scores + (dim_share * 8 + 2 * t4) * BT + ((key_share * 16) ^ (8 * t4)) + g;
      float* high = scores + (dim_share * 8 + 2 * t4) * BT + ((key_share * 16 + 8) ^ (8 * t4)) + g;
      low[0] = c[0].x + c[1].x + c[2].x + c[3].x;
      low[BT] = c[0].y + c[1].y + c[2].y + c[3].y;
      high[0] = c[0].z + c[1].z + c[2].z + c[3].z;
      high[BT] = c[0].w + c[1].w + c[2].w + c[3].w;
    }
    __syncthreads();
    uint32_t prob[KT][2];
    {  // ---- online softmax of head g over the tile's keys, by every warp alike
      float v[KT * 4];
      const float* at = scores + g * BT + 2 * t4;
      const int swizzle = 8 * ((g >> 1) & 3);
#pragma unroll
      for (int i = 0; i < KT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float2 a = *reinterpret_cast<const float2*>(at + ((i * 16 + h * 8) ^ swizzle));
#pragma unroll
          for (int d = 1; d < DS; d++) {
            const float2 b = *reinterpret_cast<const float2*>(at + d * 8 * BT + ((i * 16 + h * 8) ^ swizzle));
            a.x += b.x;
            a.y += b.y;
          }
          const float2 m = *reinterpret_cast<const float2*>(mask + i * 16 + h * 8 + 2 * t4);
          v[i * 4 + h * 2] = a.x * p.scale_log2 + m.x;
          v[i * 4 + h * 2 + 1] = a.y * p.scale_log2 + m.y;
        }
      float peak = top;
#pragma unroll
      for (int i = 0; i < KT * 4; i++) peak = fmaxf(peak, v[i]);
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
      const float keep = exp2_fast(top - peak);
      const bool rescale = __any_sync(~0u, peak != top && top != kNoKey);
      top = peak;
      total *= keep;
#pragma unroll
      for (int i = 0; i < KT * 4; i++) {
        v[i] = exp2_fast(v[i] - peak);
        total += v[i];
      }
#pragma unroll
      for (int i = 0; i < KT; i++) {
        prob[i][0] = pack(v[i * 4], v[i * 4 + 1]);
        prob[i][1] = pack(v[i * 4 + 2], v[i * 4 + 3]);
      }
      if (rescale) {
        const float a0 = __shfl_sync(~0u, keep, 8 * t4), a1 = __shfl_sync(~0u, keep, 8 * t4 + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          acc[i].x *= a0;
          acc[i].y *= a1;
          acc[i].z *= a0;
          acc[i].w *= a1;
        }
      }
    }
    // ---- O^T: this warp's 64 dims (a scale group, or RoPE for the last warp)
    if (warp < 7) {
#pragma unroll
      for (int i = 0; i < KT; i++) {
        const uint32_t scales_at = scale_base + (i * 16 + 2 * t4) * kScales + warp;
        uint32_t r[4], x[4], e0, o0, e1, o1;
        load_matrix_transposed(even_pair + i * 16 * kRecord + warp * 64, r);
        load_matrix_transposed(odd_pair + i * 16 * kRecord + warp * 64, x);
        const uint32_t by0 = multiplier(load_shared_byte(scales_at) + load_shared_byte(scales_at + kScales) * 65536u);
        const uint32_t by1 = multiplier(load_shared_byte(scales_at + 8 * kScales) + load_shared_byte(scales_at + 9 * kScales) * 65536u);
        decode(r[0], by0, e0, o0); decode(r[1], by1, e1, o1); multiply(acc[0], e0, o0, e1, o1, prob[i][0], prob[i][1]);
        decode(r[2], by0, e0, o0); decode(r[3], by1, e1, o1); multiply(acc[1], e0, o0, e1, o1, prob[i][0], prob[i][1]);
        decode(x[0], by0, e0, o0); decode(x[1], by1, e1, o1); multiply(acc[2], e0, o0, e1, o1, prob[i][0], prob[i][1]);
        decode(x[2], by0, e0, o0); decode(x[3], by1, e1, o1); multiply(acc[3], e0, o0, e1, o1, prob[i][0], prob[i][1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < KT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          uint32_t r[4];
          load_matrix_transposed((j & 1 ? odd_pair : even_pair) + i * 16 * kRecord + 448 + (j >> 1) * 64, r);
          multiply(acc[j], r[0], r[2], r[1], r[3], prob[i][0], prob[i][1]);
        }
    }
    if (tile + 1 < end) {
      __syncthreads();
      index = next;
      fetch(tile + 1, index);
      next = index_of(tile + 2);
    }
  }
  total += __shfl_xor_sync(~0u, total, 1);
  total += __shfl_xor_sync(~0u, total, 2);

  __nv_bfloat16* const out0 = p.out + (long long)token * p.out_stride + head * 512;
  __nv_bfloat16* const out1 = out0 + 512;
  if (COMBINE == kSingle || share.active == 1) {
    const float inverse0 = inverse_or_zero(__shfl_sync(~0u, total, 8 * t4) + exp2_fast(sink0 - __shfl_sync(~0u, top, 8 * t4)));
    const float inverse1 =
        inverse_or_zero(__shfl_sync(~0u, total, 8 * t4 + 4) + exp2_fast(sink1 - __shfl_sync(~0u, top, 8 * t4 + 4)));
#pragma unroll
    for (int i = 0; i < 4; i++)
      store_tile(out0, out1, warp * 4 + i, g,
                 make_float4(acc[i].x * inverse0, acc[i].y * inverse1, acc[i].z * inverse0, acc[i].w * inverse1));
    return;
  }
  if (COMBINE == kSingle) return;

  // ---- several splits: leave the partial result, count, and combine in a fixed order (bit-equal repeats)
  const long long place = (long long)token * gridDim.y + group;
  float4* const partial = reinterpret_cast<float4*>(p.partial) + place * p.splits * 1024;
  float2* const ml = reinterpret_cast<float2*>(p.partial_ml) + place * p.splits * 8;
#pragma unroll
  for (int i = 0; i < 4; i++) __stcg(partial + (long long)split * 1024 + warp * 128 + i * 32 + lane, acc[i]);
  if (warp == 0 && t4 == 0) __stcg(ml + split * 8 + g, make_float2(top, total));
  __threadfence();
  __syncthreads();

  if (COMBINE == kLastBlock) {
    if (threadIdx.x == 0) {
      const int before = atomicAdd(p.counters + place, 1);
      is_last = before == share.active - 1;
      if (is_last) p.counters[place] = 0;  // ready for the next launch
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    const Weights w = weights_of(ml, share.active, lane, t4, sink0, sink1);
#pragma unroll
    for (int i = 0; i < 4; i++) acc[i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int k = 0; k < kMaxSplits / 4; k++) {
      if (4 * k < share.active) {
        float4 x[4][4];
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
          for (int j = 0; j < 4; j++)
            x[q][j] = 4 * k + q < share.active ? __ldcg(partial + (long long)(4 * k + q) * 1024 + warp * 128 + j * 32 + lane)
                                               : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const float f0 = __shfl_sync(~0u, w.of[k], q * 8 + 2 * t4), f1 = __shfl_sync(~0u, w.of[k], q * 8 + 2 * t4 + 1);
#pragma unroll
          for (int j = 0; j < 4; j++) add_scaled(acc[j], x[q][j], f0, f1);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
      store_tile(out0, out1, warp * 4 + j, g,
                 make_float4(acc[j].x * w.inverse0, acc[j].y * w.inverse1, acc[j].z * w.inverse0, acc[j].w * w.inverse1));
  } else {
    // Up to four blocks wait for the others and combine a quarter each. The host allows this only when every block
    // of the grid is resident at once, so nobody waits for a block that cannot start.
    const int helpers = min(4, share.active);
    if (threadIdx.x == 0) {
      atomicAdd(p.counters + place, 1);
      if (split < helpers) {
        int seen;
        do {
          asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(p.counters + place) : "memory");
        } while (seen < share.active);
      }
    }
    if (split >= helpers) return;
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(p.counters + p.counter_rows + place, 1) == helpers - 1) {
      p.counters[place] = 0;
      p.counters[p.counter_rows + place] = 0;
    }
    const Weights w = weights_of(ml, share.active, lane, t4, sink0, sink1);
    for (int t = split * 8 + warp; t < 32; t += helpers * 8) {
      float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int first = 0; first < kMaxSplits; first += 12) {
        if (first < share.active) {
          float4 y[12];
#pragma unroll
          for (int r = 0; r < 12; r++)
            y[r] = first + r < share.active ? __ldcg(partial + (long long)(first + r) * 1024 + t * 32 + lane)
                                            : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
          for (int r = 0; r < 12; r++) {
            const float f0 = __shfl_sync(~0u, w.of[(first + r) >> 2], ((first + r) & 3) * 8 + 2 * t4);
            const float f1 = __shfl_sync(~0u, w.of[(first + r) >> 2], ((first + r) & 3) * 8 + 2 * t4 + 1);
            add_scaled(a, y[r], f0, f1);
          }
        }
      }
      store_tile(out0, out1, t, g, make_float4(a.x * w.inverse0, a.y * w.inverse1, a.z * w.inverse0, a.w * w.inverse1));
    }
  }
}

template <int KT, int COMBINE>
int launch(const SparseMlaArgs& p, cudaStream_t stream) {
  constexpr int BT = KT * 16;
  const int tiles = (p.window_width + BT - 1) / BT + (p.extra_width + BT - 1) / BT;
  const Grid grid{1.f / p.splits, (tiles + p.splits - 1) / p.splits};
  // Once per device would do; it costs under a microsecond and no stream operation, so captures allow it.
  cudaError_t error = cudaFuncSetAttribute(sparse_mla<KT, COMBINE>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<KT>());
  if (error != cudaSuccess) return (int)error;
  sparse_mla<KT, COMBINE><<<dim3(p.splits, p.heads / 8, p.tokens), 256, shared_bytes<KT>(), stream>>>(p, grid);
  return (int)cudaGetLastError();
}

}  // namespace

// 0, a CUDA error code, or a negative number for arguments that no kernel takes.
extern "C" int sm86_sparse_mla(const SparseMlaArgs* p, int tile_keys, int combine, void* stream) {
  cudaStream_t s = (cudaStream_t)stream;
  if (p->heads % 8 || p->heads <= 0 || p->tokens <= 0 || p->splits < 1 || p->splits > kMaxSplits) return -1;
  if (combine == kSingle && p->splits != 1) return -2;
  if (combine != kSingle && (long long)p->tokens * (p->heads / 8) > p->counter_rows) return -3;
  switch (tile_keys * 10 + combine) {
    case 640: return launch<4, kSingle>(*p, s);
    case 641: return launch<4, kLastBlock>(*p, s);
    case 642: return launch<4, kShared>(*p, s);
    case 321: return launch<2, kLastBlock>(*p, s);
    case 322: return launch<2, kShared>(*p, s);
    case 320: return launch<2, kSingle>(*p, s);
  }
  return -4;
}

#ifndef SM86_SOURCE_HASH
#define SM86_SOURCE_HASH "unknown"
#endif
extern "C" const char* sm86_source_hash() { return SM86_SOURCE_HASH; }
extern "C" int sm86_sparse_mla_args_size() { return (int)sizeof(SparseMlaArgs); }
extern "C" int sm86_max_splits() { return kMaxSplits; }
extern "C" const char* sm86_cuda_error(int code) { return cudaGetErrorString((cudaError_t)code); }
