/* Norms and sums of single- or double-precision numbers, accumulated in double precision, in one pass over memory.

   Optional: tacit.raw.exact does the same with tensor operations where this cannot be built. The compiler turns the
   inner loops into vector code. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 32
#define COLUMNS 1024
#define TOGETHER 4
#define PROBES 8
#define BLOCK 256
#define STRIP 24
#define ROWS 8

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define TARGETS 1
#else
#define CLONES
#define TARGETS 0
#endif

/* The sum of the lanes by halves: one after the other, each would wait for the last. */
static inline __attribute__((always_inline)) double added(double *restrict lane) {
    for (int l = 0; l < 16; l++) lane[l] += lane[l + 16];
    for (int l = 0; l < 8; l++) lane[l] += lane[l + 8];
    for (int l = 0; l < 4; l++) lane[l] += lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

#define KERNELS(TYPE)                                                                                                \
    /* out[i] = sum of the squares of row i. */                                                                      \
    CLONES void squares_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width, double *restrict out) {          \
        for (int64_t i = 0; i < rows; i++, x += width) {                                                             \
            double lane[LANES] = {0}, total = 0;                                                                     \
            int64_t j = 0;                                                                                           \
            for (; j + LANES <= width; j += LANES)                                                                   \
                for (int l = 0; l < LANES; l++) lane[l] += (double)x[j + l] * (double)x[j + l];                      \
            for (; j < width; j++) total += (double)x[j] * (double)x[j];                                             \
            total += added(lane);                                                                                    \
            out[i] = total;                                                                                          \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    /* out[j] += sum over rows i of weight[i] * x[i][j], or of weight[i] * |x[i][j]|: row after row, so that a row   \
       of zeros before the others leaves the sum as it is to the last bit. */                                        \
    CLONES void add_rows_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width, const double *restrict weight,  \
                                int absolute, double *restrict out) {                                                \
        for (int64_t start = 0; start < width; start += COLUMNS) {                                                   \
            int64_t count = width - start < COLUMNS ? width - start : COLUMNS, i = 0;                                \
            double *restrict sum = out + start;                                                                      \
            for (; i + TOGETHER <= rows && !absolute; i += TOGETHER) {                                               \
                const TYPE *restrict a = x + i * width + start, *restrict b = a + width;                             \
                const TYPE *restrict c = b + width, *restrict d = c + width;                                         \
                const double *w = weight + i;                                                                        \
                for (int64_t j = 0; j < count; j++)                                                                  \
                    sum[j] = sum[j] + w[0] * (double)a[j] + w[1] * (double)b[j] + w[2] * (double)c[j]                \
                             + w[3] * (double)d[j];                                                                  \
            }                                                                                                        \
            for (; i < rows; i++) {                                                                                  \
                const TYPE *restrict row = x + i * width + start;                                                    \
                double w = weight[i];                                                                                \
                if (absolute)                                                                                        \
                    for (int64_t j = 0; j < count; j++) sum[j] += w * fabs((double)row[j]);                          \
                else                                                                                                 \
                    for (int64_t j = 0; j < count; j++) sum[j] += w * (double)row[j];                                \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    /* out[place[k]] += weight[k] * x[source[k]] for every k: terms of one place that follow each other are added up \
       before they are added to it. */                                                                               \
    CLONES void gather_##TYPE(const TYPE *restrict x, int64_t count, int64_t width, const int64_t *restrict source,  \
                              const int64_t *restrict place, const double *restrict weight, double *restrict out) {  \
        for (int64_t k = 0, next; k < count; k = next) {                                                             \
            for (next = k + 1; next < count && place[next] == place[k];) next++;                                     \
            for (int64_t start = 0; start < width; start += COLUMNS) {                                               \
                int64_t columns = width - start < COLUMNS ? width - start : COLUMNS;                                 \
                double *restrict total = out + place[k] * width + start, sum[COLUMNS];                               \
                const TYPE *restrict row = x + source[k] * width + start;                                            \
                for (int64_t j = 0; j < columns; j++) sum[j] = weight[k] * (double)row[j];                           \
                for (int64_t i = k + 1; i < next; i++) {                                                             \
                    row = x + source[i] * width + start;                                                             \
                    for (int64_t j = 0; j < columns; j++) sum[j] += weight[i] * (double)row[j];                      \
                }                                                                                                    \
                for (int64_t j = 0; j < columns; j++) total[j] += sum[j];                                            \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    /* sums[j][p] += sum over rows i of x[i][j] * seen[i][p]. */                                                     \
    CLONES void spread_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width, const double *restrict seen,      \
                              double *restrict sums) {                                                               \
        for (int64_t i = 0; i < rows; i += ROWS) {                                                                   \
            const TYPE *restrict row[ROWS];                                                                          \
            double factor[ROWS][PROBES] = {{0}};                                                                     \
            for (int k = 0; k < ROWS; k++) row[k] = x + (i + k < rows ? i + k : rows - 1) * width;                   \
            for (int k = 0; k < ROWS && i + k < rows; k++)                                                           \
                for (int p = 0; p < PROBES; p++) factor[k][p] = seen[(i + k) * PROBES + p];                          \
            for (int64_t j = 0; j < width; j++) {                                                                    \
                double sum[PROBES];                                                                                  \
                for (int p = 0; p < PROBES; p++) sum[p] = sums[j * PROBES + p];                                      \
                for (int k = 0; k < ROWS; k++)                                                                       \
                    for (int p = 0; p < PROBES; p++) sum[p] += (double)row[k][j] * factor[k][p];                     \
                for (int p = 0; p < PROBES; p++) sums[j * PROBES + p] = sum[p];                                      \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    /* out[k] = sum over n of b[i][n] * a[j][n] for the k-th pair (i, j), pairs sorted by i as in a CSR matrix. */   \
    CLONES void sample_##TYPE(const double *restrict b, const TYPE *restrict a, int64_t rows, int64_t width,         \
                              const int64_t *restrict start, const int64_t *restrict column, double *restrict out) { \
        for (int64_t i = 0; i < rows; i++) {                                                                         \
            const double *restrict left = b + i * width;                                                             \
            for (int64_t k = start[i]; k < start[i + 1]; k++) {                                                      \
                const TYPE *restrict right = a + column[k] * width;                                                  \
                double lane[LANES] = {0}, total = 0;                                                                 \
                int64_t n = 0;                                                                                       \
                for (; n + LANES <= width; n += LANES)                                                               \
                    for (int l = 0; l < LANES; l++) lane[l] += left[n + l] * (double)right[n + l];                   \
                for (; n < width; n++) total += left[n] * (double)right[n];                                          \
                total += added(lane);                                                                                \
                out[k] = total;                                                                                      \
            }                                                                                                        \
        }                                                                                                            \
    }

KERNELS(float)
KERNELS(double)

#define UNROLL _Pragma("GCC unroll 24")

/* seen[i][p] = x[i] . probe[p] for PROBES probes, one after the other in memory. BLOCK numbers of every probe stay in
   the first-level cache for STRIP rows, of which GROUP are read at a time. The numbers of a row lie side by side in a
   vector, so each is converted once for all probes. */
#define PROJECT(NAME, TARGET, TYPE, LANES, GROUP)                                                                    \
    TARGET static void project_##NAME##_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width,                  \
                                               const double *restrict probe, double *restrict seen) {                \
        typedef double vector __attribute__((vector_size(8 * LANES), aligned(8)));                                   \
        typedef TYPE source __attribute__((vector_size(sizeof(TYPE) * LANES), aligned(sizeof(TYPE))));               \
        memset(seen, 0, rows * PROBES * sizeof(double));                                                             \
        for (int64_t strip = 0; strip < rows; strip += STRIP)                                                        \
            for (int64_t start = 0; start < width; start += BLOCK) {                                                 \
                int64_t stop = width - start < BLOCK ? width : start + BLOCK;                                        \
                for (int64_t i = strip; i < strip + STRIP && i < rows; i += GROUP) {                                 \
                    const TYPE *restrict row[GROUP];                                                                 \
                    vector sum[GROUP][PROBES];                                                                       \
                    int64_t j = start;                                                                               \
                    UNROLL for (int k = 0; k < GROUP; k++) {                                                         \
                        row[k] = x + (i + k < rows ? i + k : rows - 1) * width;                                      \
                        UNROLL for (int p = 0; p < PROBES; p++) sum[k][p] = (vector){0};                             \
                    }                                                                                                \
                    for (; j + LANES <= stop; j += LANES) {                                                          \
                        vector numbers[GROUP];                                                                       \
                        UNROLL for (int k = 0; k < GROUP; k++)                                                       \
                            numbers[k] = __builtin_convertvector(*(const source *)(row[k] + j), vector);             \
                        UNROLL for (int p = 0; p < PROBES; p++) {                                                    \
                            vector direction = *(const vector *)(probe + p * width + j);                             \
                            UNROLL for (int k = 0; k < GROUP; k++) sum[k][p] += numbers[k] * direction;              \
                        }                                                                                            \
                    }                                                                                                \
                    double found[GROUP][PROBES][LANES]; /* only so do the sums stay in registers */                  \
                    UNROLL for (int k = 0; k < GROUP; k++)                                                           \
                        UNROLL for (int p = 0; p < PROBES; p++) *(vector *)found[k][p] = sum[k][p];                  \
                    for (int k = 0; k < GROUP && i + k < rows; k++)                                                  \
                        for (int p = 0; p < PROBES; p++) {                                                           \
                            double *restrict lane = found[k][p];                                                     \
                            UNROLL for (int half = LANES / 2; half; half /= 2)                                       \
                                for (int l = 0; l < half; l++) lane[l] += lane[l + half];                            \
                            for (int64_t n = j; n < stop; n++) lane[0] += (double)row[k][n] * probe[p * width + n];  \
                            seen[(i + k) * PROBES + p] += lane[0];                                                   \
                        }                                                                                            \
                }                                                                                                    \
            }                                                                                                        \
    }

#if TARGETS
#define V4 __attribute__((target("arch=x86-64-v4")))
#define V3 __attribute__((target("arch=x86-64-v3")))
PROJECT(v4, V4, float, 8, 3) PROJECT(v4, V4, double, 8, 3) PROJECT(v3, V3, float, 4, 1) PROJECT(v3, V3, double, 4, 1)
#endif
PROJECT(any, , float, 2, 1) PROJECT(any, , double, 2, 1)

#if TARGETS
#define BEST(TYPE)                                                                                                   \
    __builtin_cpu_init();                                                                                            \
    (__builtin_cpu_supports("x86-64-v4")   ? project_v4_##TYPE                                                       \
     : __builtin_cpu_supports("x86-64-v3") ? project_v3_##TYPE                                                       \
                                           : project_any_##TYPE)
#else
#define BEST(TYPE) project_any_##TYPE
#endif

void project_float(const float *x, int64_t rows, int64_t width, const double *probe, double *seen) {
    BEST(float)(x, rows, width, probe, seen);
}

void project_double(const double *x, int64_t rows, int64_t width, const double *probe, double *seen) {
    BEST(double)(x, rows, width, probe, seen);
}
