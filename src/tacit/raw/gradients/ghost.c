/* Squared norms of sums of outer products, from the two Gram matrices of each example, without storing either.

   Optional: tacit.raw.gradients.ghost checks it against the tensor form when it is loaded, and does without it where it
   cannot be built. */

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <xmmintrin.h>
#define TARGETS 1
#else
#define TARGETS 0
#endif

/* Numbers that are added up in a row in single precision; with those of the halves and of the rest of a row of numbers
   they stay within the bound that tacit.raw.gradients.ghost adds to the norm. */
#define IN_A_ROW 32
#define UNROLL _Pragma("GCC unroll 16")

/* found[i][j] = left[i] . right[j] for HEIGHT rows and four others of `width` numbers. A vector holds the sums of LANES
   features side by side; those of a chunk are added by halves, those of chunks in double precision.

   squares_NAME: out[e] = sum over t and s of (a_t . a_s)(b_t . b_s) over the positions of example e. Each pair of
   different positions is looked at once and counts twice. */
#define GHOST(NAME, TARGET, LANES, HEIGHT)                                                                           \
    TARGET static void dots_##NAME(const float *const *left, const float *const *right, int64_t width,               \
                                   double found[HEIGHT][4]) {                                                        \
        typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));                                    \
        for (int i = 0; i < HEIGHT; i++)                                                                             \
            for (int j = 0; j < 4; j++) found[i][j] = 0;                                                             \
        for (int64_t start = 0; start < width; start += IN_A_ROW * LANES) {                                          \
            int64_t stop = width - start < IN_A_ROW * LANES ? width : start + IN_A_ROW * LANES;                      \
            int64_t k = start;                                                                                       \
            const float *l[HEIGHT], *r[4];                                                                           \
            vector sum[HEIGHT][4];                                                                                   \
            float lanes[HEIGHT][4][LANES];                                                                           \
            UNROLL for (int i = 0; i < HEIGHT; i++) l[i] = left[i];                                                  \
            UNROLL for (int j = 0; j < 4; j++) r[j] = right[j];                                                      \
            UNROLL for (int i = 0; i < HEIGHT; i++)                                                                  \
                UNROLL for (int j = 0; j < 4; j++) sum[i][j] = (vector){0};                                          \
            for (; k + LANES <= stop; k += LANES) {                                                                  \
                vector x[4];                                                                                         \
                UNROLL for (int j = 0; j < 4; j++) x[j] = *(const vector *)(r[j] + k);                               \
                UNROLL for (int i = 0; i < HEIGHT; i++) {                                                            \
                    vector y = *(const vector *)(l[i] + k);                                                          \
                    UNROLL for (int j = 0; j < 4; j++) sum[i][j] += y * x[j];                                        \
                }                                                                                                    \
            }                                                                                                        \
            UNROLL for (int i = 0; i < HEIGHT; i++)                                                                  \
                UNROLL for (int j = 0; j < 4; j++) *(vector *)lanes[i][j] = sum[i][j];                               \
            for (int i = 0; i < HEIGHT; i++)                                                                         \
                for (int j = 0; j < 4; j++) {                                                                        \
                    float *restrict lane = lanes[i][j];                                                              \
                    UNROLL for (int half = LANES / 2; half; half /= 2)                                               \
                        for (int n = 0; n < half; n++) lane[n] += lane[n + half];                                    \
                    for (int64_t n = k; n < stop; n++) lane[0] += l[i][n] * r[j][n];                                 \
                    found[i][j] += (double)lane[0];                                                                  \
                }                                                                                                    \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    TARGET static void squares_##NAME(const float *a, const float *b, int64_t examples, int64_t positions,           \
                                      int64_t inputs, int64_t outputs, double *out) {                                \
        for (int64_t e = 0; e < examples; e++, a += positions * inputs, b += positions * outputs) {                  \
            double total = 0;                                                                                        \
            for (int64_t t = 0; t < positions; t += HEIGHT)                                                          \
                for (int64_t s = t / 4 * 4; s < positions; s += 4) {                                                 \
                    const float *left[2][HEIGHT], *right[2][4];                                                      \
                    double found[2][HEIGHT][4];                                                                      \
                    for (int i = 0; i < HEIGHT; i++) {                                                               \
                        int64_t at = t + i < positions ? t + i : positions - 1;                                      \
                        left[0][i] = a + at * inputs;                                                                \
                        left[1][i] = b + at * outputs;                                                               \
                    }                                                                                                \
                    for (int j = 0; j < 4; j++) {                                                                    \
                        int64_t at = s + j < positions ? s + j : positions - 1;                                      \
                        right[0][j] = a + at * inputs;                                                               \
                        right[1][j] = b + at * outputs;                                                              \
                    }                                                                                                \
                    dots_##NAME(left[0], right[0], inputs, found[0]);                                                \
                    dots_##NAME(left[1], right[1], outputs, found[1]);                                               \
                    for (int i = 0; i < HEIGHT && t + i < positions; i++)                                            \
                        for (int j = 0; j < 4 && s + j < positions; j++) {                                           \
                            double product = found[0][i][j] * found[1][i][j];                                        \
                            total += s + j > t + i ? 2 * product : s + j == t + i ? product : 0;                     \
                        }                                                                                            \
                }                                                                                                    \
            out[e] = total;                                                                                          \
        }                                                                                                            \
    }

#if TARGETS
GHOST(v4, __attribute__((target("arch=x86-64-v4"))), 16, 4)
GHOST(v3, __attribute__((target("arch=x86-64-v3"))), 8, 2)
#endif

/* 1 if this machine can do it, 0 if not. */
int64_t ghost_squares_available(void) {
#if TARGETS
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v3") != 0;
#else
    return 0;
#endif
}

void ghost_squares(const float *a, const float *b, int64_t examples, int64_t positions, int64_t inputs, int64_t outputs,
                   double *out) {
#if TARGETS
    unsigned int mode = _mm_getcsr(); /* round to nearest and lose no small number, whatever this thread was told */
    _mm_setcsr(0x1F80);
    (__builtin_cpu_supports("x86-64-v4") ? squares_v4 : squares_v3)(a, b, examples, positions, inputs, outputs, out);
    _mm_setcsr(mode);
#endif
}
