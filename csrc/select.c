/* Chooses the variant of each kernel.
 *
 * choose() is the one place that says which features a variant needs, best first. It runs for every tier when the module is
 * loaded, with the features that both the tier and the CPU have: so it never chooses a variant that would fault.
 */
#include "ggml.h"

typedef struct {
    const char *name;
    uint32_t features;
    uint32_t extras; /* used where the CPU has them; the tier does without */
} tier;

enum {
    SSE4 = WM_SSE42 | WM_PCLMULQDQ,
    AVX2 = SSE4 | WM_AVX2,
    AVX512 = AVX2 | WM_AVX512,
    AVX512ICL = AVX512 | WM_VPCLMULQDQ | WM_GFNI | WM_VBMI
};

static const tier tiers[] = {
    {"portable", 0, 0},
#if WM_X86
    {"sse4", SSE4, 0},
    {"avx2", AVX2, WM_VPCLMULQDQ}, /* Zen 3, Alder Lake and later CPUs for desktops */
    {"avx512", AVX512, WM_VPCLMULQDQ},
    {"avx512icl", AVX512ICL, 0},
#elif WM_ARM
    {"neon", WM_ARM_CRC32 | WM_ARM_PMULL, 0},
#endif
};
enum { N_TIERS = sizeof tiers / sizeof *tiers };

#define PORTABLE_ENTRY(type, kernel) kernel##_portable, #kernel "_portable",
#define PORTABLE {WM_KERNELS(PORTABLE_ENTRY)}
#if defined(_MSC_VER) && !defined(__clang__)
#define ATOMIC volatile /* MSVC reads and writes a volatile pointer whole and in order */
#else
#define ATOMIC _Atomic
#endif
static const wm_variants portable = PORTABLE;
static wm_variants by_tier[N_TIERS];
static uint32_t cpu;
/* 0 until wm_stream_least has asked the CPU. */
static uint64_t ATOMIC stream_least;

/* Portable until wm_init has run, so that no order of initialisation is wrong. */
static const wm_variants *ATOMIC in_use = &portable;

static wm_variants choose(uint32_t features) {
    wm_variants v = PORTABLE;
#define HAS(bits) ((features & (bits)) == (bits))
#define USE(kernel, function) (v.kernel = function, v.kernel##_name = #function)
#if WM_X86
    /* Multiplication alone is fastest on Intel's CPUs with VPCLMULQDQ; on AMD's, other units take a part of the work. */
    const int amd = HAS(WM_AMD);
    if (HAS(WM_AVX512 | WM_PCLMULQDQ | WM_VPCLMULQDQ | WM_GFNI)) {
        if (HAS(WM_ZEN4))
            USE(crc32, crc32_x86_mixed_avx512_zen4);
        else if (amd)
            USE(crc32, crc32_x86_mixed_avx512);
        else
            USE(crc32, crc32_x86_vpclmulqdq_avx512);
    } else if (HAS(WM_AVX2 | WM_PCLMULQDQ | WM_VPCLMULQDQ) && !amd)
        USE(crc32, crc32_x86_vpclmulqdq_avx2);
    else if (HAS(WM_AVX2 | WM_PCLMULQDQ))
        USE(crc32, crc32_x86_mixed_pclmulqdq_avx2);
    else if (HAS(WM_SSE42 | WM_PCLMULQDQ))
        USE(crc32, crc32_x86_pclmulqdq);

    if (HAS(WM_AVX512))
        USE(fnv1a32, fnv1a32_x86_avx512);
    else if (HAS(WM_AVX2))
        USE(fnv1a32, fnv1a32_x86_avx2);

    if (HAS(WM_AVX512))
        USE(f16_to_f32, f16_to_f32_x86_avx512), USE(bf16_to_f32, bf16_to_f32_x86_avx512);
    else if (HAS(WM_AVX2))
        USE(f16_to_f32, f16_to_f32_x86_avx2), USE(bf16_to_f32, bf16_to_f32_x86_avx2);

    if (HAS(WM_AVX512))
        USE(intblock, intblock_x86_avx512), USE(mixed, mixed_x86_avx512), USE(narrow, narrow_x86_avx2);
    else if (HAS(WM_AVX2))
        USE(intblock, intblock_x86_avx2), USE(mixed, mixed_x86_avx2), USE(narrow, narrow_x86_avx2);
    if (HAS(WM_AVX512))
        USE(ggml, ggml_x86_avx512), USE(ggml_quantize, ggml_quantize_x86_avx512), USE(stream, stream_x86_avx512),
            USE(ggml_streamed, ggml_x86_avx2_streamed); /* memory is the limit: stores of 64 bytes gain nothing over 32 */
    else if (HAS(WM_AVX2))
        USE(ggml, ggml_x86_avx2), USE(ggml_quantize, ggml_quantize_x86_avx2), USE(stream, stream_x86_avx2),
            USE(ggml_streamed, ggml_x86_avx2_streamed);
    if (HAS(WM_AVX512))
        USE(quantize, quantize_x86_avx512);
    else if (HAS(WM_AVX2))
        USE(quantize, quantize_x86_avx2);
    if (HAS(WM_AVX512))
        USE(differ, differ_x86_avx512), USE(squares, squares_x86_avx512);
    else if (HAS(WM_AVX2))
        USE(differ, differ_x86_avx2), USE(squares, squares_x86_avx2);
    if (HAS(WM_AVX2)) USE(combine_rows, combine_rows_x86_avx2);
#elif WM_ARM
    if (HAS(WM_ARM_CRC32 | WM_ARM_PMULL)) {
#if defined(__APPLE__)
        USE(crc32, crc32_arm_pmull);
#else
        USE(crc32, crc32_arm_crc_pmull);
#endif
        USE(f16_to_f32, f16_to_f32_arm_neon), USE(bf16_to_f32, bf16_to_f32_arm_neon);
        USE(intblock, intblock_arm_neon), USE(narrow, narrow_arm_neon), USE(ggml, ggml_arm_neon);
        USE(quantize, quantize_arm_neon);
    }
#endif
    return v;
}

static void wm_init(void) {
    cpu = wm_cpu_features();
    wm_ggml_fill_grids();
    int best = 0;
    for (int i = 0; i < N_TIERS; i++) {
        by_tier[i] = choose((tiers[i].features | tiers[i].extras | WM_AMD | WM_ZEN4) & cpu);
        if (wm_isa_available(i)) best = i;
    }
    in_use = &by_tier[best];
}

/* Runs wm_init when the module is loaded. */
#if defined(_MSC_VER)
#pragma section(".CRT$XCU", read)
__declspec(allocate(".CRT$XCU")) void (*wm_init_at_load)(void) = wm_init;
#pragma comment(linker, "/include:wm_init_at_load")
#else
__attribute__((constructor)) static void wm_init_at_load(void) { wm_init(); }
#endif

const wm_variants *wm_variants_in_use(void) { return in_use; }

/* Streaming saves memory a read for every write, but the core waits for each line on its way to memory. One thread that
 * converted halves to 128 MiB of floats wrote, in GB/s:
 *                                              streamed    stored
 *   AMD Zen 4                                  24 to 27    20 (output not prefetched)
 *   Intel Cascade Lake                              5.9    8.1 (5.6 when the output is not prefetched)
 *   Intel Cascade Lake, two threads                11.6    14.7
 * So only AMD streams, when input and output take three quarters of the third-level cache that a core reaches. Outputs in GB/s
 * (Zen 5, 32 MiB of cache), used again and again:
 *                       MiB         12    16    20    24    32    64
 *   int4, streamed                  41    41    40    41    41    38
 *   int4, stored                    78    58    42    38    34    28
 *   float16, streamed               40    40    38    36    36    34
 *   float16, stored                 45    36    32    30    28    24
 * Prefetching gains up to a sixth where the second-level cache does not hold both. Where it does, prefetching costs as much, and on
 * AMD's CPUs a quarter where both take a third of the third level and more. */
int wm_how_to_store(uint64_t input, uint64_t output) {
    const uint64_t both = add_capped(input, output), second_level = (uint64_t)1 << 20;
    if (both <= second_level) return WM_CACHED;
    const uint64_t least = wm_stream_least();
    return both >= least ? WM_STREAMED : both <= least / 3 ? WM_FETCHED : WM_CACHED;
}

/* Asked at the first use: in a virtual machine each of the five CPUID instructions may take 30 microseconds, which would be
 * a hundredth of the time of the import. */
uint64_t wm_stream_least(void) {
    uint64_t least = stream_least;
    if (least == 0) {
        const uint64_t cache = cpu & WM_AMD ? wm_cpu_cache() : 0, usual = (uint64_t)32 << 20;
        least = cpu & WM_AMD ? (cache ? cache : usual) / 4 * 3 : UINT64_MAX;
        stream_least = least;
    }
    return least;
}

const char *wm_isa_name(int t) { return t >= 0 && t < N_TIERS ? tiers[t].name : NULL; }

int wm_isa_available(int t) { return t >= 0 && t < N_TIERS && (tiers[t].features & cpu) == tiers[t].features; }

int wm_isa_selected(void) {
    const wm_variants *v = in_use;
    return v == &portable ? 0 : (int)(v - by_tier);
}

int wm_isa_select(int t) {
    if (!wm_isa_available(t)) return -1;
    in_use = &by_tier[t];
    return 0;
}

const char *wm_crc32_variant(void) { return wm_variants_in_use()->crc32_name; }
const char *wm_fnv1a32_variant(void) { return wm_variants_in_use()->fnv1a32_name; }
const char *wm_f16_to_f32_variant(void) { return wm_variants_in_use()->f16_to_f32_name; }
const char *wm_bf16_to_f32_variant(void) { return wm_variants_in_use()->bf16_to_f32_name; }
const char *wm_intblock_variant(void) { return wm_variants_in_use()->intblock_name; }
const char *wm_combine_rows_variant(void) { return wm_variants_in_use()->combine_rows_name; }
const char *wm_ggml_variant(void) { return wm_variants_in_use()->ggml_name; }
