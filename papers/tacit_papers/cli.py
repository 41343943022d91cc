"""``tacit reproduce``: published results, made again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit.errors import ArgumentError, check_count
from tacit_papers.fedsel import PARTS

app = typer.Typer(help="Reproduce published results.", no_args_is_help=True)

# Not those of tacit.cli.options, which load planning: tacit --help loads this module for one sentence.
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder that holds the built-in data sets. (default: TACIT_DATA)"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@app.callback()
def group() -> None:
    """Reproduce published results."""


@app.command()
def fedsel(
    out: Annotated[Path, typer.Option("--out", help="Folder for images, tables and JSON.")] = Path("fedsel"),
    only: Annotated[str, typer.Option("--only", help=f"Comma-separated parts of: {', '.join(PARTS)}.")] = "",
    folds: Annotated[int, typer.Option("--folds", help="Folds of the cross-validation.")] = 5,
    repeats: Annotated[int, typer.Option("--repeats", help="Repeats for Table 3.")] = 10,
    figure_repeats: Annotated[
        int, typer.Option("--figure-repeats", help="Repeats for figures and rates.")
    ] = 2,
    workers: Annotated[int, typer.Option("--workers", help="Processes, over repeats.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of data, splits and noise.")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the data are (TACIT_DATA).")
    ] = None,
) -> None:
    """Make Table 3 and Figures 2 and 3 of the FedSel paper with Tacit's numbers."""
    from tacit_papers.fedsel.reproduce import reproduce  # slow to import, and rarely needed
    from tacit_papers.fedsel.settings import Setting

    parts = tuple(part.strip() for part in only.split(",")) if only else PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ArgumentError(f"There is no part {unknown[0]!r}; choose from {', '.join(PARTS)}.")
    folder = str(data_dir) if data_dir else os.environ.get("TACIT_DATA")
    reproduce(
        out,
        parts,
        Setting(folds, repeats, folder, seed),
        Setting(folds, figure_repeats, folder, seed),
        workers,
        Console(stderr=True, highlight=False).print,
    )
    Console().print(f"Written to {out}.")


@app.command("sparsity-map")
def sparsity_map(
    out: Annotated[Path, typer.Option("--out", help="Folder for runs, tables, figure and JSON.")] = Path(
        "sparsity-map"
    ),
    part: Annotated[
        str, typer.Option("--part", help="Comma-separated parts of the map; all unless given.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="One short setting per part: a look, not a result.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes; one per core unless given.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="A Markdown page whose tables are to be replaced.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the data are (TACIT_DATA).")
    ] = None,
) -> None:
    """Map where sparse training beats dense DP-SGD, every learning rate tuned alike; resumes where it stopped."""
    from tacit_papers.engine.contest import Meter
    from tacit_papers.sparsity_map.grid import PARTS as MAP_PARTS
    from tacit_papers.sparsity_map.reproduce import grid_of, reproduce

    parts = tuple(name.strip() for name in part.split(",")) if part else MAP_PARTS
    grid = grid_of(parts, fast=quick)
    processes = os.cpu_count() or 1 if workers is None else check_count("--workers", workers)
    folder = str(data_dir) if data_dir else os.environ.get("TACIT_DATA")
    with Meter() as meter, _going_on(out):

        def started(runs: int) -> Callable[[], None]:
            meter.begin("sparsity map", runs)
            return meter.done

        said = reproduce(grid, out, workers=processes, data_dir=folder, page=page, started=started)
    for line in said:
        Console().print(line)
    Console().print(f"Written to {out}.")


@app.command()
def promise(
    out: Annotated[Path, typer.Option("--out", help="Folder for answers, tables and JSON.")] = Path(
        "promise"
    ),
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table; repeatable.")] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", help="ε to compare at; repeatable. (default: 1)")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds per figure.")] = 5,
    page: Annotated[
        Path | None, typer.Option("--page", help="A Markdown page whose tables are to be replaced.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the data are (TACIT_DATA).")
    ] = None,
) -> None:
    """Compare auto and soft with dense DP-SGD, all at their defaults, on many tables; resumes where it stopped."""
    from tacit_papers.engine.contest import Meter
    from tacit_papers.promise.reproduce import reproduce

    folder = str(data_dir) if data_dir else os.environ.get("TACIT_DATA")
    with Meter() as meter, _going_on(out):

        def started(comparisons: int) -> Callable[[], None]:
            meter.begin("promise", comparisons)
            return meter.done

        said = reproduce(
            out,
            names=table or (),
            epsilons=epsilon or (1.0,),
            seeds=check_count("--seeds", seeds, least=2),
            data_dir=folder,
            page=page,
            started=started,
        )
    for line in said:
        Console().print(line)
    Console().print(f"Written to {out}.")


@app.command("tables")
def tables(
    out: Annotated[
        Path, typer.Option("--out", help="Folder; the same command again continues from what it holds.")
    ] = Path("tables"),
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table; repeatable.")] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method; repeatable.")
    ] = None,
    epsilon: Annotated[list[float] | None, typer.Option("--epsilon", help="Only this ε; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", help="Seeds per figure. (default: 5)")] = None,
    again: Annotated[
        list[str] | None, typer.Option("--again", help="Forget what was recorded of this method; repeatable.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two small tables, one ε, one seed: a look, not a result.")
    ] = False,
    readme: Annotated[
        Path | None, typer.Option("--readme", help="A Markdown page whose short table is to be replaced.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Compare private models for tables at their defaults: Tacit, DP-EBM and others; resumes where it stopped."""
    from tacit_papers.engine.contest import Meter
    from tacit_papers.tables.page import short_table
    from tacit_papers.tables.reproduce import reproduce

    with Meter(shown=not quiet) as meter, _going_on(out):

        def started(fits: int) -> Callable[[], None]:
            meter.begin("tables", fits)
            return meter.done

        record = reproduce(
            out,
            tables=table,
            methods=method,
            epsilons=epsilon,
            seeds=seeds,
            again=again or (),
            quick=quick,
            data_dir=str(data_dir) if data_dir else os.environ.get("TACIT_DATA"),
            readme=readme,
            started=started,
        )
    print(short_table(record))
    print(f"Written: {out / 'tables'}.json, .md and .png")


@contextmanager
def _going_on(out: Path) -> Iterator[None]:
    """Say after Ctrl-C that nothing finished is lost."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"Stopped. Finished runs are kept in {out}; the same command continues from there."
        )
        raise typer.Exit(130) from None


def _table(name: str, about: str) -> Callable[..., None]:
    """The command that makes one table or figure."""

    def command(
        dataset: Annotated[
            list[str] | None, typer.Option("--dataset", help="Only this data set; repeatable.")
        ] = None,
        epsilon: Annotated[
            list[float] | None, typer.Option("--epsilon", help="Only this ε; repeatable.")
        ] = None,
        seeds: Annotated[int | None, typer.Option("--seeds", help="Seeds per figure. (default: 3)")] = None,
        quick: Annotated[
            bool, typer.Option("--quick", help="Minutes instead of hours: raw inputs, few epochs, one seed.")
        ] = False,
        out: Annotated[
            Path, typer.Option("--out", help="Folder; the same command again continues from what it holds.")
        ] = Path("results"),
        workers: Annotated[
            int | None, typer.Option("--workers", help="Processes. (default: one per core)")
        ] = None,
        data_dir: DataDir = None,
        quiet: Quiet = False,
    ) -> None:
        from tacit_papers.reproduce import page, reproduce  # PyTorch takes seconds to load

        with _going_on(out):
            record = reproduce(
                name,
                datasets=dataset,
                epsilons=epsilon,
                seeds=seeds,
                quick=quick,
                out=out,
                workers=workers,
                data_dir=None if data_dir is None else str(data_dir),
                shown=not quiet,
            )
        print(page(record))
        stem = name.rpartition("/")[2]
        print(f"Written: {out / stem}.json, .md and .png")

    command.__doc__ = about
    return command


for _name, _about in (
    ("tp-topk/table2", "Five methods on MNIST, FMNIST and CIFAR-10, tuned alike, and the best recipe."),
    ("tp-topk/table3", "TP-TopK against TP-Rand by active ratio."),
    ("tp-topk/table4", "TP-TopK by the warm-up's share of steps and of ε."),
    ("tp-topk/table5", "Medical data: AUC, balanced accuracy, sensitivity, specificity."),
    ("tp-topk/scatternet-cnn", "Table 2 with a convolutional network on scattering maps, as the paper's."),
    ("tp-topk/cnn", "Table 2 with a convolutional network on pixels."),
    ("tp-topk/table3-scatternet-cnn", "Table 3 with the network on scattering maps."),
    ("tp-topk/table3-cnn", "Table 3 with the network on pixels."),
    ("tp-topk/table4-scatternet-cnn", "Table 4 with the network on scattering maps."),
    ("tp-topk/table4-cnn", "Table 4 with the network on pixels."),
    ("sparta/table", "SPARTA and other ways to fine-tune a pretrained network, on images and on texts."),
    ("sparta/regime", "Private choice of rows against a random one, with two classes and a far domain."),
    ("images", "The recipes for images at three ε, beside the field's best without public data."),
    ("tp-topk/figure1", "Concentration of gradient energy and how much the scores find. NOT PRIVATE."),
):
    app.command(name=_name)(_table(_name, _about))
