/* Chooses the variant of each kernel.
 *
 * choose() is the one place that says which features a variant needs, best first. It runs for every tier when the module is
 * loaded, with the features that both the tier and the CPU have: so it never chooses a variant that would fault.
 */
#include "quant/ggml.h"

typedef struct {
    const char *name;
    uint32_t features;
    uint32_t extras; /* used where the CPU has them; the tier does without */
} tier;

enum {
    SSE4 = WM_SSE42 | WM_PCLMULQDQ,
    AVX2 = SSE4 | WM_AVX2,
    AVX512 = AVX2 | WM_AVX512,
    AVX512ICL = AVX512 | WM_VPCLMULQDQ,
};

/* "avx2" may use VPCLMULQDQ: Zen 3, Alder Lake and later CPUs for desktops have it without AVX-512. A CPU with both has
 * "avx512icl". */
static const tier tiers[] = {
    {"portable", 0, 0},
#if WM_X86
    {"sse4", SSE4, 0},  {"avx2", AVX2, WM_VPCLMULQDQ}, {"avx512", AVX512, 0}, {"avx512icl", AVX512ICL, 0},
#elif WM_ARM
    {"neon", WM_ARM_CRC32 | WM_ARM_PMULL, 0},
#endif
};
enum { N_TIERS = sizeof tiers / sizeof *tiers };

#define PORTABLE_ENTRY(type, kernel) kernel##_portable, #kernel "_portable",
#define PORTABLE {WM_KERNELS(PORTABLE_ENTRY)}
static wm_variants by_tier[N_TIERS];

static wm_variants choose(uint32_t features) {
    wm_variants v = PORTABLE;
#define HAS(bits) ((features & (bits)) == (bits))
#define USE(kernel, function) (v.kernel = function, v.kernel##_name = #function)
#if WM_X86
    if (HAS(WM_AVX512 | WM_VPCLMULQDQ))
        USE(crc32, crc32_x86_vpclmulqdq_avx512);
    else if (HAS(WM_AVX2 | WM_VPCLMULQDQ))
        USE(crc32, crc32_x86_vpclmulqdq_avx2);
    else if (HAS(WM_SSE42 | WM_PCLMULQDQ))
        USE(crc32, crc32_x86_pclmulqdq);

    if (HAS(WM_AVX2)) { /* with AVX-512, these gain at most a fifth where they are used */
        USE(f16_to_f32, f16_to_f32_x86_avx2), USE(bf16_to_f32, bf16_to_f32_x86_avx2), USE(narrow, narrow_x86_avx2);
        USE(ggml_streamed, ggml_x86_avx2_streamed);
        USE(differ, differ_x86_avx2), USE(fnv1a32, fnv1a32_x86_avx2), USE(combine_rows, combine_rows_x86_avx2);
    }
    if (HAS(WM_AVX512)) {
        USE(intblock, intblock_x86_avx512), USE(mixed, mixed_x86_avx512);
        USE(ggml, ggml_x86_avx512), USE(stream, stream_x86_avx512);
        USE(quantize, quantize_x86_avx512), USE(ggml_quantize, ggml_quantize_x86_avx512);
        USE(groups, groups_x86_avx512), USE(lookup, lookup_x86_avx512), USE(tables, tables_x86_avx512);
    } else if (HAS(WM_AVX2)) {
        USE(intblock, intblock_x86_avx2), USE(mixed, mixed_x86_avx2);
        USE(ggml, ggml_x86_avx2), USE(stream, stream_x86_avx2);
        USE(quantize, quantize_x86_avx2), USE(ggml_quantize, ggml_quantize_x86_avx2);
        USE(groups, groups_x86_avx2), USE(lookup, lookup_x86_avx2), USE(tables, tables_x86_avx2);
    }
#elif WM_ARM
    if (HAS(WM_ARM_CRC32 | WM_ARM_PMULL)) {
#if defined(__APPLE__)
        USE(crc32, crc32_arm_pmull);
#else
        USE(crc32, crc32_arm_crc_pmull);
#endif
        USE(f16_to_f32, f16_to_f32_arm_neon), USE(bf16_to_f32, bf16_to_f32_arm_neon);
        USE(intblock, intblock_arm_neon), USE(narrow, narrow_arm_neon), USE(ggml, ggml_arm_neon);
        USE(quantize, quantize_arm_neon), USE(groups, groups_arm_neon);
        USE(lookup, lookup_arm_neon), USE(tables, tables_arm_neon);
    }
#endif
    return v;
}

static void wm_init(void) {
    const uint32_t cpu = wm_cpu_features();
    wm_ggml_fill_grids();
    int best = 0;
    for (int i = 0; i < N_TIERS; i++) {
        by_tier[i] = choose((tiers[i].features | tiers[i].extras) & cpu);
        if (wm_isa_available(i)) best = i;
    }
    wm_use_variants(&by_tier[best]);
}

/* Runs wm_init when the module is loaded. */
#if defined(_MSC_VER)
#pragma section(".CRT$XCU", read)
__declspec(allocate(".CRT$XCU")) void (*wm_init_at_load)(void) = wm_init;
#pragma comment(linker, "/include:wm_init_at_load")
#else
__attribute__((constructor)) static void wm_init_at_load(void) { wm_init(); }
#endif

const char *wm_isa_name(int t) { return t >= 0 && t < N_TIERS ? tiers[t].name : NULL; }

int wm_isa_available(int t) { return t >= 0 && t < N_TIERS && (tiers[t].features & ~wm_cpu_features()) == 0; }

int wm_isa_selected(void) { return (int)(wm_variants_in_use() - by_tier); }

int wm_isa_select(int t) {
    if (!wm_isa_available(t)) return -1;
    wm_use_variants(&by_tier[t]);
    return 0;
}

const char *wm_variant(const char *name) {
    const wm_variants *v = wm_variants_in_use();
#define NAME_IF(type, kernel) \
    if (!strcmp(name, #kernel)) return v->kernel##_name;
    WM_KERNELS(NAME_IF)
    return NULL;
}
