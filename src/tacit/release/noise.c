/* Gaussian noise from a keystream, added to a vector and rounded to a lattice, in one pass.

   Optional: tacit.release.noise does the same with tensor operations where this cannot be built. Double precision
   throughout; the compiler turns the loops into vector code, with the C library's vector logarithm. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define PAIRS 512
#define HALF_PI 1.5707963267948966192313216916398

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

static inline double from_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t to_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 52 random bits as a double in [0, 1). */
static inline double fraction(uint64_t word) { return from_bits((word >> 12) | 0x3ff0000000000000u) - 1.0; }

/* All 64 random bits as a double in (0, 1]: the 12 bits that a fraction leaves over decide how far the tail reaches.
   Must not be reassociated: the build switches that off, and the loader checks the result. */
static inline double above_zero(uint64_t word) {
    double low = from_bits(((word & 0xfff) << 40) | 0x3ff0000000000000u) - (1.0 - 0x1p-12);
    return fraction(word) + low * 0x1p-52;
}

/* Sine and cosine on [-pi/4, pi/4], to the last bit or two: Chebyshev fits in y = x * x. */
static inline double sine(double x, double y) {
    return x * (1.0 + y * (-0.16666666666666616 + y * (0.008333333333320363 + y * (-0.000198412698286503
           + y * (2.755731337640013e-06 + y * (-2.5050716974102745e-08 + y * 1.5894736651849094e-10))))));
}

static inline double cosine(double y) {
    return 1.0 + y * (-0.4999999999999925 + y * (0.041666666666472306 + y * (-0.0013888888869978658
           + y * (2.4801578538562985e-05 + y * (-2.755523388484742e-07 + y * 2.0630454379662294e-09)))));
}

/* Box and Muller: two uniforms in, two independent standard normals out. The second word is a direction: 52 bits within
   a quarter of the circle, one bit that mirrors it at the diagonal and one that turns it around. */
CLONES static void normals(const uint64_t *restrict key, double *restrict even, double *restrict odd) {
    for (int i = 0; i < PAIRS; i++) {
        uint64_t word = key[i + PAIRS];
        double x = (fraction(word ^ 0x8000000000000000u) - 0.5) * HALF_PI, y = x * x;
        double radius = from_bits(to_bits(sqrt(-2.0 * log(above_zero(key[i])))) ^ ((word & 2) << 62));
        double s = sine(x, y), c = cosine(y);
        even[i] = radius * (word & 1 ? s : c);
        odd[i] = radius * (word & 1 ? c : s);
    }
}

/* values[i] <- factor * (nearest lattice point to values[i] + scale * normal). The keystream holds whole blocks of
   2 * PAIRS words. */
#define ADD_NOISE(NAME, TYPE)                                                                                        \
    CLONES void NAME(TYPE *restrict values, int64_t count, const uint64_t *restrict key, double scale,               \
                     double lattice, double factor) {                                                                \
        double noise[2 * PAIRS];                                                                                     \
        double inverse = 1.0 / lattice, unit = lattice * factor;                                                     \
        for (int64_t start = 0; start < count; start += 2 * PAIRS, key += 2 * PAIRS) {                               \
            normals(key, noise, noise + PAIRS);                                                                      \
            int64_t left = count - start < 2 * PAIRS ? count - start : 2 * PAIRS;                                    \
            for (int64_t i = 0; i < left; i++)                                                                       \
                values[start + i] = (TYPE)(rint(((double)values[start + i] + scale * noise[i]) * inverse) * unit);    \
        }                                                                                                            \
    }

ADD_NOISE(add_noise_float, float)
ADD_NOISE(add_noise_double, double)

/* The nearest whole number to a value below 2^51, modulo 2^32: the low bits of its sum with 1.5 * 2^52. */
static inline uint32_t nearest(double value) { return (uint32_t)to_bits(value + 0x1.8p52); }

/* codes[rows[i]][c] <- codes[rows[i]][c] + nearest(means[i][c] * factor + deviations[i] * normal), modulo 2^32, for the
   elements first to first + count of (i, c), row by row; without means, as if they were zero. */
CLONES void move_rows(uint32_t *restrict codes, const int64_t *restrict rows, const double *restrict deviations,
                      const double *restrict means, double factor, int64_t width, int64_t first, int64_t count,
                      const uint64_t *restrict key) {
    double noise[2 * PAIRS];
    int64_t i = first / width, c = first % width;
    for (int64_t start = 0; start < count; start += 2 * PAIRS, key += 2 * PAIRS) {
        normals(key, noise, noise + PAIRS);
        int64_t left = count - start < 2 * PAIRS ? count - start : 2 * PAIRS;
        for (int64_t at = 0; at < left;) {
            int64_t run = left - at < width - c ? left - at : width - c;
            uint32_t *restrict code = codes + rows[i] * width + c;
            if (start + at + 2 * width < count) __builtin_prefetch(codes + rows[i + 1] * width, 1);
            double deviation = deviations[i];
            if (means) {
                const double *restrict mean = means + i * width + c;
                for (int64_t j = 0; j < run; j++)
                    code[j] += nearest(mean[j] * factor + deviation * noise[at + j]);
            } else {
                for (int64_t j = 0; j < run; j++) code[j] += nearest(deviation * noise[at + j]);
            }
            at += run;
            c += run;
            if (c == width) {
                c = 0;
                i++;
            }
        }
    }
}

/* out[i] <- step * codes[rows[i]], in single precision. */
CLONES void read_rows(const int32_t *restrict codes, const int64_t *restrict rows, int64_t count, int64_t width,
                      float step, float *restrict out) {
    for (int64_t i = 0; i < count; i++, out += width) {
        const int32_t *restrict code = codes + rows[i] * width;
        if (i + 4 < count) __builtin_prefetch(codes + rows[i + 4] * width, 0);
        for (int64_t j = 0; j < width; j++) out[j] = (float)code[j] * step;
    }
}
