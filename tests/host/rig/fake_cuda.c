/* The driver's library for tests: FAKE_GPUS cards whose memory is the host's. FAKE_CUDA names what is wrong with it:
   "flip" one byte of copies from card 0 to 1, "stale" the second copy to a place keeps the first one's bytes, "spill"
   writes one byte too many, "hang" in the copy from 0 to 2, "refuse" peer access, "none" no access, "full" no memory,
   "nodriver". Compiled by the tests with the machine's C compiler. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
static int current, copies;
static int is(const char *mode) { const char *told = getenv("FAKE_CUDA"); return told && !strcmp(told, mode); }
static int count(void) { const char *told = getenv("FAKE_GPUS"); return told ? atoi(told) : 3; }

CUresult cuInit(unsigned flags) { return flags ? 1 : is("nodriver") ? 100 : 0; }
CUresult cuDeviceGetCount(int *found) { *found = count(); return 0; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = 100 + ordinal; return ordinal < count() ? 0 : 101; }
CUresult cuDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, size, "0000:%02X:00.0", 1 + 16 * (device - 100));
    return 0;
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(1000 + device); return 0; }
CUresult cuCtxSetCurrent(void *context) { current = (int)(intptr_t)context - 1100; return current < 0 ? 201 : 0; }
CUresult cuCtxSynchronize(void) { return 0; }
CUresult cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    if (is("full")) return 2;
    /* a byte beyond the end, so that a copy that spills is the probe's to find and not the allocator's */
    *pointer = (uint64_t)(uintptr_t)malloc(size + 4096);
    return *pointer ? 0 : 2;
}
CUresult cuMemFree_v2(uint64_t pointer) { free((void *)(uintptr_t)pointer); return 0; }
CUresult cuMemsetD8_v2(uint64_t pointer, unsigned char value, size_t size) {
    memset((void *)(uintptr_t)pointer, value, size);
    return 0;
}
CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)(uintptr_t)to, from, size); return 0; }
CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)(uintptr_t)from, size); return 0; }
CUresult cuDeviceCanAccessPeer(int *found, int device, int peer) {
    *found = device != peer && !is("none");
    return 0;
}
CUresult cuCtxEnablePeerAccess(void *context, unsigned flags) {
    return flags || !context ? 1 : is("refuse") ? 711 : 0;
}
CUresult cuMemcpyPeer(uint64_t to, void *there, uint64_t from, void *here, size_t size) {
    int source = (int)(intptr_t)here - 1100, target = (int)(intptr_t)there - 1100;
    if (source < 0 || target < 0 || source >= count() || target >= count()) return 201;
    if (is("hang") && source == 0 && target == 2) sleep(600);
    if (is("dies") && source == 1) _exit(9);
    if (is("lost") && source == 1) return 719;
    if (is("stale") && source == 0 && target == 1 && ++copies == 2) return 0;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    if (is("flip") && source == 0 && target == 1) ((unsigned char *)(uintptr_t)to)[size / 2] ^= 1;
    if (is("spill") && source == 0 && target == 1) ((unsigned char *)(uintptr_t)to)[size] ^= 0xFF;
    return 0;
}
CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags) { *pointer = flags == 1 ? malloc(size) : 0; return *pointer ? 0 : 1; }
CUresult cuMemFreeHost(void *pointer) { free(pointer); return 0; }
CUresult cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)(intptr_t)(7 + flags); return 0; }
CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    if (!stream) return 400;
    /* a part is enough: nobody checks what came */
    memcpy((void *)(uintptr_t)to, from, size > 4096 ? 4096 : size);
    return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    return cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)to, (void *)(uintptr_t)from, size, stream);
}
CUresult cuStreamSynchronize(void *stream) { return stream ? 0 : 400; }
CUresult cuGetErrorString(CUresult number, const char **words) {
    *words = number == 711 ? "peer mapping resources exhausted" : number == 719 ? "unspecified launch failure"
             : number == 2 ? "out of memory" : number == 100 ? "no CUDA-capable device is detected" : "invalid argument";
    return 0;
}
