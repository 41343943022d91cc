from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.bars import BARS
from benchmarks.contenders import CONTENDERS, contenders_for
from benchmarks.contenders.tacit import rows_of_pretrained
from benchmarks.contenders.types import Contender, Family, Step, StepSettings
from benchmarks.fairness import BATCH, Agreement, FairnessChecker
from benchmarks.isolation import Failure, Isolated
from benchmarks.machine import machine
from benchmarks.memory_100m import Excess
from benchmarks.memory_100m import table as memory_table
from benchmarks.output import write_run
from benchmarks.peak import idle_anonymous, peak_anonymous
from benchmarks.results import Measurement, analyse, processor_share, ratios
from benchmarks.rounds import Schedule, StepTime, run_rounds
from benchmarks.step import parse_arguments, slow_modes
from benchmarks.table import cells, failures, markdown_table, terminal_table, verdict
from benchmarks.worker import TINY, MemoryWorker, PeakMemory
from benchmarks.workloads import FINETUNING, HUNDRED_MILLION, PARTLY_FROZEN, WORKLOADS, Batch, Workload
from rich.console import Console
from torch import nn

import tacit


def nobody(seconds: dict[str, float]) -> set[str]:
    return set()


def measurement(
    name: str, seconds: dict[int, float], peak: int | None = 100, failure: str | None = None
) -> Measurement:
    memory = None if peak is None else PeakMemory(20, peak - 20)
    times = {number: StepTime(value, value / 2) for number, value in seconds.items()}
    return Measurement(CONTENDERS[name], times, memory, Agreement(0.0, 9, 1.0, 1.0), failure)


def example_measurements() -> list[Measurement]:
    return [
        measurement("sgd", {0: 2.0, 1: 6.0, 2: 2.0}, peak=150),
        measurement("sgd-cl", {0: 1.0, 1: 3.0, 2: 1.0}, peak=100),
        measurement("opacus-ew", {0: 2.4, 2: 2.4}, peak=500),
        measurement("opacus-hooks", {0: 9.0, 1: 27.0}, peak=500),
        measurement("opacus-ghost", {}, peak=None, failure="RuntimeError: cannot"),
        measurement("tacit-dense", {0: 1.2, 1: 3.6, 2: 1.2}, peak=125),
        measurement("tacit-rows", {0: 1.7, 1: 5.1, 2: 1.7}, peak=125),
    ]


class TestRatios:
    def test_divides_by_the_fastest_reference_of_the_same_round(self) -> None:
        assert ratios({0: 2.0, 1: 9.0, 7: 5.0}, [{0: 1.0, 1: 9.0}, {0: 4.0, 1: 3.0}]) == [2.0, 3.0]

    def test_time_and_memory_are_against_the_fastest_plain_sgd(self) -> None:
        found = {result.contender: result for result in analyse("W3", example_measurements())}
        dense = found["tacit-dense"]
        assert dense.time_ratio is not None
        assert dense.time_ratio.median == pytest.approx(1.2)
        assert dense.memory_ratio == pytest.approx(1.25)
        assert dense.step_memory_ratio == pytest.approx(105 / 80)
        assert found["sgd"].memory_ratio == pytest.approx(1.5)
        assert found["opacus-ew"].rounds == 2

    def test_bars(self) -> None:
        found = {result.contender: result for result in analyse("W3", example_measurements())}
        assert [limit.met for limit in found["tacit-dense"].limits] == [False, False, True]
        assert found["tacit-dense"].opacus_bar is not None
        assert found["tacit-dense"].opacus_bar.value == pytest.approx(2.0)
        assert [limit.met for limit in found["tacit-rows"].limits] == [False, False, False]
        assert found["opacus-ew"].limits == []

    def test_a_failure_has_no_figures(self) -> None:
        found = {result.contender: result for result in analyse("W3", example_measurements())}
        assert found["opacus-ghost"].failure == "RuntimeError: cannot"
        assert found["opacus-ghost"].time_ratio is None

    def test_without_plain_sgd_there_is_no_ratio(self) -> None:
        (result,) = analyse("W1", [measurement("tacit-dense", {0: 1.0})])
        assert result.time_ratio is None
        assert result.limits == []

    def test_processor_share(self) -> None:
        assert processor_share(analyse("W3", example_measurements())) == pytest.approx(0.5)


class TestRounds:
    def test_every_round_gives_everyone_a_turn_in_changing_order(self) -> None:
        taken: list[str] = []

        def take_turn(name: str, steps: int) -> StepTime:
            taken.append(name)
            return StepTime(steps, steps)

        names = dict.fromkeys("abcd", 0.1)
        turns = run_rounds(take_turn, names, nobody, Schedule(6, 0.0))
        orders = [taken[i : i + 4] for i in range(0, len(taken), 4)]
        assert all(sorted(order) == list("abcd") for order in orders)
        assert len(orders) == 6
        assert len({tuple(order) for order in orders}) > 1
        assert turns.times["a"] == {number: StepTime(2, 2) for number in range(6)}

    def test_slow_contenders_take_part_first_middle_and_last(self) -> None:
        def take_turn(name: str, steps: int) -> StepTime:
            return StepTime(1, 9) if name == "slow" else StepTime(1, 1)

        def slow(seconds: dict[str, float]) -> set[str]:
            return {name for name, value in seconds.items() if value > 5}

        # What counts is the first round, not the warm-up.
        turns = run_rounds(take_turn, {"a": 9.0, "slow": 1.0}, slow, Schedule(7, 0.0))
        assert set(turns.times["slow"]) == {0, 3, 6}
        assert set(turns.times["a"]) == set(range(7))

    def test_an_opacus_mode_near_the_fastest_is_not_slow(self) -> None:
        names = ("sgd", "opacus-ew", "opacus-hooks", "opacus-ghost", "tacit-dense")
        seconds = dict(zip(names, (0.5, 1.0, 1.2, 1.3, 9.0), strict=True))
        assert slow_modes({name: CONTENDERS[name] for name in names}, seconds) == {"opacus-ghost"}

    def test_goes_on_until_the_time_is_used_but_not_for_ever(self) -> None:
        ticks = iter(range(100))
        turns = run_rounds(
            lambda *_: StepTime(1, 1), {"a": 1.0}, nobody, Schedule(2, 4.5), lambda: next(ticks)
        )
        assert len(turns.times["a"]) == 4
        turns = run_rounds(lambda *_: StepTime(1, 1), {"a": 1.0}, nobody, Schedule(2, 4.5), lambda: 0.0)
        assert len(turns.times["a"]) == 10

    def test_who_fails_is_left_out(self) -> None:
        def take_turn(name: str, steps: int) -> StepTime | Failure:
            return Failure("broken") if name == "bad" else StepTime(1, 1)

        turns = run_rounds(take_turn, {"good": 1.0, "bad": 1.0}, nobody, Schedule(3, 0.0))
        assert turns.failures == {"bad": Failure("broken")}
        assert list(turns.times) == ["good"]

    def test_a_turn_that_had_the_processor_too_little_is_taken_again_while_there_is_patience(self) -> None:
        shares = iter([0.5, 0.7, 0.99, 0.6, 0.4, 0.3])
        ticks = itertools.count()

        def take_turn(name: str, steps: int) -> StepTime:
            return StepTime(1.0, next(shares))

        schedule = Schedule(2, 0.0, patience=4.0)
        turns = run_rounds(take_turn, {"a": 1.0}, nobody, schedule, lambda: float(next(ticks)))
        assert [turns.times["a"][number].cpu for number in (0, 1)] == [0.99, 0.6]
        assert turns.repeated == 4


class TestOutput:
    def test_files(self, tmp_path: Path) -> None:
        results = analyse("W3", example_measurements())
        written = write_run(tmp_path / "run" / "step.json", machine(1), {"rounds": 3}, results, WORKLOADS)
        assert [path.suffix for path in written] == [".json", ".md", ".png"]
        content = json.loads(written[0].read_text())
        assert content["machine"]["torch"] == torch.__version__
        assert content["machine"]["threads"] == 1
        assert content["results"][5]["time_bar"] == {"value": pytest.approx(1.2), "bar": 1.05, "met": False}
        assert "RuntimeError: cannot" in written[1].read_text()
        assert written[2].read_bytes().startswith(b"\x89PNG")
        assert [path.name for path in sorted(written[0].parent.iterdir())] == [
            "step.json", "step.md", "step.png",
        ]  # fmt: skip

    def test_table_shows_bar_and_verdict(self) -> None:
        results = analyse("W3", example_measurements())
        rows = {result.contender: cells(result) for result in results}
        assert rows["tacit-dense"][3] == "≤ 1.05 MISS"
        assert rows["tacit-rows"][3] == "≤ 0.65 MISS"
        assert rows["opacus-ghost"][1] == "no figures"
        assert failures(results) == ["Opacus ghost (W3): RuntimeError: cannot"]
        assert verdict(results) == "1 of 6 bars met"
        console = Console(width=200, record=True, file=None, quiet=True)
        with console.capture() as captured:
            console.quiet = False
            console.print(terminal_table(results, WORKLOADS))
        assert "≤ 1.05 MISS" in captured.get()
        assert "| ≤ 0.65 MISS |" in markdown_table(results, WORKLOADS)

    def test_memory_at_100_million(self) -> None:
        within = Excess("m", 100, 1000, 1700, None)
        assert within.parameter_multiple == pytest.approx(1.75)
        assert within.met
        assert not Excess("m", 100, 1000, 1800, None).met
        assert not Excess("m", 100, 1000, None, "absent").met
        assert memory_table([within, Excess("m", 100, 1000, None, "absent")]).row_count == 2


class TestContenders:
    def test_channels_last_only_for_convolutions(self) -> None:
        linear = [contender.name for contender in contenders_for(WORKLOADS["W1"])]
        assert "sgd-cl" not in linear
        assert "tacit-dense" in linear
        assert "opacus-ghost-cl" in [contender.name for contender in contenders_for(WORKLOADS["W2"])]

    def test_every_bar_has_a_tacit_contender_and_covers_every_workload(self) -> None:
        bars = [c.bar for c in CONTENDERS.values() if c.family is Family.TACIT and c.bar is not None]
        assert sorted(bars) == sorted(BARS)
        for contender in CONTENDERS.values():
            if contender.bar is not None:
                workloads = FINETUNING if contender.only_pretrained else WORKLOADS
                assert set(BARS[contender.bar].time) == set(
                    PARTLY_FROZEN if contender.bar == "part" else workloads
                )

    def test_what_is_trained_of_a_partly_frozen_network_is_less_than_all_of_it(self) -> None:
        for workload in PARTLY_FROZEN.values():
            parameters = list(workload.model().parameters())
            trained = sum(p.numel() for p in parameters if p.requires_grad)
            assert 0 < trained < 0.1 * sum(p.numel() for p in parameters)

    def test_fine_tuning_trains_a_share_of_rows_and_every_vector(self) -> None:
        model = FINETUNING["mobilenet-norms"].model()
        support = rows_of_pretrained(tacit, model)
        vectors = sum(p.numel() for p in model.parameters() if p.dim() == 1)
        convolutions = sum(round(0.1 * p.shape[0]) * p[0].numel() for p in model.parameters() if p.dim() == 4)
        assert support.size == vectors + convolutions + 10 * 1280
        assert "tacit-sparta" not in [contender.name for contender in contenders_for(WORKLOADS["W1"])]

    def test_model_sizes(self) -> None:
        def size(workload: Workload) -> int:
            with torch.device("meta"):
                return sum(p.numel() for p in workload.make_model().parameters())

        assert [size(workload) for workload in WORKLOADS.values()] == [
            1_863_690, 26_010, 550_570, 2_748_890, 10_973_698,
        ]  # fmt: skip
        assert all(100e6 <= size(workload) < 100.1e6 for workload in HUNDRED_MILLION.values())

    @pytest.mark.parametrize(
        "arguments",
        [["--workloads", "W9"], ["--contenders", "nobody"], ["--rounds", "0"], ["--threads", "x"]],
    )
    def test_bad_options(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit):
            parse_arguments(arguments)


def private_step(noise_factor: float = 1.0, clips: bool = True, active: float = 1.0) -> Contender:
    """A brute-force contender, right by default, with the given faults."""

    def build(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
        def step() -> None:
            parameters = list(model.parameters())
            generator = torch.Generator().manual_seed(0)
            masks = [torch.rand(p.shape, generator=generator) < active for p in parameters]
            total = [torch.zeros_like(p) for p in parameters]
            for index in range(len(batch[0])):
                example = (batch[0][index : index + 1], batch[1][index : index + 1])
                found = torch.autograd.grad(workload.loss(model, example).sum(), parameters)
                masked = [g * m for g, m in zip(found, masks, strict=True)]
                norm = torch.cat([g.flatten() for g in masked]).norm()
                factor = (settings.clip_norm / norm).clamp(max=1) if clips else 1.0
                for t, g in zip(total, masked, strict=True):
                    t += factor * g
            with torch.no_grad():
                for p, t, m in zip(parameters, total, masks, strict=True):
                    scale = noise_factor * settings.noise_multiplier * settings.clip_norm
                    noise = torch.randn(p.shape, generator=generator) * scale * m
                    p -= settings.learning_rate * (t + noise) / len(batch[0])

        return step

    return Contender("brute", "brute force", Family.TACIT, build)


WIDE = dataclasses.replace(
    TINY,
    make_model=lambda: nn.Linear(500, 40),
    make_batch=lambda size: (torch.randn(size, 500), torch.randint(0, 40, (size,))),
)


class TestFairness:
    def test_right_step_has_no_complaint(self) -> None:
        contender = private_step()
        agreement = FairnessChecker(WIDE).check(contender)
        assert agreement.complaint(contender) is None
        assert agreement.update_error < 1e-5
        assert agreement.active_ratio == 1.0

    def test_sparse_step_is_held_to_masked_clipping(self) -> None:
        contender = dataclasses.replace(private_step(active=0.1), active_ratio=0.1)
        agreement = FairnessChecker(WIDE).check(contender)
        assert agreement.complaint(contender) is None
        assert agreement.active_ratio == pytest.approx(0.1, abs=0.02)

    @pytest.mark.parametrize(
        ("contender", "complaint"),
        [
            (private_step(clips=False), "clipped sum"),
            (private_step(noise_factor=2 / 3), "noise"),
            (private_step(noise_factor=0.0), "coordinates|noise"),
            (private_step(active=0.5), "coordinates"),
            (dataclasses.replace(private_step(), active_ratio=0.1), "coordinates"),
        ],
    )
    def test_wrong_step_is_found(self, contender: Contender, complaint: str) -> None:
        found = FairnessChecker(WIDE).check(contender).complaint(contender)
        assert found is not None
        assert any(word in found for word in complaint.split("|"))

    @pytest.mark.parametrize("name", ["sgd", "opacus-hooks", "opacus-functorch", "opacus-ew", "opacus-ghost"])
    @pytest.mark.filterwarnings("ignore")
    def test_peers_agree_with_brute_force(self, name: str) -> None:
        pytest.importorskip("opacus")
        assert FairnessChecker(WIDE).check(name).complaint(CONTENDERS[name]) is None

    @pytest.mark.parametrize("name", ["tacit-dense", "tacit-topk", "tacit-rows"])
    def test_tacit_agrees_with_brute_force(self, name: str) -> None:
        assert FairnessChecker(WIDE).check(name).complaint(CONTENDERS[name]) is None

    def test_the_batch_takes_the_path_that_is_timed(self) -> None:
        assert BATCH > 32


class Server:
    def __init__(self, value: int) -> None:
        self._value = value

    def add(self, other: int) -> int:
        return self._value + other

    def fail(self) -> None:
        raise ValueError("first line\nsecond line")

    def threads(self) -> int:
        return torch.get_num_threads()

    def die(self) -> None:
        import os

        os._exit(3)


class TestIsolation:
    def test_calls_failures_and_death(self) -> None:
        process = Isolated(Server, 40, threads=1)
        assert process.call("add", 2) == 42
        assert process.call("threads") == 1
        assert process.call("fail") == Failure("ValueError: first line")
        assert process.alive
        assert process.call("die") == Failure("the process ended with exit code 3")
        assert not process.alive
        process.close()


def test_peak_sees_memory_that_is_freed_again() -> None:
    size = 64 << 20

    def allocate() -> None:
        torch.ones(size, dtype=torch.uint8)

    def nothing() -> None:
        return None

    idle = idle_anonymous()
    runs: list[tuple[Callable[[], None], float]] = [(nothing, 0), (allocate, size)]
    for run, expected in runs:
        assert peak_anonymous(run) - idle == pytest.approx(expected, abs=8 << 20)


def hoarder(megabytes: int) -> Contender:
    """A contender that keeps this much between steps."""

    def build(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
        kept = torch.ones(megabytes << 20, dtype=torch.uint8)

        def step() -> None:
            kept.add_(1)

        return step

    return Contender("hoarder", "keeps memory", Family.TACIT, build)


class TinyMemoryWorker(MemoryWorker):
    def __init__(self, megabytes: int) -> None:
        super().__init__(TINY, hoarder(megabytes))


def test_memory_kept_between_steps_counts() -> None:
    process = Isolated(TinyMemoryWorker, 32, threads=1)
    peak = process.call("peak")
    process.close()
    assert isinstance(peak, PeakMemory)
    assert peak.step_bytes == pytest.approx(32 << 20, abs=4 << 20)
    assert peak.model_bytes < 1 << 20
