/* Gaussian noise from a keystream, added to a vector and rounded to a lattice, in one pass.

   Optional: tacit.release.noise does the same with tensor operations where this cannot be built. Double precision
   throughout; the compiler turns the loops into vector code with the C library's vector functions. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define PAIRS 512
#define TWO_PI 6.283185307179586476925286766559

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

/* 52 random bits as a double in [0, 1). */
static inline double fraction(uint64_t word) { return from_bits((word >> 12) | 0x3ff0000000000000u) - 1.0; }

/* All 64 random bits as a double in (0, 1]: the 12 bits that a fraction leaves over decide how far the tail reaches.
   Must not be reassociated: the build switches that off, and the loader checks the result. */
static inline double above_zero(uint64_t word) {
    double low = from_bits(((word & 0xfff) << 40) | 0x3ff0000000000000u) - (1.0 - 0x1p-12);
    return fraction(word) + low * 0x1p-52;
}

/* Box and Muller: two uniforms in, two independent standard normals out. */
CLONES static void normals(const uint64_t *restrict key, double *restrict even, double *restrict odd) {
    double radius[PAIRS], angle[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        radius[i] = sqrt(-2.0 * log(above_zero(key[i])));
        angle[i] = fraction(key[i + PAIRS]) * TWO_PI;
    }
    /* Two loops: sine and cosine in one would become a call that has no vector form. */
    for (int i = 0; i < PAIRS; i++) even[i] = radius[i] * cos(angle[i]);
    for (int i = 0; i < PAIRS; i++) odd[i] = radius[i] * sin(angle[i]);
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
