// All-reduce of small messages between the GPUs of one host that have no peer access: kernels and C interface.
//
// A call is one kernel. Its worker blocks give every thread one 16-byte vector: store it to the segment, look at the
// peers' until they are there, add, write the sum. One more block per rank, the keeper, does what the sum need not wait
// for: it re-arms old slots, pays for the fence, and moves the call number on. So the way of a message is
//   call number from L2 -> store over PCIe -> load over PCIe -> add -> end
// with no flag, fence, atomic or barrier in it.
//
// The call number lives in device memory: a captured kernel counts on with each replay, and graphs and eager calls mix.
// Every warp has its own copy, which it alone advances (the keeper advances those of warps that a call does not have),
// so nobody needs to know when the others have read it.
#include <cuda_runtime.h>

#include <new>

#include "host_api.h"

namespace {

using namespace sm86ar;

constexpr uint32_t kMostWarps = 256;       // 128 KiB, one vector a thread
constexpr uint32_t kLooksPerCheck = 64;    // failed looks between two looks at the clock; each is a trip over PCIe
constexpr int kKeeperThreads = 128;

// Device memory, one per rank that this process serves.
struct RankState {
  uint32_t warp_call[kMostWarps];
  uint32_t keeper_call;
  uint32_t pad[3];
  uint32_t message[kSlots];  // vectors that lie in the slot, to be re-armed
  uint32_t sums[kSlots];
};
struct State {
  uint32_t given_up;  // 0, or 1 once a thread of this process wrote the record
  uint32_t pad[31];
  RankState rank[kMaxRanks];
};

struct Call {
  uint8_t* segment;
  Layout at;
  State* state;
  const Vec* in;
  Vec* out;
  uint64_t timeout_ns;
  uint32_t vectors;
  uint32_t pause;
  int first_rank;
  int readers;
};

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
__device__ __forceinline__ uint32_t load_word(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_word(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// 16 bytes in one instruction, never from a cache. The protocol needs 4 bytes at once (8 for packets) and no order
// between them: every word says itself whether it has come.
struct Pcie {
  __device__ __forceinline__ Vec load(const void* p) const {
    Vec v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
  }
  __device__ __forceinline__ void store(void* p, const Vec& v) const {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }
  // Packets are pairs of words that must stay together: as 64-bit elements, whose atomicity PTX promises.
  __device__ __forceinline__ Vec load_packets(const void* p) const {
    uint64_t a, b;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
    return Vec{(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)};
  }
  __device__ __forceinline__ void store_packets(void* p, const Vec& v) const {
    const uint64_t a = v.x | ((uint64_t)v.y << 32), b = v.z | ((uint64_t)v.w << 32);
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(a), "l"(b) : "memory");
  }
};

// Looks at the clock and at the stop word. Returns the time the wait began (never 0), or 0 to give up: then the first
// thread of this process has written the record, and the word that ends everybody's waits is set.
__device__ __noinline__ uint64_t look_at_clock(const Call& c, uint64_t began, uint32_t call, int rank, int algorithm,
                                               uint32_t missing) {
  Header* h = reinterpret_cast<Header*>(c.segment);
  const uint64_t now = now_ns() | 1u;
  if (began == 0) began = now;
  const bool stopped = load_word(&h->stop.value) != 0;
  // signed: a clock that steps back must not look like one that ran for centuries
  if (!stopped && (int64_t)(now - began) <= (int64_t)c.timeout_ns) return began;
  if (atomicCAS(&c.state->given_up, 0u, 1u) == 0u) {
    // A rank that never came into this call is the cause; one that came and waits for somebody else is not.
    uint32_t absent = 0;
    for (uint32_t p = 0; p < c.at.world; p++)
      if ((int32_t)(load_word(&h->entered[p].value) - (call + 1)) < 0) absent |= 1u << p;
    Record* r = &h->record[rank];
    store_word(&r->call, call);
    store_word(&r->missing, absent ? absent : missing);
    store_word(&r->algorithm, (uint32_t)algorithm);
    store_word(&r->vectors, c.vectors);
    __threadfence_system();
    store_word(&r->code, stopped ? kStopped : kTimedOut);
    __threadfence_system();
    store_word(&h->stop.value, 1u);
  }
  return 0;
}

struct Patience {
  const Call& c;
  uint64_t began;
  uint32_t call, looks;
  int rank, algorithm;
  __device__ __forceinline__ bool again(uint32_t missing) {
    if (++looks % kLooksPerCheck) return true;
    began = look_at_clock(c, began, call, rank, algorithm, missing);
    return began != 0;
  }
  __device__ __forceinline__ void pause() const {
    if (!c.pause) return;
    const long long from = clock64();
    while (clock64() - from < (long long)c.pause) {
    }
  }
};

template <int N, int ALGORITHM>
__device__ __forceinline__ void keep(const Call& c, RankState* own, int rank, uint32_t worker_warps) {
  const uint32_t t = threadIdx.x;
  Job j{c.segment, c.at, load_word(&own->keeper_call), rank, c.vectors, t};
  const uint32_t old = (j.call + 2) & (kSlots - 1), now = j.call & (kSlots - 1);
  const uint32_t message = load_word(&own->message[old]), sums = load_word(&own->sums[old]);
  Header* h = reinterpret_cast<Header*>(c.segment);
  if (t == 0) store_word(&h->entered[rank].value, j.call + 1);
  for (uint32_t w = worker_warps + t; w < kMostWarps; w += kKeeperThreads) store_word(&own->warp_call[w], j.call + 1);
  Pcie m;
  if (rearm(j, message, sums, kKeeperThreads, m)) asm volatile("fence.acq_rel.sys;" ::: "memory");
  __syncthreads();  // all have read what is changed here
  if (t == 0) {
    store_word(&own->message[old], 0u);
    store_word(&own->sums[old], 0u);
    store_word(&own->message[now], ALGORITHM == kPackets ? 0u : c.vectors);
    store_word(&own->sums[now], ALGORITHM == kTwoShot ? share_of(c.vectors, N, (uint32_t)rank).count : 0u);
    store_word(&own->keeper_call, j.call + 1);
  }
}

template <int N, int ALGORITHM, int TYPE>
__global__ void __launch_bounds__(kMostThreads) all_reduce(const __grid_constant__ Call c) {
  const int local = blockIdx.y, rank = c.first_rank + local;
  RankState* own = &c.state->rank[local];
  const uint32_t workers = gridDim.x - 1;
  if (blockIdx.x == workers) {
    if (threadIdx.x < kKeeperThreads) keep<N, ALGORITHM>(c, own, rank, workers * (blockDim.x / 32));
    return;
  }
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t i = vector_of<ALGORITHM, N>(c.vectors, rank, thread);
  const bool works = thread < c.vectors;
  Vec mine{0, 0, 0, 0};
  if (works) mine = c.in[(size_t)local * c.vectors + i];  // in flight together with the call number
  const uint32_t given_up = load_word(&c.state->given_up);
  Job j{c.segment, c.at, load_word(&own->warp_call[thread / 32]), rank, c.vectors, thread};
  __syncwarp();
  if (threadIdx.x % 32 == 0) store_word(&own->warp_call[thread / 32], j.call + 1);
  if (!works) return;
  Vec sum_of_all{kNan, kNan, kNan, kNan};
  if (!given_up) {
    Pcie m;
    Patience w{c, 0, j.call, 0, rank, ALGORITHM};
    const bool wanted = local < c.readers;
    if (ALGORITHM == kPackets) {
      publish_packets(j, mine, m);
      if (wanted) {
        w.pause();
        if (!receive_packets<N, TYPE>(j, mine, sum_of_all, m, w)) sum_of_all = Vec{kNan, kNan, kNan, kNan};
      }
    } else if (ALGORITHM == kOneShot) {
      publish_one(j, mine, m);
      if (wanted) {
        w.pause();
        if (!receive_one<N, TYPE>(j, mine, sum_of_all, m, w)) sum_of_all = Vec{kNan, kNan, kNan, kNan};
      }
    } else {
      publish_two<N>(j, mine, m);
      if (!receive_two<N, TYPE>(j, mine, sum_of_all, wanted, m, w)) sum_of_all = Vec{kNan, kNan, kNan, kNan};
    }
  }
  c.out[(size_t)local * c.vectors + i] = sum_of_all;
}

// Dependent reads of the segment, one after the other: the round trip that every wait pays. One thread.
__global__ void read_latency(const uint8_t* segment, int reads, uint64_t* ns) {
  const Header* h = reinterpret_cast<const Header*>(segment);
  uint32_t at = 0;
  const uint64_t from = now_ns();
  // `pad` is always 0, which the compiler does not know: the next address waits for this read.
  for (int k = 0; k < reads; k++) at += load_word(&h->closed[at & 7].pad[1]);
  *ns = now_ns() - from + at;
}

struct Handle {
  Call call;
  int device, local_ranks;
};

template <int N, int ALGORITHM, int TYPE>
int start(const Call& c, dim3 grid, int threads, cudaStream_t stream) {
  all_reduce<N, ALGORITHM, TYPE><<<grid, threads, 0, stream>>>(c);
  return (int)cudaGetLastError();
}
template <int N>
int start(const Call& c, int algorithm, int type, dim3 grid, int threads, cudaStream_t s) {
  switch (algorithm * 2 + type) {
    case kPackets * 2 + kBf16: return start<N, kPackets, kBf16>(c, grid, threads, s);
    case kPackets * 2 + kF32: return start<N, kPackets, kF32>(c, grid, threads, s);
    case kOneShot * 2 + kBf16: return start<N, kOneShot, kBf16>(c, grid, threads, s);
    case kOneShot * 2 + kF32: return start<N, kOneShot, kF32>(c, grid, threads, s);
    case kTwoShot * 2 + kBf16: return start<N, kTwoShot, kBf16>(c, grid, threads, s);
    case kTwoShot * 2 + kF32: return start<N, kTwoShot, kF32>(c, grid, threads, s);
  }
  return kBadPlan;
}

// Loading a kernel may have to wait for what runs on the device, and what runs may wait for a peer that loads: so all
// kernels of the group's size are loaded before the first call.
template <int N, int ALGORITHM>
cudaError_t load() {
  cudaFuncAttributes a;
  const cudaError_t e = cudaFuncGetAttributes(&a, all_reduce<N, ALGORITHM, kBf16>);
  return e != cudaSuccess ? e : cudaFuncGetAttributes(&a, all_reduce<N, ALGORITHM, kF32>);
}
template <int N>
cudaError_t load() {
  cudaError_t e = load<N, kPackets>();
  if (e == cudaSuccess) e = load<N, kOneShot>();
  return e != cudaSuccess ? e : load<N, kTwoShot>();
}

// A block waits for what other ranks' blocks publish. Where several ranks share this GPU those blocks must run at the
// same time, and in the two-shot also those of one rank: a grid that the GPU cannot hold at once would wait for ever.
constexpr int kUsualThreads = 256;
template <int N, int ALGORITHM>
cudaError_t holds(int processors, uint32_t vectors, int local_ranks, bool* whole) {
  int blocks = 0;
  const cudaError_t e =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, all_reduce<N, ALGORITHM, kBf16>, kUsualThreads, 0);
  *whole = *whole && (uint32_t)(blocks * processors) >= blocks_of(vectors, kUsualThreads, local_ranks);
  return e;
}
template <int N>
cudaError_t ready(const Layout& l, int processors, int local_ranks, bool* whole) {
  cudaError_t e = load<N>();
  if (e == cudaSuccess) e = holds<N, kPackets>(processors, l.max_packet_vectors, local_ranks, whole);
  if (e == cudaSuccess) e = holds<N, kOneShot>(processors, l.max_vectors, local_ranks, whole);
  return e != cudaSuccess ? e : holds<N, kTwoShot>(processors, l.max_vectors, local_ranks, whole);
}
cudaError_t ready(const Layout& l, int device, int local_ranks, bool* whole) {
  int n = 0;
  const cudaError_t e = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  if (e != cudaSuccess) return e;
  switch (l.world) {
    case 2: return ready<2>(l, n, local_ranks, whole);
    case 3: return ready<3>(l, n, local_ranks, whole);
    case 4: return ready<4>(l, n, local_ranks, whole);
    case 5: return ready<5>(l, n, local_ranks, whole);
    case 6: return ready<6>(l, n, local_ranks, whole);
    case 7: return ready<7>(l, n, local_ranks, whole);
    case 8: return ready<8>(l, n, local_ranks, whole);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

// A handle for the current process; `error` gets a CUDA error code or a Refusal. The segment must be prepared.
extern "C" void* sm86_ar_open(const Sm86ArOpen* o, int* error) {
  *error = kBadOpen;
  if (o->world < 2 || o->world > kMaxRanks || o->local_ranks < 1 || o->first_rank < 0 ||
      o->first_rank + o->local_ranks > o->world || !sm86_ar_known(o->base, o->world, o->max_bytes))
    return nullptr;
  const Layout l = layout_of((uint32_t)o->world, o->max_bytes);
  if ((l.max_vectors + 31) / 32 > kMostWarps) return nullptr;
  uint8_t* device_view = nullptr;
  State* state = nullptr;
  cudaError_t e = cudaSetDevice(o->device);
  if (e == cudaSuccess) e = cudaHostRegister(o->base, l.total, cudaHostRegisterMapped | cudaHostRegisterPortable);
  const bool registered = e == cudaSuccess;
  if (e == cudaSuccess) e = cudaHostGetDevicePointer((void**)&device_view, o->base, 0);
  if (e == cudaSuccess) e = cudaMalloc((void**)&state, sizeof(State));
  if (e == cudaSuccess) e = cudaMemset(state, 0, sizeof(State));
  bool whole = true;
  if (e == cudaSuccess) e = ready(l, o->device, o->local_ranks, &whole);
  if (e == cudaSuccess) e = cudaDeviceSynchronize();
  Handle* h = e == cudaSuccess && whole ? new (std::nothrow) Handle : nullptr;
  if (!h) {
    if (state) cudaFree(state);
    if (registered) cudaHostUnregister(o->base);
    cudaGetLastError();  // leave no error behind for whoever uses the device next
    *error = e != cudaSuccess ? (int)e : whole ? (int)cudaErrorMemoryAllocation : kGpuTooSmall;
    return nullptr;
  }
  h->device = o->device;
  h->local_ranks = o->local_ranks;
  h->call.segment = device_view;
  h->call.at = l;
  h->call.state = state;
  h->call.timeout_ns = o->timeout_ns;
  h->call.first_rank = o->first_rank;
  *error = 0;
  return h;
}

// 0, a CUDA error code, or a Refusal. Asynchronous; may be captured.
extern "C" int sm86_ar_launch(void* handle, const Sm86ArLaunch* a, void* stream) {
  Handle* h = (Handle*)handle;
  const int refused = refusal_of(h->call.at, *a, h->local_ranks);
  if (refused) return refused;
  Call c = h->call;
  c.in = (const Vec*)a->in;
  c.out = (Vec*)a->out;
  c.vectors = (uint32_t)(a->bytes / 16);
  c.pause = (uint32_t)a->pause;
  c.readers = a->readers ? a->readers : h->local_ranks;
  // the keeper's threads are part of a block like any other
  const int threads = a->threads < kKeeperThreads ? kKeeperThreads : a->threads;
  const uint32_t workers = blocks_of(c.vectors, threads, 1) - 1;
  if (workers * (threads / 32) > kMostWarps) return kBadPlan;
  const dim3 grid(workers + 1, h->local_ranks);
  const cudaStream_t s = (cudaStream_t)stream;
  switch (c.at.world) {
    case 2: return start<2>(c, a->algorithm, a->type, grid, threads, s);
    case 3: return start<3>(c, a->algorithm, a->type, grid, threads, s);
    case 4: return start<4>(c, a->algorithm, a->type, grid, threads, s);
    case 5: return start<5>(c, a->algorithm, a->type, grid, threads, s);
    case 6: return start<6>(c, a->algorithm, a->type, grid, threads, s);
    case 7: return start<7>(c, a->algorithm, a->type, grid, threads, s);
    case 8: return start<8>(c, a->algorithm, a->type, grid, threads, s);
  }
  return kBadPlan;
}

// After the last call has ended on the GPU.
extern "C" int sm86_ar_close(void* handle, void* base) {
  Handle* h = (Handle*)handle;
  cudaSetDevice(h->device);
  cudaError_t e = cudaDeviceSynchronize();
  const cudaError_t u = cudaHostUnregister(base);
  const cudaError_t f = cudaFree(h->call.state);
  delete h;
  return (int)(e != cudaSuccess ? e : u != cudaSuccess ? u : f);
}

// Nanoseconds of one read of the segment, or a negative number. Waits for the GPU.
extern "C" double sm86_ar_read_ns(void* handle, int reads) {
  Handle* h = (Handle*)handle;
  uint64_t *out = nullptr, ns = 0;
  if (reads < 1 || cudaMalloc((void**)&out, sizeof *out) != cudaSuccess) return -1;
  read_latency<<<1, 1>>>(h->call.segment, reads, out);
  const bool fine = cudaMemcpy(&ns, out, sizeof ns, cudaMemcpyDeviceToHost) == cudaSuccess;
  cudaFree(out);
  return fine ? (double)ns / reads : -1;
}

// "0000:65:00.0" of a device; 0, or a CUDA error code.
extern "C" int sm86_ar_bus(int device, char* text, int size) { return (int)cudaDeviceGetPCIBusId(text, size, device); }
extern "C" const char* sm86_ar_error(int code) { return cudaGetErrorString((cudaError_t)code); }
