/* Per-example gradients of the kernel of a convolution, one example after the other, in the cache.

   Optional: tacit.raw.gradients.compiled checks it against the tensor form when it is loaded, and does without it where
   it cannot be built. For every example i this forms the matrix

       G[w][o] = sum over positions t of window[t][w] * gradient[t][o],

   in single precision, and from the same numbers whatever is asked for: its squared norm, a copy of it, its part of a
   weighted sum. So what is summed is, bit by bit, what was measured, also where it is formed a second time. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <xmmintrin.h>
#define TARGETS 1
#else
#define TARGETS 0
#endif

enum { EXAMPLES, VIEWS, HEIGHT, WIDTH, CHANNELS, OUT_HEIGHT, OUT_WIDTH, OUTPUTS, KERNEL_HEIGHT, KERNEL_WIDTH,
       STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X, DILATION_Y, DILATION_X, BY_OUTPUT };

typedef struct {
    const int64_t *shape;
    int64_t positions, window, padded_height, padded_width, image;
    int64_t *places;  /* where in the padded images of an example the window of a position begins */
    int64_t *regular; /* the same in rows of the other matrix */
    float *padded, *unfolded, *gradients, *formed;
} Plan;

/* The squares of n numbers in double precision, in one order on every machine. */
static inline double squares_of(const float *restrict x, int64_t n) {
    double lane[32] = {0}, total = 0;
    int64_t j = 0;
    for (; j + 32 <= n; j += 32)
        for (int l = 0; l < 32; l++) lane[l] += (double)x[j + l] * (double)x[j + l];
    for (; j < n; j++) total += (double)x[j] * (double)x[j];
    for (int l = 0; l < 32; l++) total += lane[l];
    return total;
}

/* Images of one example with zeros around them. The border is zeroed once. */
static inline void pad(const Plan *p, const float *restrict a) {
    const int64_t *s = p->shape;
    int64_t line = s[WIDTH] * s[CHANNELS];
    for (int64_t v = 0; v < s[VIEWS]; v++)
        for (int64_t y = 0; y < s[HEIGHT]; y++)
            memcpy(p->padded + v * p->image + ((y + s[PADDING_Y]) * p->padded_width + s[PADDING_X]) * s[CHANNELS],
                   a + (v * s[HEIGHT] + y) * line, line * sizeof(float));
}

/* All windows of one example, as rows of `stride` numbers. */
static inline void unfold(const Plan *p, const float *restrict images, int64_t stride) {
    const int64_t *s = p->shape;
    int64_t count = s[VIEWS] * p->positions, channels = s[CHANNELS], run = s[KERNEL_WIDTH] * channels;
    for (int64_t t = 0; t < count; t++) {
        float *restrict row = p->unfolded + t * stride;
        const float *restrict corner = images + p->places[t];
        for (int64_t y = 0; y < s[KERNEL_HEIGHT]; y++) {
            const float *restrict line = corner + y * s[DILATION_Y] * p->padded_width * channels;
            if (s[DILATION_X] == 1) {
                for (int64_t j = 0; j < run; j++) row[j] = line[j];
                row += run;
            } else {
                for (int64_t x = 0; x < s[KERNEL_WIDTH]; x++, row += channels)
                    memcpy(row, line + x * s[DILATION_X] * channels, channels * sizeof(float));
            }
        }
    }
}

/* out[i][j] = sum over t of left[at[t] + i] * right[t * stride + j] for i < ROWS and j < columns. The numbers of the left
   matrix are spread, VECTORS vectors of the right one are read, and the sums stay in registers. */
#define PRODUCT(NAME, TARGET, LANES, ROWS, VECTORS)                                                                  \
    TARGET static void product_##NAME##_##ROWS##_##VECTORS(                                                          \
        const float *restrict left, const int64_t *restrict at, const float *restrict right, int64_t stride,         \
        int64_t count, int64_t columns, float *restrict out, int64_t out_stride) {                                   \
        typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));                                    \
        vector sum[ROWS][VECTORS];                                                                                   \
        float found[ROWS][VECTORS * LANES];                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                      \
            _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) sum[i][v] = (vector){0};                       \
        for (int64_t t = 0; t < count; t++) {                                                                        \
            const float *restrict l = left + at[t];                                                                  \
            const vector *restrict r = (const vector *)(right + t * stride);                                         \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                  \
                _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) sum[i][v] += l[i] * r[v];                  \
        }                                                                                                            \
        if (columns == VECTORS * LANES) {                                                                            \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                  \
                _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++)                                            \
                    ((vector *)(out + i * out_stride))[v] = sum[i][v];                                               \
            return;                                                                                                  \
        }                                                                                                            \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                      \
            _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++)                                                \
                ((vector *)found[i])[v] = sum[i][v];                                                                 \
        for (int i = 0; i < ROWS; i++) memcpy(out + i * out_stride, found[i], columns * sizeof(float));              \
    }

#define ROW(NAME, ROWS)                                                                                              \
    case ROWS:                                                                                                       \
        (wide ? product_##NAME##_##ROWS##_2 : product_##NAME##_##ROWS##_1)(left + i, at, right + j, stride, count,   \
                                                                           shown, out + i * columns + j, columns);   \
        break;

/* The whole product of `rows` by `columns`; the rows of the right matrix are padded to whole vectors. `lines`: the left
   matrix lies in runs of so many numbers, each `jump` after the last. */
#define WHOLE(NAME, TARGET, LANES, MOST, ROWS_OF)                                                                    \
    TARGET static void whole_##NAME(const float *restrict left, const int64_t *restrict at, int64_t run,             \
                                    int64_t jump, const float *restrict right, int64_t stride, int64_t count,        \
                                    int64_t rows, int64_t columns, float *restrict out) {                            \
        for (int64_t j = 0; j < columns;) {                                                                          \
            int wide = columns - j > LANES;                                                                          \
            int64_t block = wide ? 2 * LANES : LANES, shown = columns - j < block ? columns - j : block;             \
            for (int64_t first = 0; first < rows; first += run, left += jump - run)                                  \
                for (int64_t i = first; i < first + run;) {                                                          \
                    int64_t height = first + run - i < MOST ? first + run - i : MOST;                                \
                    switch (height) { ROWS_OF(NAME) }                                                                \
                    i += height;                                                                                     \
                }                                                                                                    \
            left -= (rows / run) * (jump - run);                                                                     \
            j += block;                                                                                              \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    TARGET static int64_t work_##NAME(const float *a, const float *b, const Plan *p, const int64_t *index,           \
                                      int64_t width, const double *weights, float *kept, double *squares,            \
                                      double *sizes, double *total) {                                                               \
        const int64_t *s = p->shape;                                                                                 \
        int64_t count = s[VIEWS] * p->positions, outputs = s[OUTPUTS], run = s[KERNEL_WIDTH] * s[CHANNELS];          \
        int64_t vectors = (s[BY_OUTPUT] ? p->window : outputs) + LANES - 1, stride = vectors / LANES * LANES;        \
        int direct = s[DILATION_X] == 1 && (run % MOST == 0 || run % MOST >= MOST / 2 || run >= 4 * MOST);           \
        for (int64_t e = 0; e < s[EXAMPLES]; e++) {                                                                  \
            const float *images = a + e * s[VIEWS] * s[HEIGHT] * s[WIDTH] * s[CHANNELS];                             \
            const float *rows = b + e * count * outputs;                                                             \
            if (sizes != NULL) {                                                                                     \
                sizes[2 * e] = squares_of(images, s[VIEWS] * s[HEIGHT] * s[WIDTH] * s[CHANNELS]);                    \
                sizes[2 * e + 1] = squares_of(rows, count * outputs);                                                \
            }                                                                                                        \
            if (p->padded != NULL) {                                                                                 \
                pad(p, images);                                                                                      \
                images = p->padded;                                                                                  \
            }                                                                                                        \
            if (s[BY_OUTPUT]) {                                                                                      \
                unfold(p, images, stride);                                                                           \
                whole_##NAME(rows, p->regular, outputs, outputs, p->unfolded, stride, count, outputs, p->window,     \
                             p->formed);                                                                             \
            } else {                                                                                                 \
                if (stride != outputs) {                                                                             \
                    for (int64_t t = 0; t < count; t++)                                                              \
                        memcpy(p->gradients + t * stride, rows + t * outputs, outputs * sizeof(float));              \
                    rows = p->gradients;                                                                             \
                }                                                                                                    \
                if (direct)                                                                                          \
                    whole_##NAME(images, p->places, run, s[DILATION_Y] * p->padded_width * s[CHANNELS], rows,        \
                                 stride, count, p->window, outputs, p->formed);                                      \
                else {                                                                                               \
                    unfold(p, images, p->window);                                                                    \
                    whole_##NAME(p->unfolded, p->regular, p->window, p->window, rows, stride, count, p->window,      \
                                 outputs, p->formed);                                                                \
                }                                                                                                    \
            }                                                                                                        \
            const float *found = p->formed;                                                                          \
            if (index != NULL) {                                                                                     \
                float *restrict active = p->formed + p->window * outputs;                                            \
                for (int64_t j = 0; j < width; j++) active[j] = found[index[j]];                                     \
                found = active;                                                                                      \
            }                                                                                                        \
            if (squares != NULL) squares[e] = squares_of(found, width);                                              \
            if (kept != NULL) memcpy(kept + e * width, found, width * sizeof(float));                                \
            if (total != NULL) {                                                                                     \
                double w = weights[e];                                                                               \
                if (w != 0)                                                                                          \
                    for (int64_t j = 0; j < width; j++) total[j] += w * (double)found[j];                            \
            }                                                                                                        \
        }                                                                                                            \
        return 0;                                                                                                    \
    }

#define EIGHT(NAME) ROW(NAME, 1) ROW(NAME, 2) ROW(NAME, 3) ROW(NAME, 4) ROW(NAME, 5) ROW(NAME, 6) ROW(NAME, 7) ROW(NAME, 8)
#define FOUR(NAME) ROW(NAME, 1) ROW(NAME, 2) ROW(NAME, 3) ROW(NAME, 4)
#define PRODUCTS(NAME, TARGET, LANES, ROWS) PRODUCT(NAME, TARGET, LANES, ROWS, 1) PRODUCT(NAME, TARGET, LANES, ROWS, 2)

#if TARGETS
#define V4 __attribute__((target("arch=x86-64-v4")))
#define V3 __attribute__((target("arch=x86-64-v3")))
PRODUCTS(v4, V4, 16, 1) PRODUCTS(v4, V4, 16, 2) PRODUCTS(v4, V4, 16, 3) PRODUCTS(v4, V4, 16, 4)
PRODUCTS(v4, V4, 16, 5) PRODUCTS(v4, V4, 16, 6) PRODUCTS(v4, V4, 16, 7) PRODUCTS(v4, V4, 16, 8)
WHOLE(v4, V4, 16, 8, EIGHT)
PRODUCTS(v3, V3, 8, 1) PRODUCTS(v3, V3, 8, 2) PRODUCTS(v3, V3, 8, 3) PRODUCTS(v3, V3, 8, 4)
WHOLE(v3, V3, 8, 4, FOUR)
#endif

/* 1 if this machine can do it, 0 if not. */
int64_t window_gradients_available(void) {
#if TARGETS
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v3") != 0;
#else
    return 0;
#endif
}

static int64_t whole_vectors(int64_t n) { return (n + 15) / 16 * 16 + 16; }

/* For every example: squares[i] of the active numbers of its gradient, a copy of them in kept[i], squared sizes[i] of its
   images and of its output gradients, weights[i] times the active numbers added to total; each unless it is NULL. `index` names the active ones, NULL for all. The gradient lies as (window,
   channels, outputs), or (outputs, window, channels) if shape says BY_OUTPUT. 0, or 1 if memory does not suffice. */
int64_t window_gradients(const float *a, const float *b, const int64_t *shape, const int64_t *index, int64_t active,
                         const double *weights, float *kept, double *squares, double *sizes, double *total) {
    const int64_t *s = shape;
    Plan p = {.shape = shape, .positions = s[OUT_HEIGHT] * s[OUT_WIDTH]};
    int64_t count = s[VIEWS] * p.positions, done = 1;
    p.window = s[KERNEL_HEIGHT] * s[KERNEL_WIDTH] * s[CHANNELS];
    p.padded_height = s[HEIGHT] + 2 * s[PADDING_Y];
    p.padded_width = s[WIDTH] + 2 * s[PADDING_X];
    p.image = p.padded_height * p.padded_width * s[CHANNELS];
    int pads = s[PADDING_Y] || s[PADDING_X];
    p.places = malloc(count * sizeof(int64_t));
    p.regular = malloc(count * sizeof(int64_t));
    p.padded = pads ? calloc(s[VIEWS] * p.image + 64, sizeof(float)) : NULL;
    p.unfolded = calloc(count * whole_vectors(p.window) + 64, sizeof(float));
    p.gradients = calloc(count * whole_vectors(s[OUTPUTS]) + 64, sizeof(float));
    p.formed = malloc((p.window * s[OUTPUTS] + active + 64) * sizeof(float));
    if (p.places && p.regular && (p.padded || !pads) && p.unfolded && p.gradients && p.formed) {
        int64_t t = 0;
        for (int64_t v = 0; v < s[VIEWS]; v++)
            for (int64_t y = 0; y < s[OUT_HEIGHT]; y++)
                for (int64_t x = 0; x < s[OUT_WIDTH]; x++, t++) {
                    p.places[t] = v * p.image + (y * s[STRIDE_Y] * p.padded_width + x * s[STRIDE_X]) * s[CHANNELS];
                    p.regular[t] = t * (s[BY_OUTPUT] ? s[OUTPUTS] : p.window);
                }
#if TARGETS
        /* Round to nearest and lose no small number, whatever this thread was told: formed twice, formed alike. */
        unsigned int mode = _mm_getcsr();
        _mm_setcsr(0x1F80);
        int64_t width = index == NULL ? p.window * s[OUTPUTS] : active;
        done = (__builtin_cpu_supports("x86-64-v4") ? work_v4 : work_v3)(a, b, &p, index, width, weights, kept, squares,
                                                                         sizes, total);
        _mm_setcsr(mode);
#endif
    }
    free(p.places);
    free(p.regular);
    free(p.padded);
    free(p.unfolded);
    free(p.gradients);
    free(p.formed);
    return done;
}
