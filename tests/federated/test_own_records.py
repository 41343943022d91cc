"""Local clients with records of their own, coded by a public schema: folders, refusals, and trainings with them."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tacit.cli.main import app
from tacit.data import Category, Number, Schema, Target, write_schema
from tacit.data.records import read_records as read_by_schema
from tacit.errors import ArgumentError, TacitError
from tacit.federated.accounts import certify, verify_client
from tacit.federated.client import LEDGER_FILE, RECORDS_FILE, LocalClient, read_records
from tacit.federated.own_records import (
    INTERCEPT,
    feature_names,
    read_client_schema,
    read_own_records,
)
from tacit.federated.simulation import split_off_test
from tacit.files import decode_toml
from tacit.release.budget import read_budget

SCHEMA = Schema(
    Target("ill", "binary", ("no", "yes")),
    {"age": Number(18, 90), "dose": Number(0, 10), "ward": Category(("A", "B", "C"))},
)
D = 9
Row = tuple[object, ...]


def tacit(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> str:
    result = tacit(*arguments)
    assert isinstance(result.exception, TacitError), result.output
    return str(result.exception)


def rows(count: int, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    ages = [rng.randint(18, 90) for _ in range(count)]
    return [
        (rng.choice("ABC"), age, f"{rng.uniform(0, 10):.2f}", f"Person {number}", "yes" if age > 54 else "no")
        for number, age in enumerate(ages)
    ]


def table(path: Path, content: Iterable[Row]) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["ward", "age", "dose", "name", "ill"])
        out.writerows(content)
    return path


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.toml"
    write_schema(SCHEMA, path)
    return path


def test_a_client_is_made_from_its_own_records(tmp_path: Path, schema: Path) -> None:
    mine, place = table(tmp_path / "mine.csv", rows(7)), tmp_path / "clients" / "north"
    shown = tacit("fed", "client", "--csv", mine, "--schema", schema, "--target", "ill", "--out", place)
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())
    assert "7 records" in said
    assert f"d = {D}" in said
    assert place.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in place.iterdir()} == {0o600}
    found, coded = read_records(place / RECORDS_FILE), read_by_schema(mine, SCHEMA)
    assert np.array_equal(found.x[:, :-1], coded.x.numpy())  # the coding of sites
    assert np.array_equal(found.x[:, -1], np.ones(7))
    assert np.array_equal(found.y > 0, coded.y.numpy()[:, 0] > 0)
    assert found.d == D == len(feature_names(SCHEMA))
    assert feature_names(SCHEMA)[-1] == INTERCEPT
    assert read_client_schema(place / "schema.toml") == SCHEMA


def test_a_record_is_coded_by_the_schema_and_by_nothing_else(tmp_path: Path) -> None:
    # Records whose values reach neither end of any range, nor all values of a category.
    some: list[Row] = [("A", 40, 2.5, "x", "no"), ("B", 50, 3, "y", "yes")]
    extreme: list[Row] = [("C", 1e9, -1e9, "z", "yes"), ("other", "", 10, "z", "no")]
    alone = read_own_records(table(tmp_path / "one.csv", some[:1]), SCHEMA)
    small = read_own_records(table(tmp_path / "some.csv", some), SCHEMA)
    large = read_own_records(table(tmp_path / "more.csv", [*some, *extreme]), SCHEMA)
    assert np.array_equal(small.x, large.x[:2])
    assert np.array_equal(alone.x, small.x[:1])
    assert np.abs(large.x).max() <= 1
    assert alone.x[0, 0] == pytest.approx((40 - 54) / 36)


def test_a_folder_is_never_overwritten(tmp_path: Path, schema: Path) -> None:
    mine, place = table(tmp_path / "mine.csv", rows(5)), tmp_path / "client"
    make = ("fed", "client", "--csv", mine, "--schema", schema, "--out", place)
    assert tacit(*make).exit_code == 0
    before = (place / RECORDS_FILE).read_bytes()
    table(mine, rows(5, seed=1))
    assert "never overwritten" in refusal(*make)
    for name in (RECORDS_FILE, "schema.toml"):
        (place / name).unlink()
    (place / LEDGER_FILE).write_text("what it has spent")
    assert "never overwritten" in refusal(*make)
    assert [file.name for file in place.iterdir()] == [LEDGER_FILE]
    (place / LEDGER_FILE).unlink()
    assert tacit(*make).exit_code == 0  # an empty folder is nobody's
    assert (place / RECORDS_FILE).read_bytes() != before


def test_what_a_client_cannot_answer_by_is_refused(tmp_path: Path, schema: Path) -> None:
    mine, place = table(tmp_path / "mine.csv", rows(5)), tmp_path / "client"

    def said(changed: Schema | str, *more: object) -> str:
        path = tmp_path / "other.toml"
        if isinstance(changed, Schema):
            write_schema(changed, path)
        else:
            path.write_text(changed)
        return refusal("fed", "client", "--csv", mine, "--schema", path, "--out", place, *more)

    three = replace(SCHEMA, target=Target("ill", "multiclass", ("no", "some", "yes")))
    assert "has 3 classes; use --guarantee sites" in said(three)
    number = replace(
        SCHEMA, target=Target("age", "regression", low=0, high=9), columns={"dose": Number(0, 1)}
    )
    assert "is a number; use --guarantee sites" in said(number)
    private = replace(SCHEMA, columns={"age": Number(40, 50, public=False)})
    assert "from somebody's rows" in said(private)
    guessed = replace(SCHEMA, target=replace(SCHEMA.target, public=False))
    assert "from somebody's rows" in said(guessed)
    undeclared = schema.read_text().replace("low = 18\n", "")
    assert "lacks 'low'" in said(undeclared)
    assert "not 'age'" in said(SCHEMA, "--target", "age")
    table(mine, [("A", 40, 1, "x", "")])
    assert "too few rows" in said(SCHEMA)
    assert not place.exists()


def test_a_client_whose_records_have_a_budget_reserves_its_own_there_before_it_answers(
    tmp_path: Path, schema: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    started: list[float] = []
    monkeypatch.setattr(
        "tacit.federated.flower.node.run_node", lambda client, connection: started.append(client.budget)
    )
    mine = table(tmp_path / "mine.csv", rows(20))
    # All records of a client are one unit, so they may be counted by any column.
    assert tacit("budget", "init", mine, "--epsilon", 2, "--delta", 1e-5, "--unit", "name").exit_code == 0
    copy = tmp_path / "copy.csv"
    copy.write_bytes(mine.read_bytes())

    def node(name: str, budget: float) -> tuple[object, ...]:
        return (
            *("fed", "node", "--folder", tmp_path / name, "--budget", budget),
            *("--superlink", "127.0.0.1:1", "--insecure"),
        )

    for name, source in (("one", mine), ("two", copy)):
        made = tacit("fed", "client", "--csv", source, "--schema", schema, "--out", tmp_path / name)
        assert "from the budget 'mine'" in made.output
    (path,) = (tmp_path / "budgets").glob("*.jsonl")
    for budget in (0.0, 1.25, 1.25, 0.5, 1.5):
        assert tacit(*node("one", budget)).exit_code == 0
    (entry,) = read_budget(path).entries
    assert (entry.cost.pure, entry.place) == ((1.5,), str(tmp_path / "one"))
    assert "75 % are used" in refusal(*node("two", 1.0))
    assert "does not let this run in" in refusal(*node("one", 2.5))
    assert started == [0.0, 1.25, 1.25, 0.5, 1.5]
    (tmp_path / "one").rename(tmp_path / "moved")  # a copy is another client
    assert "75 % are used" in refusal(*node("moved", 1.5))
    (tmp_path / "two" / "budget.json").write_text("{}")
    assert "was edited" in refusal(*node("two", 0.1))


def test_a_shared_out_table_reserves_what_its_most_expensive_client_may_spend(
    tmp_path: Path, schema: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    mine = table(tmp_path / "mine.csv", rows(60))
    assert tacit("budget", "init", mine, "--epsilon", 3, "--delta", 1e-5).exit_code == 0

    def run(folder: str, epsilon: float) -> tuple[object, ...]:
        return (
            *("fed", "run", mine, "--schema", schema, "--folder", tmp_path / folder, "--simulation"),
            *("--nodes", 3, "--rounds", 2, "--epsilon", epsilon),
        )

    for _ in range(2):  # the same command continues under the same reservation
        assert tacit(*run("run", 2)).exit_code == 0
    (path,) = (tmp_path / "budgets").glob("*.jsonl")
    (entry,) = read_budget(path).entries
    assert entry.cost.pure == (2.0,)
    assert "66.7 % are used" in refusal(*run("other", 2))
    assert not list((tmp_path / "other").glob("client-*"))
    people = table(tmp_path / "people.csv", rows(60, seed=1))
    assert tacit("budget", "init", people, "--epsilon", 3, "--delta", 1e-5, "--unit", "name").exit_code == 0
    said = refusal("fed", "run", people, "--schema", schema, "--folder", tmp_path / "third", "--simulation")
    assert "this run protects single rows" in said


def test_a_table_is_simulated_by_its_schema(tmp_path: Path, schema: Path) -> None:
    mine = table(tmp_path / "mine.csv", rows(200))
    simulate = ("fed", "simulate", mine, "--folds", 2, "--repeats", 1, "--solution", "vector")
    shown = tacit(*simulate, "--schema", schema)
    assert shown.exit_code == 0, shown.output
    assert "needs --schema" in refusal(*simulate)


@pytest.fixture
def _flower() -> None:
    pytest.importorskip("flwr", reason="the federated extra is not installed")


@pytest.mark.usefixtures("_flower")
def test_a_table_is_shared_out_among_clients(tmp_path: Path, schema: Path) -> None:
    mine, folder = table(tmp_path / "mine.csv", rows(60)), tmp_path / "run"
    run = ("fed", "run", mine, "--schema", schema, "--guarantee", "local", "--folder", folder, "--simulation")
    shown = tacit(*run, "--nodes", 3, "--rounds", 2, "--epsilon", 2)
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())
    assert f"d = {D}" in said
    assert "does not cover" in said
    clients, test = split_off_test(read_own_records(mine, SCHEMA), seed=0)
    parts = [read_records(folder / f"client-{number}" / RECORDS_FILE) for number in range(3)]
    assert [len(part) for part in parts] == [16, 16, 16]
    assert all(np.array_equal(part.x, clients.x[number::3]) for number, part in enumerate(parts))
    assert not {row.tobytes() for row in test.x} & {row.tobytes() for part in parts for row in part.x}
    for number in range(3):
        place = folder / f"client-{number}"
        assert place.stat().st_mode & 0o777 == 0o700
        assert verify_client(place).agrees
    assert "--schema is not for such a training" in refusal(*run, "--guarantee", "sites")


@pytest.mark.usefixtures("_flower")
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_clients_and_coordinator_that_share_a_schema_only(tmp_path: Path, schema: Path) -> None:
    from flwr.app import Context

    from tacit.federated.flower.bundle import project_file
    from tacit.federated.flower.client_app import make_app
    from tacit.federated.flower.deploy import check_finished
    from tacit.federated.flower.server_app import run_training
    from tacit.federated.flower.virtual import VirtualNodes

    study, places = tmp_path / "study", [tmp_path / "north", tmp_path / "south"]
    for number, place in enumerate(places):
        mine = table(tmp_path / f"{number}.csv", rows(9 + number, seed=number))
        assert tacit("fed", "client", "--csv", mine, "--schema", schema, "--out", place).exit_code == 0
    write = ("fed", "app", study, "--schema", schema, "--nodes", 2, "--rounds", 2, "--epsilon", 2)
    shown = tacit(*write)
    assert shown.exit_code == 0, shown.output
    assert f"d = {D}" in " ".join(shown.output.split())
    assert "already exists" in refusal(*write)
    assert (study / "features.txt").read_text().splitlines() == list(feature_names(SCHEMA))
    assert (study / "app" / "pyproject.toml").read_text() == project_file()
    assert [file.name for file in (study / "app").iterdir()] == ["pyproject.toml"]

    def client_of(context: Context) -> LocalClient:
        return LocalClient(places[int(context.node_config["partition-id"])], budget=2.0)

    run_training(VirtualNodes(make_app(client_of), 2), decode_toml((study / "run.toml").read_text()))
    check_finished(study / "result.json")
    for place in places:
        certify(place, 2.0)
        verdict = verify_client(place)
        assert (verdict.agrees, verdict.answers) == (True, 2)
        assert verdict.epsilon == pytest.approx(2.0)


@pytest.mark.usefixtures("_flower")
def test_what_no_client_would_answer_is_not_written(tmp_path: Path, schema: Path) -> None:
    write = ("fed", "app", tmp_path / "study", "--schema", schema)
    for given in (("--nodes", 0), ("--nodes", 2, "--epsilon", 1e6), ("--nodes", 2, "--rounds", 0)):
        refusal(*write, *given)
    refusal(*write, "--nodes", 2, "--training", "../elsewhere")
    with pytest.raises(ArgumentError, match="not 'age'"):
        read_client_schema(schema, "age")
    assert not (tmp_path / "study").exists()
