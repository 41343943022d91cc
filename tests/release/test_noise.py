"""Gaussian noise: its size, its shape, its freshness, and what its low bits give away."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats
from torch import Tensor

from release.statistics import LEAST, looks_like, uncorrelated
from tacit.release import device_noise
from tacit.release import noise as module
from tacit.release.noise import Noise, SecureNoise, SeededNoise, lattice


@pytest.fixture(params=["native", "tensors"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to compute secure noise: compiled, and with tensor operations where that was not possible."""
    if request.param == "tensors":
        monkeypatch.setattr(module, "_native", None)
    elif module._native is None:
        pytest.skip("the compiled noise was not built")
    return str(request.param)


def drawn(noise: Noise, count: int, scale: float, dtype: torch.dtype = torch.float64) -> Tensor:
    values = torch.zeros(count, dtype=dtype)
    noise.add(values, scale, 1.0)
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 3e-4, 700.0])
def test_secure_noise_has_the_stated_deviation_and_no_other(
    path: str, dtype: torch.dtype, scale: float
) -> None:
    sample = drawn(SecureNoise(), 40_000, scale, dtype)
    assert looks_like(sample, scale)
    assert not looks_like(sample, scale * 2 / 3)
    assert not looks_like(sample, scale * 3 / 2)


def test_seeded_noise_has_the_stated_deviation_and_no_other() -> None:
    noise = SeededNoise(1)
    noise.begin(0)
    sample = drawn(noise, 40_000, 2.5)
    assert looks_like(sample, 2.5)
    assert not looks_like(sample, 2.5 * 2 / 3)
    assert not looks_like(sample, 2.5 * 3 / 2)


def test_tails_are_as_heavy_as_a_gaussian_has_them(path: str) -> None:
    sample = drawn(SecureNoise(), 1_000_000, 1.0)
    for bound in (2.0, 3.0, 4.0):
        for side in (sample > bound, sample < -bound):
            expected = float(stats.norm.sf(bound))
            assert stats.binomtest(int(side.sum()), sample.numel(), expected).pvalue > LEAST


def test_the_tail_reaches_to_two_to_the_minus_64(path: str) -> None:
    class Zeros:
        def fill(self, buffer: bytearray, count: int) -> None:
            buffer[:] = bytes(len(buffer))

    class Ones:
        def fill(self, buffer: bytearray, count: int) -> None:
            buffer[:] = b"\xff" * len(buffer)

    extreme, none = SecureNoise(), SecureNoise()
    extreme._stream, none._stream = Zeros(), Ones()  # type: ignore[assignment]
    assert float(drawn(extreme, 10, 1.0)[0]) == pytest.approx(math.sqrt(2 * 64 * math.log(2)), abs=1e-6)
    assert drawn(none, 10, 1.0).tolist() == [0.0] * 10


def test_the_two_ways_agree_on_the_same_keystream(monkeypatch: pytest.MonkeyPatch) -> None:
    if module._native is None:
        pytest.skip("the compiled noise was not built")

    class Fixed:
        def __init__(self) -> None:
            self.generator = np.random.default_rng(0)

        def fill(self, buffer: bytearray, count: int) -> None:
            buffer[:] = self.generator.bytes(len(buffer))

    found = []
    for native in (module._native, None):
        monkeypatch.setattr(module, "_native", native)
        noise = SecureNoise()
        noise._stream = Fixed()  # type: ignore[assignment]
        values = torch.linspace(-3, 3, 70_001, dtype=torch.float64)
        noise.add(values, 0.7, 0.25)
        found.append(values)
    assert float((found[0] - found[1]).abs().max()) <= lattice(0.7) * 0.25
    assert float((found[0] == found[1]).double().mean()) > 0.999


def test_a_compiled_form_that_disagrees_is_not_used() -> None:
    if module._native is None:
        pytest.skip("the compiled noise was not built")
    right = module._native[torch.float64]
    assert module._agrees(right)

    def two_thirds(values: int, count: int, key: int, scale: float, step: float, factor: float) -> None:
        right(values, count, key, scale * 2 / 3, step, factor)

    assert not module._agrees(two_thirds)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (1,), (1024,), (1025,), (3, 5, 7, 2)])
def test_every_element_is_noised_and_scaled_in_place(path: str, shape: tuple[int, ...]) -> None:
    noise = SecureNoise()
    values = torch.full(shape, 1000.0)
    noise.add(values, 0.5, 0.5)
    assert (values != 500.0).double().mean() > 0.99
    assert (values - 500.0).abs().max() < 5.0


def test_elements_of_a_tensor_in_another_layout_are_noised_in_place(path: str) -> None:
    values = torch.zeros(8, 6, 5, 5).contiguous(memory_format=torch.channels_last)
    target = values.permute(2, 0, 1, 3)
    SecureNoise().add(target, 1.0, 1.0)
    assert looks_like(values, 1.0)
    assert values.is_contiguous(memory_format=torch.channels_last)


def test_no_noise_where_none_is_asked_for() -> None:
    for noise in (SecureNoise(), SeededNoise(0)):
        values = torch.arange(4.0)
        noise.add(values, 0.0, 0.5)
        assert values.tolist() == [0.0, 0.5, 1.0, 1.5]


def test_noise_is_never_used_twice(path: str) -> None:
    noise = SecureNoise()
    samples = [drawn(noise, 50_000, 1.0) for _ in range(3)] + [drawn(SecureNoise(), 50_000, 1.0)]
    for i, one in enumerate(samples):
        for other in samples[:i]:
            assert uncorrelated(one, other)
            assert uncorrelated(one[1:], other[:-1])
    inside = samples[0]
    for lag in (1, 2, 512, 1024, 32 * 1024):
        assert uncorrelated(inside[lag:], inside[:-lag])


def test_a_forked_process_draws_other_noise(path: str) -> None:
    noise = SecureNoise()
    drawn(noise, 10, 1.0)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, drawn(noise, 500, 1.0).numpy().tobytes())
        os._exit(0)
    os.close(send)
    data = b""
    while part := os.read(receive, 1 << 16):
        data += part
    os.close(receive)
    os.waitpid(child, 0)
    theirs = torch.from_numpy(np.frombuffer(data, np.float64).copy())
    assert theirs.numel() == 500
    assert not np.intersect1d(theirs.numpy(), drawn(noise, 500, 1.0).numpy()).size > 5
    assert uncorrelated(theirs, drawn(noise, 500, 1.0))


def test_seeded_noise_depends_on_seed_and_place() -> None:
    def sample(seed: int, index: int) -> tuple[Tensor, Tensor]:
        noise = SeededNoise(seed)
        noise.begin(index)
        return drawn(noise, 2000, 1.0), drawn(noise, 2000, 1.0)

    first, second = sample(1, 0)
    again = sample(1, 0)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    for other in (second, sample(1, 1)[0], sample(2, 0)[0], sample(11, 0)[0]):
        assert uncorrelated(first, other)


def test_only_keystream_noise_calls_itself_secure() -> None:
    assert SecureNoise().secure
    assert not SeededNoise(0).secure


# Low bits


def on_grid(values: Tensor, step: float) -> float:
    """The share of values that are whole multiples of a step."""
    scaled = values.double() / step
    return float((scaled == scaled.round()).double().mean())


def near_zero(values: Tensor) -> Tensor:
    return values[values.abs() < 2.0**-4]


def test_the_low_bits_of_a_naive_mechanism_betray_its_input() -> None:
    """Mironov's attack: outputs near zero are multiples of 2⁻⁵³ if the sum was 1, and seldom if it was 0."""
    generator = torch.Generator().manual_seed(0)

    def naive(value: float) -> Tensor:
        return value + torch.randn(200_000, generator=generator, dtype=torch.float64)

    assert on_grid(near_zero(naive(1.0)), 2.0**-53) == 1.0
    assert on_grid(near_zero(naive(0.0)), 2.0**-53) < 0.5


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3, 1e-9, 12345.678])
def test_every_secure_output_is_a_lattice_point_whatever_the_input(path: str, value: float) -> None:
    values = torch.full((50_000,), value, dtype=torch.float64)
    SecureNoise().add(values, 1.3, 1.0)
    assert on_grid(values, lattice(1.3)) == 1.0
    # Nor do the low bits of the lattice point itself tell anything: they are uniform for every input.
    low = (values / lattice(1.3)).round().remainder(64).to(torch.int64)
    assert stats.chisquare(torch.bincount(low, minlength=64).numpy()).pvalue > LEAST


def test_two_neighbouring_inputs_reach_the_same_outputs(path: str) -> None:
    """In single precision, where a release really happens, no output excludes one of two neighbours."""
    noise = SecureNoise()
    outputs = []
    for value in (0.0, 1 / 3):
        values = torch.full((60_000,), value)
        noise.add(values, 2.0**-8, 1 / 64)
        outputs.append(values)
    unit = lattice(2.0**-8) / 64
    for values in outputs:
        points = values.double() / unit
        assert torch.equal(points, points.round())


@pytest.mark.parametrize("scale", [1e-3, 0.9, 1.0, 1.5, 2.0, 1e6])
def test_the_lattice_depends_on_the_scale_alone_and_is_fine(scale: float) -> None:
    step = lattice(scale)
    assert math.log2(step) == int(math.log2(step))
    assert 2.0**-25 < step / scale <= 2.0**-24


HERE = torch.device("cpu")


def _there(count: int, scale: float, dtype: torch.dtype, start: float = 0.0) -> Tensor:
    """What is added on a device, on the CPU in its place."""
    values = torch.full((count,), start, dtype=dtype)
    noise = SecureNoise()
    noise._there[HERE] = device_noise.MadeThere(HERE)
    noise._add_there(values, scale, 1.0)
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 3e-4, 700.0])
def test_noise_for_a_device_has_the_stated_deviation_and_lies_on_the_lattice(
    dtype: torch.dtype, scale: float
) -> None:
    sample = _there(40_000, scale, dtype, start=scale / 3) - scale / 3
    assert looks_like(sample, scale)
    assert not looks_like(sample, scale * 2 / 3)
    assert not looks_like(sample, scale * 3 / 2)
    points = _there(1000, scale, torch.float64, start=scale * 0.1234567) / lattice(scale)
    assert torch.equal(points, points.round())


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_noise, "PIECE", 2 * device_noise.BLOCK)


@pytest.mark.usefixtures("short_pieces")
def test_noise_made_on_a_device_is_never_given_twice() -> None:
    made = device_noise.MadeThere(HERE)
    counts = [700, 5000, 1, 0, 1023, 1025, 3000, 3000, 3000, 40_000, 10]
    taken = [made.take(count) for count in counts]
    assert [len(part) for part in taken] == counts
    whole = torch.cat(taken)
    assert len(whole.unique()) == len(whole)
    assert looks_like(whole, 1.0)
    another = device_noise.MadeThere(HERE).take(len(whole))  # from the same nonces, under another key
    assert not set(whole.tolist()) & set(another.tolist())


@pytest.mark.usefixtures("short_pieces")
def test_a_forked_process_does_not_take_what_its_parent_has_made_on_a_device() -> None:
    made = device_noise.MadeThere(HERE)
    made.take(10)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, made.take(4).numpy().tobytes())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    there = np.frombuffer(os.read(reading, 32), np.float64)
    os.close(reading)
    os.close(writing)
    here = made.take(4).numpy()
    assert len(there) == 4
    assert not np.intersect1d(here, there).size


@pytest.mark.parametrize(
    ("key", "nonce", "blocks"),
    [(bytes(32), 0, 3), (bytes(range(224, 256)), 2**96 - 1, 1), (b"\x80\x7f\xff\x01" * 8, 2**40 + 7, 200)],
)
def test_the_cipher_of_devices_is_chacha20(key: bytes, nonce: int, blocks: int) -> None:
    """Word for word what OpenSSL gives; its 16 bytes are the counter, which starts at 0, and the nonce."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(4) + nonce.to_bytes(12, "little")), mode=None).encryptor()
    words = np.frombuffer(cipher.update(bytes(64 * blocks)), np.int32)
    assert np.array_equal(device_noise.keystream(key, nonce, blocks, HERE).flatten().numpy(), words)


def test_normal_numbers_follow_from_the_words_as_stated() -> None:
    """A radius from all 64 bits of the first word of a pair, a direction from the second; the ends too."""
    words = np.random.default_rng(1).integers(0, 2**64, device_noise.BLOCK, np.uint64)
    words[:3], words[512:515] = (0, 2**64 - 1, 1), (3, 2**63, 2**64 - 2)
    found = device_noise.normals(torch.from_numpy(words.view(np.int32)))
    for i in range(device_noise.PAIRS):
        first, second = int(words[i]), int(words[512 + i]) ^ 1 << 63
        radius = math.sqrt(-2 * math.log((first + 1) * 2.0**-64))
        angle = ((second >> 12) * 2.0**-52 - 0.5) * math.pi / 2
        x, y = math.cos(angle), math.sin(angle)
        if second & 1:
            x, y = y, x
        sign = -1 if second & 2 else 1
        assert found[i].item() == pytest.approx(sign * radius * x, rel=1e-12, abs=1e-15)
        assert found[512 + i].item() == pytest.approx(sign * radius * y, rel=1e-12, abs=1e-15)


def test_a_device_whose_integers_do_not_wrap_gets_its_noise_from_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert device_noise.works_on(HERE)
    monkeypatch.setattr(device_noise, "_quarter_rounds", lambda *rows: None)
    assert not device_noise.works_on(HERE)
    noise = SecureNoise()
    monkeypatch.setattr(module, "_HOST", ())
    values = torch.zeros(4000)
    noise.add(values, 2.0, 1.0)
    assert noise._there == {HERE: None}
    assert looks_like(values, 2.0)
