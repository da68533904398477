// The collective's C interface on the CPU, for tests: the same protocol.h and host_api.h as the GPU build, real
// processes on the real segment, and memory that is weaker than any GPU's. The threads of a kernel are walked one after
// the other, the keeper before, between or after them.
//
// Weak memory: a store goes to a buffer of the process and leaves it later, in any order except that stores to one
// word keep theirs. Neither the end of a kernel nor a load empties it; a fence does. Loads of 16 bytes are four loads of
// 4 bytes in any order (two of 8 for packets), and so are stores.
//
// SM86_AR_FAULT plants a fault that the tests must find.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host_api.h"

using namespace sm86ar;

namespace {

const std::string& fault() {
  static const std::string f = [] {
    const char* e = getenv("SM86_AR_FAULT");
    return std::string(e ? e : "");
  }();
  return f;
}

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

struct Random {
  uint32_t s;
  uint32_t next() {
    s ^= s << 13;
    s ^= s >> 17;
    s ^= s << 5;
    return s;
  }
};

struct Pending {
  uint8_t* at;
  uint64_t value;
  int bytes;
  uint64_t due;  // in accesses of the process; a fence or a later store to the word does not wait for it
};

struct Weak {
  std::vector<Pending> buffer;
  uint64_t clock = 0;
  Random random{0x9E3779B9u ^ (uint32_t)getpid()};

  static void write(const Pending& p) {
    if (p.bytes == 8)
      __atomic_store_n((uint64_t*)p.at, p.value, __ATOMIC_RELAXED);
    else
      __atomic_store_n((uint32_t*)p.at, (uint32_t)p.value, __ATOMIC_RELAXED);
  }
  void leave(size_t k) {
    for (size_t i = 0; i < k; i++)
      if (buffer[i].at < buffer[k].at + buffer[k].bytes && buffer[k].at < buffer[i].at + buffer[i].bytes) k = i;
    write(buffer[k]);
    buffer.erase(buffer.begin() + (long)k);
  }
  // Most stores leave soon; one in six stays for hundreds of accesses, longer than two calls of the tests take.
  void drift() {
    clock++;
    if (buffer.empty() || random.next() % 3 == 0) return;
    for (int tries = 0; tries < 4; tries++) {
      const size_t k = random.next() % buffer.size();
      if (buffer[k].due <= clock) return leave(k);
    }
  }
  // Time passes while a peer is waited for, or nobody would ever see the rest.
  void waiting() {
    for (int k = 0; k < 8; k++) drift();
  }
  void fence() {
    if (fault() == "no-fence") return;
    while (!buffer.empty()) leave(0);
  }
  void put(uint8_t* at, uint64_t value, int bytes) {
    const uint64_t stays = random.next() % 6 ? 0 : random.next() % 600;
    buffer.push_back(Pending{at, value, bytes, clock + stays});
    drift();
  }
  Vec load(const void* p) {
    drift();
    uint32_t w[4];
    const uint32_t k = random.next();
    for (uint32_t i = 0; i < 4; i++) w[(i + k) & 3] = __atomic_load_n((const uint32_t*)p + ((i + k) & 3), __ATOMIC_RELAXED);
    return Vec{w[0], w[1], w[2], w[3]};
  }
  void store(void* p, const Vec& v) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    const uint32_t k = random.next();
    for (uint32_t i = 0; i < 4; i++) put((uint8_t*)p + 4 * ((i + k) & 3), w[(i + k) & 3], 4);
  }
  Vec load_packets(const void* p) {
    drift();
    uint64_t w[2];
    const uint32_t k = random.next();
    for (uint32_t i = 0; i < 2; i++) w[(i + k) & 1] = __atomic_load_n((const uint64_t*)p + ((i + k) & 1), __ATOMIC_RELAXED);
    return Vec{(uint32_t)w[0], (uint32_t)(w[0] >> 32), (uint32_t)w[1], (uint32_t)(w[1] >> 32)};
  }
  void store_packets(void* p, const Vec& v) {
    const uint64_t w[2] = {v.x | ((uint64_t)v.y << 32), v.z | ((uint64_t)v.w << 32)};
    const uint32_t k = random.next();
    if (fault() == "torn-packet") {
      for (int i = 0; i < 4; i++) put((uint8_t*)p + 4 * ((i + k) & 3), (w[((i + k) & 3) / 2] >> (32 * ((i + k) & 1))) & 0xFFFFFFFFu, 4);
      return;
    }
    for (uint32_t i = 0; i < 2; i++) put((uint8_t*)p + 8 * ((i + k) & 1), w[(i + k) & 1], 8);
  }
};

struct Handle {
  Header* header;
  uint8_t* segment;
  Layout at;
  uint64_t timeout_ns;
  int first_rank, local_ranks;
  uint32_t call = 0;
  bool given_up = false;
  uint32_t message[kSlots] = {}, sums[kSlots] = {};
  Weak memory;
};

struct Patience {
  Handle& h;
  uint32_t call, vectors;
  int rank, algorithm;
  uint64_t began = 0;
  uint32_t looks = 0;
  void pause() {}
  bool again(uint32_t missing) {
    h.memory.waiting();
    sched_yield();
    if (++looks % 64) return true;
    const uint64_t now = now_ns();
    if (!began) began = now;
    const bool stopped = seen(h.header->stop.value) != 0;
    if (!stopped && now - began <= h.timeout_ns) return true;
    if (!h.given_up) {
      h.given_up = true;
      uint32_t absent = 0;
      for (uint32_t p = 0; p < h.at.world; p++)
        if ((int32_t)(seen(h.header->entered[p].value) - (call + 1)) < 0) absent |= 1u << p;
      Record& r = h.header->record[rank];
      r.call = call;
      r.missing = absent ? absent : missing;
      r.algorithm = (uint32_t)algorithm;
      r.vectors = vectors;
      show(r.code, stopped ? kStopped : kTimedOut);
      show(h.header->stop.value, 1);
    }
    return false;
  }
};

void keep(Handle& h, int rank, uint32_t call) {
  Job j{h.segment, h.at, call, rank, 0, 0};
  uint32_t old = (call + 2) & (kSlots - 1);
  uint32_t message = h.message[old], sums = h.sums[old];
  if (fault() == "no-rearm") return;
  if (fault() == "short-rearm" && message) message--;
  if (fault() == "early-rearm") {  // the slot of the call before: a peer may still read it
    j.call = call + 1;
    old = (call + 3) & (kSlots - 1);
    message = h.message[old];
    sums = h.sums[old];
  }
  if (rearm(j, message, sums, 1, h.memory)) h.memory.fence();
}

template <int N, int TYPE>
void run(Handle& h, const Sm86ArLaunch& a) {
  const uint32_t vectors = (uint32_t)(a.bytes / 16), call = h.call, slot = call & (kSlots - 1);
  const int readers = a.readers ? a.readers : h.local_ranks;
  const Vec* in = (const Vec*)a.in;
  std::vector<Vec> result((size_t)h.local_ranks * vectors, Vec{kNan, kNan, kNan, kNan});
  bool fine = !h.given_up;
  const uint32_t keeper_at = h.memory.random.next() % 3, shift = h.memory.random.next();
  auto job = [&](int local, uint32_t t) { return Job{h.segment, h.at, call, h.first_rank + local, vectors, t}; };
  auto index = [&](int rank, uint32_t t) {
    return a.algorithm == kTwoShot ? vector_of<kTwoShot, N>(vectors, rank, t) : t;
  };
  auto keepers = [&](uint32_t when) {
    if (when != keeper_at || !fine) return;
    for (int l = 0; l < h.local_ranks; l++) keep(h, h.first_rank + l, call);
  };
  for (int l = 0; l < h.local_ranks; l++) show(h.header->entered[h.first_rank + l].value, call + 1);
  keepers(0);
  for (int l = 0; l < h.local_ranks && fine; l++)
    for (uint32_t k = 0; k < vectors; k++) {
      const uint32_t t = (k + shift) % vectors;
      const Job j = job(l, t);
      const Vec own = in[(size_t)l * vectors + index(j.rank, t)];
      if (a.algorithm == kPackets) publish_packets(fault() == "no-tag" ? Job{j.segment, j.at, j.call & 1, j.rank, j.vectors, j.thread} : j, own, h.memory);
      else if (a.algorithm == kOneShot && fault() == "raw-words") h.memory.store(message_of(h.segment, h.at, slot, j.rank) + t * 16ull, own);
      else if (a.algorithm == kOneShot) publish_one(j, own, h.memory);
      else publish_two<N>(j, own, h.memory);
    }
  keepers(1);
  // the two-shot's sums before anybody fetches some: here the threads run one after the other
  for (int pass = 0; pass < 2 && fine; pass++)
    for (int l = 0; l < h.local_ranks && fine; l++)
      for (uint32_t k = 0; k < vectors && fine; k++) {
        const uint32_t t = (k + (a.algorithm == kTwoShot ? 0 : shift)) % vectors;
        Job j = job(l, t);
        const bool sums = a.algorithm == kTwoShot && t < share_of(vectors, N, (uint32_t)j.rank).count;
        if (pass == (sums ? 1 : 0) && a.algorithm == kTwoShot) continue;
        if (pass == 1 && a.algorithm != kTwoShot) continue;
        const uint32_t i = index(j.rank, t);
        const Vec own = in[(size_t)l * vectors + i];
        Vec& out = result[(size_t)l * vectors + i];
        Patience w{h, call, vectors, j.rank, a.algorithm};
        const bool wanted = l < readers;
        if (a.algorithm == kPackets && fault() == "no-tag") j.call &= 1;
        if (a.algorithm == kPackets) fine = !wanted || receive_packets<N, TYPE>(j, own, out, h.memory, w);
        else if (a.algorithm == kOneShot) fine = !wanted || receive_one<N, TYPE>(j, own, out, h.memory, w);
        else fine = receive_two<N, TYPE>(j, own, out, wanted, h.memory, w);
      }
  keepers(2);
  if (!fine) std::fill(result.begin(), result.end(), Vec{kNan, kNan, kNan, kNan});
  if (fault() == "own-order" && h.first_rank == 1)  // a rank that rounds on its own
    for (Vec& v : result) v.x ^= 1u;
  memcpy(a.out, result.data(), result.size() * sizeof(Vec));
  const uint32_t old = (call + 2) & (kSlots - 1);
  h.message[old] = h.sums[old] = 0;
  h.message[slot] = a.algorithm == kPackets ? 0 : vectors;
  h.sums[slot] = 0;
  if (a.algorithm == kTwoShot)
    for (int l = 0; l < h.local_ranks; l++)
      h.sums[slot] = std::max(h.sums[slot], share_of(vectors, N, (uint32_t)(h.first_rank + l)).count);
  h.call = call + 1;
}

template <int N>
int run(Handle& h, const Sm86ArLaunch& a) {
  if (a.type == kF32) run<N, kF32>(h, a);
  else run<N, kBf16>(h, a);
  return 0;
}

}  // namespace

extern "C" void* sm86_ar_open(const Sm86ArOpen* o, int* error) {
  *error = kBadOpen;
  if (getenv("SM86_AR_OPEN_FAILS") && atoi(getenv("SM86_AR_OPEN_FAILS")) == o->first_rank) return nullptr;
  if (!sm86_ar_known(o->base, o->world, o->max_bytes)) return nullptr;
  Handle* h = new Handle;
  h->header = (Header*)o->base;
  h->segment = (uint8_t*)o->base;
  h->at = layout_of((uint32_t)o->world, o->max_bytes);
  h->timeout_ns = o->timeout_ns;
  h->first_rank = o->first_rank;
  h->local_ranks = o->local_ranks;
  *error = 0;
  return h;
}
extern "C" int sm86_ar_launch(void* handle, const Sm86ArLaunch* a, void*) {
  Handle* h = (Handle*)handle;
  const int refused = refusal_of(h->at, *a, h->local_ranks);
  if (refused) return refused;
  switch (h->at.world) {
    case 2: return run<2>(*h, *a);
    case 3: return run<3>(*h, *a);
    case 4: return run<4>(*h, *a);
    case 5: return run<5>(*h, *a);
    case 6: return run<6>(*h, *a);
    case 7: return run<7>(*h, *a);
    case 8: return run<8>(*h, *a);
  }
  return kBadPlan;
}
// What is still in the buffer must reach the peers, as a GPU's stores do some time.
extern "C" int sm86_ar_close(void* handle, void*) {
  Handle* h = (Handle*)handle;
  while (!h->memory.buffer.empty()) h->memory.leave(0);
  delete h;
  return 0;
}
extern "C" void sm86_ar_settle(void* handle) {
  Handle* h = (Handle*)handle;
  while (!h->memory.buffer.empty()) h->memory.leave(0);
}
extern "C" double sm86_ar_read_ns(void*, int) { return -1; }
extern "C" int sm86_ar_bus(int, char*, int) { return 1; }
extern "C" const char* sm86_ar_error(int) { return "no GPU in this build"; }
// Whether all that each rank writes lies in its own pages, which alone it prepares and places, and slots do not overlap.
extern "C" int sm86_ar_layout_holds(int world, uint64_t max_bytes) {
  const Layout l = layout_of((uint32_t)world, max_bytes);
  const uint64_t pages = l.rank_stride - 256, share = (l.max_vectors + world - 1) / world * 16ull;
  uint8_t* const none = nullptr;
  bool holds = pages % kPage == 0 && l.total == kHeaderBytes + world * pages && l.message_slot >= max_bytes &&
               l.sum_slot >= share && l.packet_plane >= l.max_packet_vectors * 16ull && l.packet_slot >= 2 * l.packet_plane;
  for (int r = 0; r < world; r++)
    holds = holds && (uint64_t)message_of(none, l, 0, r) >= kHeaderBytes + r * pages &&
            message_of(none, l, kSlots, r) <= sums_of(none, l, 0, r) &&
            sums_of(none, l, kSlots, r) <= packets_of(none, l, 0, r) &&
            (uint64_t)packets_of(none, l, kPacketSlots, r) <= kHeaderBytes + (r + 1) * pages;
  return holds;
}
extern "C" void sm86_ar_record(void* base, int rank, uint32_t code, uint32_t missing) {
  Header* h = (Header*)base;
  h->record[rank].missing = missing;
  show(h->record[rank].code, code);
  show(h->stop.value, 1);
}
extern "C" void sm86_ar_set_call(void* handle, uint32_t call) { ((Handle*)handle)->call = call; }
