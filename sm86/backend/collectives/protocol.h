// The protocol of the host-memory all-reduce: what each thread of each rank reads and writes. No CUDA names here: the
// kernels (host_allreduce.cu) and the CPU tests (tests/backend/collectives) compile these same functions, each with
// its own `Memory` (how a word is loaded and stored) and `Waiter` (how long to wait).
//
// Three algorithms. Every one adds in fp32 in the order of the ranks and rounds once, so all ranks hold equal bits.
//   packets   one-shot. Each 8 bytes are 4 bytes of data and the call's tag. Nothing is ever cleared.
//   one-shot  no flags at all: a word that is not kEmpty is data. Half the bytes of packets, but somebody must write
//             kEmpty again before the slot is used the next time (`rearm`).
//   two-shot  reduce-scatter and all-gather with the same rule; 2(N-1)/N messages' bytes instead of N-1.
//
// Why a slot is free when it is written. A rank enters call e after its call e-1 ended, that is after data of call
// e-1 of every peer was seen (directly, or through the sums of peers that needed it), and a peer writes data of call
// e-1 after its own call e-2 ended. So whoever runs call e may overwrite what it wrote in call e-2:
//   packets    2 slots; call e writes slot e mod 2.
//   sentinels  4 slots; call e writes slot e mod 4 and re-arms slot (e-2) mod 4. A peer looks at that slot again in
//              its call e+2, which it enters after it saw this rank's data of call e+1; the re-arming must therefore
//              be in memory before data of call e+1 leaves, which a fence at the end of call e ensures.
// All of this needs: the same calls on all ranks in the same order, and one stream per communicator.
#pragma once
#include "segment.h"

namespace sm86ar {

enum Algorithm { kPackets = 0, kOneShot = 1, kTwoShot = 2, kAlgorithms = 3 };
enum Type { kBf16 = 0, kF32 = 1 };

constexpr uint32_t kEmpty = 0xFFFFFFFFu;
// A message may hold kEmpty as a value: two bf16 NaNs, or one fp32 NaN. It is sent as other NaNs.
constexpr uint32_t kNan = 0x7FFF7FFFu;

// What one thread has to do: one vector. A call has at least as many threads as vectors, so no thread waits for one
// vector while a peer waits for its next.
struct Job {
  uint8_t* segment;
  Layout at;
  uint32_t call;
  int rank;
  uint32_t vectors;  // of 16 bytes, of the whole message
  uint32_t thread;   // among all threads of this rank; without work where it is not below `vectors`
};

SM86_BOTH uint32_t sendable(uint32_t w) { return w == kEmpty ? kNan : w; }
SM86_BOTH Vec sendable(const Vec& v) { return Vec{sendable(v.x), sendable(v.y), sendable(v.z), sendable(v.w)}; }
SM86_BOTH bool whole(const Vec& v) { return v.x != kEmpty && v.y != kEmpty && v.z != kEmpty && v.w != kEmpty; }
// Never 0, the content of a new segment.
SM86_BOTH uint32_t tag_of(uint32_t call) { return call + 1 ? call + 1 : 0x80000000u; }

// ---- the sum ----------------------------------------------------------------------------------------------------

template <int N>
SM86_BOTH Vec sum_f32(const Vec (&d)[N]) {
  float a = as_float(d[0].x), b = as_float(d[0].y), c = as_float(d[0].z), e = as_float(d[0].w);
  SM86_UNROLL
  for (int p = 1; p < N; p++) {
    a = add(a, as_float(d[p].x));
    b = add(b, as_float(d[p].y));
    c = add(c, as_float(d[p].z));
    e = add(e, as_float(d[p].w));
  }
  return Vec{as_word(a), as_word(b), as_word(c), as_word(e)};
}

template <int N>
SM86_BOTH uint32_t sum_pair(const uint32_t (&w)[N]) {
  float low = as_float(w[0] << 16), high = as_float(w[0] & 0xFFFF0000u);
  SM86_UNROLL
  for (int p = 1; p < N; p++) {
    low = add(low, as_float(w[p] << 16));
    high = add(high, as_float(w[p] & 0xFFFF0000u));
  }
  return bf16_pair(low, high);
}

template <int N>
SM86_BOTH Vec sum_bf16(const Vec (&d)[N]) {
  uint32_t x[N], y[N], z[N], w[N];
  SM86_UNROLL
  for (int p = 0; p < N; p++) {
    x[p] = d[p].x;
    y[p] = d[p].y;
    z[p] = d[p].z;
    w[p] = d[p].w;
  }
  return Vec{sum_pair<N>(x), sum_pair<N>(y), sum_pair<N>(z), sum_pair<N>(w)};
}

template <int N, int TYPE>
SM86_BOTH Vec sum(const Vec (&d)[N]) {
  return TYPE == kF32 ? sum_f32<N>(d) : sum_bf16<N>(d);
}

// ---- waiting ----------------------------------------------------------------------------------------------------

// One vector of every peer. All loads leave together; only what is missing is asked for again.
template <int N, class Memory, class Waiter>
SM86_BOTH bool collect(Vec (&d)[N], const uint8_t* at, uint64_t stride, int rank, Memory& m, Waiter& w) {
  SM86_UNROLL
  for (int p = 0; p < N; p++)
    if (p != rank) d[p] = m.load(at + p * stride);
  for (;;) {
    uint32_t missing = 0;
    SM86_UNROLL
    for (int p = 0; p < N; p++)
      if (p != rank && !whole(d[p])) missing |= 1u << p;
    if (!missing) return true;
    if (!w.again(missing)) return false;
    SM86_UNROLL
    for (int p = 0; p < N; p++)
      if ((missing >> p) & 1u) d[p] = m.load(at + p * stride);
  }
}

// ---- packets ----------------------------------------------------------------------------------------------------
// `own` is always this rank's vector of the index that `vector_of` gives the thread.

template <class Memory>
SM86_BOTH void publish_packets(const Job& j, const Vec& own, Memory& m) {
  const uint32_t tag = tag_of(j.call);
  uint8_t* to = packets_of(j.segment, j.at, j.call & (kPacketSlots - 1), j.rank) + j.thread * 16ull;
  // two planes, so that the threads of a warp write (and read) one contiguous piece in each
  m.store_packets(to, Vec{own.x, tag, own.y, tag});
  m.store_packets(to + j.at.packet_plane, Vec{own.z, tag, own.w, tag});
}

template <int N, int TYPE, class Memory, class Waiter>
SM86_BOTH bool receive_packets(const Job& j, const Vec& own, Vec& out, Memory& m, Waiter& w) {
  const uint32_t tag = tag_of(j.call);
  const uint8_t* from = packets_of(j.segment, j.at, j.call & (kPacketSlots - 1), 0) + j.thread * 16ull;
  Vec low[N], high[N];
  uint32_t missing = ((1u << N) - 1) & ~(1u << j.rank);
  for (;;) {
    SM86_UNROLL
    for (int p = 0; p < N; p++)
      if ((missing >> p) & 1u) {
        low[p] = m.load_packets(from + p * j.at.rank_stride);
        high[p] = m.load_packets(from + p * j.at.rank_stride + j.at.packet_plane);
      }
    uint32_t still = 0;
    SM86_UNROLL
    for (int p = 0; p < N; p++)
      if (((missing >> p) & 1u) && !(low[p].y == tag && low[p].w == tag && high[p].y == tag && high[p].w == tag))
        still |= 1u << p;
    missing = still;
    if (!missing) break;
    if (!w.again(missing)) return false;
  }
  Vec d[N];
  SM86_UNROLL
  for (int p = 0; p < N; p++) d[p] = p == j.rank ? own : Vec{low[p].x, low[p].z, high[p].x, high[p].z};
  out = sum<N, TYPE>(d);
  return true;
}

// ---- one-shot ---------------------------------------------------------------------------------------------------

template <class Memory>
SM86_BOTH void publish_one(const Job& j, const Vec& own, Memory& m) {
  m.store(message_of(j.segment, j.at, j.call & (kSlots - 1), j.rank) + j.thread * 16ull, sendable(own));
}

template <int N, int TYPE, class Memory, class Waiter>
SM86_BOTH bool receive_one(const Job& j, const Vec& own, Vec& out, Memory& m, Waiter& w) {
  const uint8_t* from = message_of(j.segment, j.at, j.call & (kSlots - 1), 0) + j.thread * 16ull;
  Vec d[N];
  SM86_UNROLL
  for (int p = 0; p < N; p++)
    if (p == j.rank) d[p] = sendable(own);
  if (!collect<N>(d, from, j.at.rank_stride, j.rank, m, w)) return false;
  out = sum<N, TYPE>(d);
  return true;
}

// ---- two-shot ---------------------------------------------------------------------------------------------------
// Rank r sums the r-th share. Threads below the share's size do that; the others fetch one vector of a peer's share
// each, so that no thread has both waits one after the other.

struct Share {
  uint32_t size, begin, count;
};
SM86_BOTH Share share_of(uint32_t vectors, uint32_t world, uint32_t rank) {
  Share s;
  s.size = (vectors + world - 1) / world;
  s.begin = rank * s.size < vectors ? rank * s.size : vectors;
  s.count = vectors - s.begin < s.size ? vectors - s.begin : s.size;
  return s;
}
// Which vector of the message is a thread's own: first this rank's share, then all outside of it.
template <int ALGORITHM, int N>
SM86_BOTH uint32_t vector_of(uint32_t vectors, int rank, uint32_t thread) {
  if (ALGORITHM != kTwoShot) return thread;
  const Share s = share_of(vectors, N, (uint32_t)rank);
  if (thread < s.count) return s.begin + thread;
  const uint32_t foreign = thread - s.count;
  return foreign < s.begin ? foreign : foreign + s.count;
}

template <int N, class Memory>
SM86_BOTH void publish_two(const Job& j, const Vec& own, Memory& m) {
  if (j.thread < share_of(j.vectors, N, (uint32_t)j.rank).count) return;  // nobody else reads this rank's own share
  const uint32_t i = vector_of<kTwoShot, N>(j.vectors, j.rank, j.thread);
  m.store(message_of(j.segment, j.at, j.call & (kSlots - 1), j.rank) + i * 16ull, sendable(own));
}

template <int N, int TYPE, class Memory, class Waiter>
SM86_BOTH bool receive_two(const Job& j, const Vec& own, Vec& out, bool wanted, Memory& m, Waiter& w) {
  const Share s = share_of(j.vectors, N, (uint32_t)j.rank);
  const uint32_t slot = j.call & (kSlots - 1), i = vector_of<kTwoShot, N>(j.vectors, j.rank, j.thread);
  if (j.thread < s.count) {
    Vec d[N];
    SM86_UNROLL
    for (int p = 0; p < N; p++)
      if (p == j.rank) d[p] = sendable(own);
    const uint8_t* from = message_of(j.segment, j.at, slot, 0) + i * 16ull;
    if (!collect<N>(d, from, j.at.rank_stride, j.rank, m, w)) return false;
    out = sendable(sum<N, TYPE>(d));
    m.store(sums_of(j.segment, j.at, slot, j.rank) + j.thread * 16ull, out);
    return true;
  }
  if (!wanted) return true;
  const uint32_t owner = i / s.size;
  const uint8_t* from = sums_of(j.segment, j.at, slot, (int)owner) + (i - owner * s.size) * 16ull;
  // The sums need an exchange of their own first: asking for them at once would only take the link from it.
  w.pause();
  for (;;) {
    out = m.load(from);
    if (whole(out)) return true;
    if (!w.again(1u << owner)) return false;
  }
}

// ---- re-arming --------------------------------------------------------------------------------------------------

// Call e-2's writes, which nobody reads any more: `message` vectors of the input and `sums` vectors of its share's
// sums, by `threads` threads. Returns whether this one stored anything that a fence must order before the next call.
template <class Memory>
SM86_BOTH bool rearm(const Job& j, uint32_t message, uint32_t sums, uint32_t threads, Memory& m) {
  const uint32_t slot = (j.call + 2) & (kSlots - 1);
  const Vec empty{kEmpty, kEmpty, kEmpty, kEmpty};
  uint8_t* to = message_of(j.segment, j.at, slot, j.rank);
  for (uint32_t i = j.thread; i < message; i += threads) m.store(to + i * 16ull, empty);
  uint8_t* also = sums_of(j.segment, j.at, slot, j.rank);
  for (uint32_t i = j.thread; i < sums; i += threads) m.store(also + i * 16ull, empty);
  return j.thread < message || j.thread < sums;
}

}  // namespace sm86ar
