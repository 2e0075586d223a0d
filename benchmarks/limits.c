/* The limits of this machine: reading, writing and copying memory.
 *
 * The loops use the widest vectors that the compiler has for this CPU (build with -O3 -march=native). Which kind of loop is
 * fastest depends on size and CPU; the limit is the fastest. Every function reads the clock itself, so neither Python nor the
 * start of threads counts.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { READ, READ_PREFETCH, WRITE, WRITE_PREFETCH, WRITE_STREAM, COPY, COPY_STREAM, WIDEN };
enum { MAX_THREADS = 64, LINE = 64, STEP = 4 * LINE, AHEAD = 4096 };

typedef uint64_t line_t __attribute__((vector_size(LINE), aligned(LINE), may_alias));

typedef struct {
    int kind;
    uint8_t *dst;
    const uint8_t *src;
    size_t n; /* bytes, a multiple of STEP */
    long passes;
    atomic_int *waiting; /* threads that have not started yet */
    uint64_t seen;       /* a result, so that the compiler cannot remove the reading */
} work_t;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t read_all(const uint8_t *src, size_t n, int prefetch) {
    line_t a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < n; i += STEP) {
        const line_t *p = (const line_t *)(src + i);
        if (prefetch)
            for (int j = 0; j < 4; j++) __builtin_prefetch(src + i + AHEAD + LINE * j, 0, 3);
        a |= p[0];
        b |= p[1];
        c |= p[2];
        d |= p[3];
    }
    a |= b | c | d;
    uint64_t any = 0;
    for (int i = 0; i < 8; i++) any |= a[i];
    return any;
}

/* A store past the caches, where the CPU has one. */
static inline void stream(uint8_t *dst, line_t value) {
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)dst, (__m512i)value);
#elif defined(__AVX2__)
    __m256i half[2];
    memcpy(half, &value, LINE);
    _mm256_stream_si256((__m256i *)dst, half[0]);
    _mm256_stream_si256((__m256i *)(dst + 32), half[1]);
#else
    *(line_t *)dst = value;
#endif
}

static inline void fence(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

static void write_all(uint8_t *dst, size_t n, int streaming, int prefetch) {
    line_t value = {1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t i = 0; i < n; i += STEP)
        for (int j = 0; j < 4; j++) {
            if (prefetch) __builtin_prefetch(dst + i + AHEAD + LINE * j, 1, 3);
            if (streaming)
                stream(dst + i + LINE * j, value);
            else
                *(line_t *)(dst + i + LINE * j) = value;
            __asm__ volatile("" ::: "memory"); /* keeps the compiler from calling memset instead */
        }
    fence();
}

static void copy_streaming(uint8_t *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i += STEP)
        for (int j = 0; j < 4; j++) {
            __builtin_prefetch(src + i + AHEAD + LINE * j, 0, 3);
            stream(dst + i + LINE * j, *(const line_t *)(src + i + LINE * j));
        }
    fence();
}

/* Reads half as many bytes as it writes, and writes each twice: the traffic of 16 to 32 bits without arithmetic. */
static void widen(uint8_t *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i += STEP)
        for (int j = 0; j < 4; j++) {
            const uint8_t *from = src + i / 2 + LINE / 2 * j;
            uint8_t *to = dst + i + LINE * j;
            if (j % 2 == 0) __builtin_prefetch(from + AHEAD, 0, 3);
            __builtin_prefetch(to + AHEAD, 1, 3);
            memcpy(to, from, LINE / 2);
            memcpy(to + LINE / 2, from, LINE / 2);
        }
}

static void *run(void *argument) {
    work_t *w = argument;
    atomic_fetch_sub(w->waiting, 1);
    while (atomic_load(w->waiting) > 0);
    for (long pass = 0; pass < w->passes; pass++) {
        switch (w->kind) {
        case READ:
        case READ_PREFETCH: w->seen |= read_all(w->src, w->n, w->kind == READ_PREFETCH); break;
        case WRITE:
        case WRITE_PREFETCH:
        case WRITE_STREAM: write_all(w->dst, w->n, w->kind == WRITE_STREAM, w->kind == WRITE_PREFETCH); break;
        case COPY: memcpy(w->dst, w->src, w->n); break;
        case COPY_STREAM: copy_streaming(w->dst, w->src, w->n); break;
        case WIDEN: widen(w->dst, w->src, w->n); break;
        }
        __asm__ volatile("" ::: "memory"); /* keeps the compiler from merging passes */
    }
    return NULL;
}

/* Seconds of `threads` threads for `passes` passes over n bytes that they share, from the start of the last thread on.
 * dst and src are aligned to 64 bytes. -1 when a thread cannot start. */
double limits_run(int kind, uint8_t *dst, const uint8_t *src, size_t n, int threads, long passes) {
    if (threads < 1 || threads > MAX_THREADS) return -1;
    pthread_t others[MAX_THREADS];
    work_t work[MAX_THREADS];
    atomic_int waiting = threads;
    size_t part = n / (size_t)threads / STEP * STEP;
    for (int i = 0; i < threads; i++)
        work[i] =
            (work_t){kind, dst + part * (size_t)i, src + part * (size_t)i / (kind == WIDEN ? 2 : 1), part, passes, &waiting, 0};
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, run, &work[i]) != 0) {
            atomic_fetch_sub(&waiting, threads - i + 1); /* releases the started threads */
            while (--i > 0) pthread_join(others[i], NULL);
            return -1;
        }
    while (atomic_load(&waiting) > 1);
    double begin = now();
    run(&work[0]);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    return now() - begin;
}

/* Seconds of `passes` times allocating n bytes from the system, in huge pages where it has them, writing and freeing them;
 * -1 when memory is short. */
double limits_fresh(size_t n, int streaming, long passes) {
    const size_t huge = (size_t)2 << 20;
    double begin = now();
    for (long pass = 0; pass < passes; pass++) {
        uint8_t *base = mmap(NULL, n + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) return -1;
        uint8_t *start = base + (huge - (uintptr_t)base % huge) % huge;
#ifdef MADV_HUGEPAGE
        madvise(start, n, MADV_HUGEPAGE);
#endif
        write_all(start, n, streaming, 0);
        munmap(base, n + huge);
    }
    return now() - begin;
}

/* Reads one byte of each page of n bytes, so that page faults dominate the time. */
uint64_t limits_touch(const uint8_t *data, size_t n, size_t page) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += page) sum += ((const volatile uint8_t *)data)[i];
    return sum;
}
