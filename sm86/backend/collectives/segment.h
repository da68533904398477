// The shared segment: where what lies, who writes it, and the verdict when something went wrong. Host memory that every
// rank's process maps; compiled for the GPU (layout) and for the CPU (set-up, verdict).
//
// Rank-major: all that one rank writes is one piece of whole pages, so that it can lie on the NUMA node of that rank's
// GPU. Within it each rank starts 256 bytes further than the one before, or equal offsets of all ranks would meet in
// one memory channel.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define SM86_BOTH __host__ __device__ __forceinline__
#else
#define SM86_BOTH inline
#endif
#if defined(__CUDA_ARCH__)
#define SM86_UNROLL _Pragma("unroll")
#else
#define SM86_UNROLL
#endif

namespace sm86ar {

constexpr int kMaxRanks = 8;
constexpr uint32_t kSlots = 4;        // messages and sums, marked by sentinels
constexpr uint32_t kPacketSlots = 2;  // packets, marked by tags
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxPacketBytes = 32 * 1024;  // of data; twice that in the segment
constexpr uint32_t kMagic = 0x36384D53u, kVersion = 1;

struct alignas(16) Vec {
  uint32_t x, y, z, w;
};

// ---- bits -------------------------------------------------------------------------------------------------------

SM86_BOTH float as_float(uint32_t w) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(w);
#else
  float f;
  memcpy(&f, &w, 4);
  return f;
#endif
}
SM86_BOTH uint32_t as_word(float f) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(f);
#else
  uint32_t w;
  memcpy(&w, &f, 4);
  return w;
#endif
}
// No contraction and no reordering: the sum's bits must be the same in every build.
SM86_BOTH float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
#if !defined(__CUDA_ARCH__)
inline uint32_t bf16_bits(float f) {
  const uint32_t w = as_word(f);
  if ((w & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFFu;
  return (w + 0x7FFFu + ((w >> 16) & 1u)) >> 16;
}
#endif
SM86_BOTH uint32_t bf16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#else
  return bf16_bits(low) | (bf16_bits(high) << 16);
#endif
}

// ---- header -----------------------------------------------------------------------------------------------------

enum Code { kFine = 0, kTimedOut = 1, kStopped = 2, kPeerGone = 3, kAborted = 4 };

// One rank's own lines; nobody else writes them. No atomics: the GPU's do not reach host memory over PCIe everywhere.
struct alignas(128) Record {
  uint32_t code;     // Code; written last
  uint32_t call;     // number of the call that gave up
  uint32_t missing;  // ranks whose data did not come, bit by bit
  uint32_t algorithm, vectors;
  uint32_t pad[27];
};
struct alignas(128) Line {
  uint32_t value;
  uint32_t pad[31];
};
// What all ranks report: the first record that any process finds. Written by CPUs only.
struct alignas(128) Verdict {
  uint32_t claim;  // 0, or 1 + the rank whose process writes it
  uint32_t ready;
  uint32_t code, rank, call, missing, algorithm, vectors;
  uint32_t pad[24];
};
struct Header {
  uint32_t magic, version, world, pad;
  uint64_t max_bytes, total;
  Line stop;                // not 0: every wait ends now
  Verdict verdict;
  Line entered[kMaxRanks];  // 1 + the number of the call that the rank is in
  Line closed[kMaxRanks];   // 1: left on purpose
  Record record[kMaxRanks];
};
constexpr uint64_t kHeaderBytes = 2 * kPage;
static_assert(sizeof(Header) <= kHeaderBytes, "the header outgrew its pages");

// ---- layout -----------------------------------------------------------------------------------------------------

struct Layout {
  uint32_t world, max_vectors, max_packet_vectors;
  uint32_t pad;
  uint64_t rank_stride;  // bytes from a rank's piece to the next one's, shift included
  uint64_t messages, sums, packets;                  // from the segment's start to rank 0's
  uint64_t message_slot, sum_slot, packet_slot, packet_plane;
  uint64_t total;
};

SM86_BOTH uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

SM86_BOTH Layout layout_of(uint32_t world, uint64_t max_bytes) {
  Layout l;
  const uint64_t packet_bytes = max_bytes < kMaxPacketBytes ? max_bytes : kMaxPacketBytes;
  l.world = world;
  l.pad = 0;
  l.max_vectors = (uint32_t)(max_bytes / 16);
  l.max_packet_vectors = (uint32_t)(packet_bytes / 16);
  l.message_slot = round_up(max_bytes, 256);
  l.sum_slot = round_up((l.max_vectors + world - 1) / world * 16ull, 256);
  l.packet_plane = round_up(packet_bytes, 256);
  l.packet_slot = 2 * l.packet_plane;
  l.messages = kHeaderBytes;
  l.sums = l.messages + kSlots * l.message_slot;
  l.packets = l.sums + kSlots * l.sum_slot;
  const uint64_t piece = l.packets + kPacketSlots * l.packet_slot - l.messages;
  // whole pages for each rank, with room for the largest shift
  l.rank_stride = round_up(piece + kMaxRanks * 256, kPage) + 256;
  l.total = kHeaderBytes + world * (l.rank_stride - 256);
  return l;
}
SM86_BOTH uint8_t* message_of(uint8_t* s, const Layout& l, uint32_t slot, int rank) {
  return s + l.messages + rank * l.rank_stride + slot * l.message_slot;
}
SM86_BOTH uint8_t* sums_of(uint8_t* s, const Layout& l, uint32_t slot, int rank) {
  return s + l.sums + rank * l.rank_stride + slot * l.sum_slot;
}
SM86_BOTH uint8_t* packets_of(uint8_t* s, const Layout& l, uint32_t slot, int rank) {
  return s + l.packets + rank * l.rank_stride + slot * l.packet_slot;
}

}  // namespace sm86ar
