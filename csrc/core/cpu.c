/* Asks the CPU for its features, if the operating system saves their registers, and for the size of its cache; chooses how to
 * store large outputs. */
#include "core/internal.h"

#if WM_X86
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
static void cpuid(uint32_t leaf, uint32_t part, uint32_t r[4]) { __cpuidex((int *)r, (int)leaf, (int)part); }
static uint64_t xcr0(void) { return _xgetbv(0); }
#else
#include <cpuid.h>
static void cpuid(uint32_t leaf, uint32_t part, uint32_t r[4]) { __cpuid_count(leaf, part, r[0], r[1], r[2], r[3]); }
static uint64_t xcr0(void) {
    uint32_t low, high; /* not every gcc knows the target attribute of the intrinsic */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

enum { EAX, EBX, ECX };

static int has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

static uint32_t ask(void) {
    uint32_t leaf0[4], leaf1[4], leaf7[4] = {0}, features = 0;
    cpuid(0, 0, leaf0);
    if (leaf0[EAX] < 1) return 0;
    cpuid(1, 0, leaf1);
    if (leaf0[EAX] >= 7) cpuid(7, 0, leaf7);

    if (has(leaf1[ECX], 1u << 9 | 1u << 19 | 1u << 20)) features |= WM_SSE42; /* SSSE3, SSE4.1, SSE4.2 */
    if (has(leaf1[ECX], 1u << 1)) features |= WM_PCLMULQDQ;

    /* A wider register is usable only if the system saves it at a task switch; XCR0 says which it saves. */
    if (!has(leaf1[ECX], 1u << 27)) return features; /* OSXSAVE: there is an XCR0 to ask */
    uint64_t saved = xcr0();
    enum { XMM_YMM = 0x06, XMM_YMM_ZMM_MASKS = 0xE6 };
    if ((saved & XMM_YMM) != XMM_YMM) return features;
    /* FMA, AVX, F16C; BMI1, AVX2, BMI2 */
    if (!has(leaf1[ECX], 1u << 12 | 1u << 28 | 1u << 29) || !has(leaf7[EBX], 1u << 3 | 1u << 5 | 1u << 8)) return features;
    features |= WM_AVX2;
    if (has(leaf7[ECX], 1u << 10)) features |= WM_VPCLMULQDQ;
    if ((saved & XMM_YMM_ZMM_MASKS) != XMM_YMM_ZMM_MASKS) return features;
    if (!has(leaf7[EBX], 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31)) return features; /* F, DQ, BW, VL */
    return features | WM_AVX512;
}

/* The size of the third-level cache that a core reaches, or 0 where no CPUID leaf 0x8000001D tells it. That leaf describes one cache in
 * each part. sysconf gives the sum over a socket instead, up to twelve times as much. A virtual machine may report anything: 32 MiB
 * replace a size that no CPU has. */
static uint64_t cpu_cache(void) {
    const uint32_t caches = 0x8000001D;
    const uint64_t min = (uint64_t)2 << 20, max = (uint64_t)256 << 20, usual = (uint64_t)32 << 20;
    uint32_t r[4];
    cpuid(0x80000000, 0, r);
    if (r[EAX] < caches) return 0;
    for (uint32_t part = 0; part < 8; part++) {
        cpuid(caches, part, r);
        const uint32_t level = r[EAX] >> 5 & 7, line = (r[EBX] & 0xFFF) + 1, lines = (r[EBX] >> 12 & 0x3FF) + 1;
        const uint64_t ways = (r[EBX] >> 22) + 1, sets = (uint64_t)r[ECX] + 1, size = sets * ways * lines * line;
        if (level == 3) return size < min || size > max ? usual : size;
    }
    return usual;
}

#elif WM_ARM && defined(__APPLE__)
static uint32_t ask(void) { return WM_ARM_CRC32 | WM_ARM_PMULL; } /* every arm64 Mac has both */

#elif WM_ARM && defined(__linux__)
#include <sys/auxv.h>
static uint32_t ask(void) {
    unsigned long caps = getauxval(AT_HWCAP); /* bits of the kernel's asm/hwcap.h */
    return (caps & 1ul << 7 ? WM_ARM_CRC32 : 0u) | (caps & 1ul << 4 ? WM_ARM_PMULL : 0u);
}

#else
static uint32_t ask(void) { return 0; }
#endif

#if !WM_X86
static uint64_t cpu_cache(void) { return 0; }
#endif

/* Asked once: in a virtual machine each CPUID instruction may take 30 microseconds, five of them a hundredth of the time of the
 * import. */
uint32_t wm_cpu_features(void) {
    static uint32_t ATOMIC cached;
    const uint32_t detected = 1u << 31;
    uint32_t features = cached;
    if (!features) cached = features = ask() | detected;
    return features;
}

/* Streaming saves memory a read for every write, but the core waits for each line on its way to memory. One thread that
 * converted halves to 128 MiB of floats wrote, in GB/s:
 *                                              streamed    stored
 *   AMD Zen 4                                  24 to 27    20 (output not prefetched)
 *   Intel Cascade Lake                              5.9    8.1 (5.6 when the output is not prefetched)
 *   Intel Cascade Lake, two threads                11.6    14.7
 * CPUs that gain from streaming report the third-level cache of a core (cpu_cache); the others do not. So a CPU with a reported
 * size streams once input and output take three quarters of it. Outputs in GB/s (Zen 5, 32 MiB of cache), used again and again:
 *                       MiB         12    16    20    24    32    64
 *   int4, streamed                  41    41    40    41    41    38
 *   int4, stored                    78    58    42    38    34    28
 *   float16, streamed               40    40    38    36    36    34
 *   float16, stored                 45    36    32    30    28    24
 * Prefetching gains up to a sixth if the second-level cache does not hold both. If it does, prefetching costs as much; where outputs
 * stream it costs a quarter once both take a third of the third level. */
int wm_how_to_store(uint64_t input, uint64_t output) {
    const uint64_t both = add_capped(input, output), second_level = (uint64_t)1 << 20;
    if (both <= second_level) return WM_CACHED;
    const uint64_t min = wm_stream_least();
    return both >= min ? WM_STREAMED : both <= min / 3 ? WM_FETCHED : WM_CACHED;
}

/* Asked at the first use, not at import. */
uint64_t wm_stream_least(void) {
    static uint64_t ATOMIC cached;
    uint64_t min = cached;
    if (min == 0) {
        const uint64_t cache = cpu_cache();
        cached = min = cache ? cache / 4 * 3 : UINT64_MAX;
    }
    return min;
}
