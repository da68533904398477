// What both builds (GPU and CPU test) do on the CPU: prepare the segment, read and set the verdict. C interface's types.
#pragma once
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "protocol.h"

// Mirrored field by field in binding.py.
struct Sm86ArOpen {
  void* base;
  uint64_t max_bytes, timeout_ns;
  int device, world, first_rank, local_ranks;
};
struct Sm86ArLaunch {
  const void* in;  // local_ranks messages, one behind the other; 16-byte aligned
  void* out;       // may be `in`
  uint64_t bytes;  // of one message; a multiple of 16
  int algorithm, type;
  int threads;   // of a block
  int pause;     // clock cycles before the first look
  int readers;   // how many of the local ranks receive; 0: all
};
struct Sm86ArStatus {
  uint32_t stopped;  // not 0: no call will succeed any more
  uint32_t code, rank, call, missing, algorithm, vectors;
};

namespace sm86ar {

enum Refusal { kBadSize = -1, kBadPlan = -2, kBadPointer = -3, kBadOpen = -4, kGpuTooSmall = -5 };
constexpr int kMostThreads = 512;

inline int refusal_of(const Layout& l, const Sm86ArLaunch& a, int local_ranks) {
  const uint64_t vectors = a.bytes / 16;
  if (!a.bytes || a.bytes % 16 || vectors > l.max_vectors) return kBadSize;
  if (a.algorithm < 0 || a.algorithm >= kAlgorithms || a.type < 0 || a.type > kF32) return kBadPlan;
  if (a.algorithm == kPackets && vectors > l.max_packet_vectors) return kBadPlan;
  if (a.threads < 32 || a.threads > kMostThreads || a.threads % 32 || a.pause < 0) return kBadPlan;
  if (a.readers < 0 || a.readers > local_ranks) return kBadPlan;
  if (((uintptr_t)a.in | (uintptr_t)a.out) & 15) return kBadPointer;
  return 0;
}

// Of one kernel: every rank's workers, and one more for its keeper.
inline uint32_t blocks_of(uint32_t vectors, int threads, int local_ranks) {
  return ((vectors + threads - 1) / threads + 1) * local_ranks;
}

inline uint32_t seen(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
inline void show(uint32_t& word, uint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

// The verdict is written once, by the process that first finds (or makes) a record.
inline void give_verdict(Header* h, uint32_t code, uint32_t rank, const Record& r) {
  uint32_t nobody = 0;
  if (!__atomic_compare_exchange_n(&h->verdict.claim, &nobody, rank + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return;
  h->verdict.code = code;
  h->verdict.rank = rank;
  h->verdict.call = r.call;
  h->verdict.missing = r.missing;
  h->verdict.algorithm = r.algorithm;
  h->verdict.vectors = r.vectors;
  show(h->verdict.ready, 1);
}

inline void status_of(Header* h, Sm86ArStatus* s) {
  memset(s, 0, sizeof *s);
  if (!seen(h->verdict.ready))
    // Who merely stopped because another did says nothing of the cause.
    for (uint32_t r = 0; r < h->world && r < (uint32_t)kMaxRanks; r++)
      if (seen(h->record[r].code) == kTimedOut) give_verdict(h, kTimedOut, r, h->record[r]);
  s->stopped = seen(h->stop.value);
  if (seen(h->verdict.ready)) {
    s->stopped = 1;
    s->code = h->verdict.code;
    s->rank = h->verdict.rank;
    s->call = h->verdict.call;
    s->missing = h->verdict.missing;
    s->algorithm = h->verdict.algorithm;
    s->vectors = h->verdict.vectors;
  }
}

inline void stop_all(Header* h, uint32_t code, uint32_t rank, uint32_t missing) {
  Record r;
  memset(&r, 0, sizeof r);
  r.call = seen(h->entered[rank].value) ? seen(h->entered[rank].value) - 1 : 0;
  r.missing = missing;
  give_verdict(h, code, rank, r);
  show(h->stop.value, 1);
}

}  // namespace sm86ar

extern "C" uint64_t sm86_ar_segment_bytes(int world, uint64_t max_bytes) {
  return sm86ar::layout_of((uint32_t)world, max_bytes).total;
}

// Called by each rank for its own piece before any rank opens the segment; by rank 0 for the header too. The piece's
// pages go to `node` where that is not negative. Returns 0, or errno of the placement, which is then the kernel's own
// choice.
extern "C" int sm86_ar_prepare(void* base, int world, uint64_t max_bytes, int rank, int node) {
  using namespace sm86ar;
  const Layout l = layout_of((uint32_t)world, max_bytes);
  uint8_t* s = (uint8_t*)base;
  const uint64_t pages = l.rank_stride - 256;
  uint8_t* piece = s + kHeaderBytes + rank * pages;
  int placed = 0;
  memset(piece, 0, pages);
  memset(message_of(s, l, 0, rank), 0xFF, l.packets - l.messages);
#if defined(SYS_mbind)
  if (node >= 0 && node < 64) {
    const unsigned long mask = 1ul << node;
    // Reserving the segment has placed its pages already, so they are moved: possible while this process alone has
    // touched them. MPOL_PREFERRED (1): a full node is no reason to fail; MPOL_MF_MOVE (2).
    if (syscall(SYS_mbind, piece, pages, 1, &mask, sizeof(mask) * 8 + 1, 2) != 0) placed = errno;
  }
#endif
  if (rank == 0) {
    Header* h = (Header*)base;
    memset(base, 0, kHeaderBytes);
    h->version = kVersion;
    h->world = (uint32_t)world;
    h->max_bytes = max_bytes;
    h->total = l.total;
    __atomic_store_n(&h->magic, kMagic, __ATOMIC_RELEASE);
  }
  return placed;
}

// 1 when the segment is this version's, of this size.
extern "C" int sm86_ar_known(const void* base, int world, uint64_t max_bytes) {
  const sm86ar::Header* h = (const sm86ar::Header*)base;
  return __atomic_load_n(&h->magic, __ATOMIC_ACQUIRE) == sm86ar::kMagic && h->version == sm86ar::kVersion &&
         h->world == (uint32_t)world && h->max_bytes == max_bytes;
}
extern "C" void sm86_ar_status(void* base, Sm86ArStatus* s) { sm86ar::status_of((sm86ar::Header*)base, s); }
extern "C" void sm86_ar_stop(void* base, int code, int rank, uint32_t missing) {
  sm86ar::stop_all((sm86ar::Header*)base, (uint32_t)code, (uint32_t)rank, missing);
}
// The number of calls that a rank has entered.
extern "C" uint32_t sm86_ar_entered(const void* base, int rank) {
  return sm86ar::seen(((const sm86ar::Header*)base)->entered[rank].value);
}
extern "C" void sm86_ar_mark_closed(void* base, int rank) {
  sm86ar::show(((sm86ar::Header*)base)->closed[rank].value, 1);
}
extern "C" int sm86_ar_is_closed(const void* base, int rank) {
  return (int)sm86ar::seen(((const sm86ar::Header*)base)->closed[rank].value);
}
#ifndef SM86_SOURCE_HASH
#define SM86_SOURCE_HASH "unknown"
#endif
extern "C" const char* sm86_ar_source_hash() { return SM86_SOURCE_HASH; }
extern "C" int sm86_ar_sizes() { return (int)(sizeof(Sm86ArOpen) * 65536 + sizeof(Sm86ArLaunch) * 256 + sizeof(Sm86ArStatus)); }
