/* Norms and sums of single- or double-precision numbers, accumulated in double precision, in one pass over memory.

   Optional: tacit.raw.exact does the same with tensor operations where this cannot be built. The compiler turns the
   inner loops into vector code. */

#include <math.h>
#include <stdint.h>

#define LANES 32
#define COLUMNS 1024
#define PROBES 8
#define ROWS 8

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#define KERNELS(TYPE)                                                                                                \
    /* out[i] = sum of the squares of row i. */                                                                      \
    CLONES void squares_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width, double *restrict out) {          \
        for (int64_t i = 0; i < rows; i++, x += width) {                                                             \
            double lane[LANES] = {0}, total = 0;                                                                     \
            int64_t j = 0;                                                                                           \
            for (; j + LANES <= width; j += LANES)                                                                   \
                for (int l = 0; l < LANES; l++) lane[l] += (double)x[j + l] * (double)x[j + l];                      \
            for (; j < width; j++) total += (double)x[j] * (double)x[j];                                             \
            for (int l = 0; l < LANES; l++) total += lane[l];                                                        \
            out[i] = total;                                                                                          \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    /* out[j] += sum over rows i of weight[i] * x[i][j], or of weight[i] * |x[i][j]|. */                             \
    CLONES void add_rows_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width, const double *restrict weight,  \
                                int absolute, double *restrict out) {                                                \
        for (int64_t start = 0; start < width; start += COLUMNS) {                                                   \
            int64_t count = width - start < COLUMNS ? width - start : COLUMNS;                                       \
            double *restrict sum = out + start;                                                                      \
            for (int64_t i = 0; i < rows; i++) {                                                                     \
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
    /* out[place[k]] += weight[k] * x[source[k]], row by row. */                                                     \
    CLONES void gather_##TYPE(const TYPE *restrict x, int64_t count, int64_t width, const int64_t *restrict source,  \
                              const int64_t *restrict place, const double *restrict weight, double *restrict out) {  \
        for (int64_t k = 0; k < count; k++) {                                                                        \
            const TYPE *restrict row = x + source[k] * width;                                                        \
            double *restrict sum = out + place[k] * width, w = weight[k];                                            \
            for (int64_t j = 0; j < width; j++) sum[j] += w * (double)row[j];                                        \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    /* seen[i][p] = x[i] . probe[:, p] for PROBES columns, ROWS rows at a time so that each probe is read once for all. */ \
    CLONES void project_##TYPE(const TYPE *restrict x, int64_t rows, int64_t width, const double *restrict probe,    \
                               double *restrict seen) {                                                              \
        for (int64_t i = 0; i < rows; i += ROWS) {                                                                   \
            const TYPE *restrict row[ROWS];                                                                          \
            double sum[ROWS][PROBES] = {{0}};                                                                        \
            for (int k = 0; k < ROWS; k++) row[k] = x + (i + k < rows ? i + k : rows - 1) * width;                   \
            for (int64_t j = 0; j < width; j++)                                                                      \
                for (int k = 0; k < ROWS; k++)                                                                       \
                    for (int p = 0; p < PROBES; p++) sum[k][p] += (double)row[k][j] * probe[j * PROBES + p];         \
            for (int k = 0; k < ROWS && i + k < rows; k++)                                                           \
                for (int p = 0; p < PROBES; p++) seen[(i + k) * PROBES + p] = sum[k][p];                             \
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
                for (int l = 0; l < LANES; l++) total += lane[l];                                                    \
                out[k] = total;                                                                                      \
            }                                                                                                        \
        }                                                                                                            \
    }

KERNELS(float)
KERNELS(double)
