"""Options of the commands. Those that describe a run are generated from the fields of jobs and methods.

A command states which sections it offers; name, type, choices, default and help of each option stand at its field
(``tacit.jobs.settings``, ``tacit.models.config``, ``tacit.plan.methods``). A new field is a new option.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import typer

from tacit.errors import ArgumentError
from tacit.jobs.settings import SECTIONS, Experiment, experiment_of, merged, read_experiment
from tacit.option_fields import Option, alternatives, options_of

Settings = dict[str, dict[str, Any]]
"""What a command line says about a run, by section; ``None`` for what it does not say."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file; command-line options override it.")
]
Seed = Annotated[int | None, typer.Option("--seed", help=SECTIONS["training"]["seed"].help)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help=f"{SECTIONS['data']['data_dir'].help} (default: TACIT_DATA)")
]
RunDir = Annotated[Path | None, typer.Option("--out", "--run", help="Run directory. (default: runs/NAME-N)")]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes. (default: one per core)")]
WitnessFile = Annotated[
    Path | None,
    typer.Option(
        "--witness",
        help="File outside the run directory, ideally on another machine, that also notes every release.",
    ),
]
Folds = Annotated[
    int | None,
    typer.Option(
        "--folds",
        help="Cross-validation: hold out each of so many parts once, in a separate run. The total cost is shown first.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show every setting and the plan, but do not train."),
]


@dataclass(frozen=True)
class Offer:
    """The options of one section that a command offers.

    ``names`` stands in place of the section's own list of methods. ``required`` options have no default.
    """

    section: str
    options: Mapping[str, Option]
    names: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()


def offer_of(section: str, cls: type[Any]) -> Offer:
    """All options of a dataclass that describes no part of a run; ``section`` is their heading."""
    return Offer(section, options_of(cls))


def offer(
    section: str,
    *,
    only: Sequence[str] | None = None,
    but: Sequence[str] = (),
    names: tuple[str, ...] | None = None,
    required: Sequence[str] = (),
) -> Offer:
    """All options of a section, or ``only`` some, or all ``but`` some."""
    known = SECTIONS[section]
    for key in (*(only or ()), *but, *required):
        known[key]  # a field that is gone is noticed when the command is defined
    kept = {key: known[key] for key in only or known if key not in but}
    return Offer(section, kept, names, tuple(required))


def job_options(*offers: Offer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of its ``offers``; they arrive as its first parameter, a ``Settings``.

    Fields of several sections with the same option name are filled by the same option.
    """
    places: dict[str, list[tuple[str, str, Option]]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    for one in offers:
        for key, option in one.options.items():
            places.setdefault(_variable(option), []).append((one.section, key, option))
            parameters.setdefault(_variable(option), _parameter(one, option))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        @wraps(command)
        def run(**values: Any) -> None:
            settings: Settings = {one.section: {} for one in offers}
            for variable, filled in places.items():
                value = values.pop(variable)
                for section, key, option in filled:
                    settings[section][key] = _read(option, value)
            command(settings, **values)

        # What stands before the options in the help: arguments, then the command's own options that come first.
        together = sorted([*parameters.values(), *own], key=_is_option)
        run.__signature__ = inspect.Signature(together)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
        return run

    return decorate


def experiment_from(
    settings: Settings,
    config: Path | None = None,
    *,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    recipe: str | None = None,
) -> Experiment:
    """The experiment that a TOML file describes, with the values of the command line in place of its own.

    Both override what ``recipe`` says for the data set and the ε that they name. A file overrides ``defaults``.
    """
    record = read_experiment(config) if config is not None else {}
    if config is not None:
        _resolve_beside(record, config.parent)
    record = merged(merged(defaults or {}, record), settings)
    if recipe is not None:
        record = merged(_recipe_sections(recipe, experiment_of(record)), record)
    return experiment_of(record)


def _recipe_sections(name: str, experiment: Experiment) -> dict[str, dict[str, Any]]:
    from tacit.jobs.recipes import recipe

    if not experiment.data.source:
        raise ArgumentError(f"Name the data set that the recipe {name!r} is for, as in tacit train fmnist.")
    return recipe(experiment.data.source, name).sections(experiment.privacy.epsilon)


def _resolve_beside(record: dict[str, dict[str, Any]], folder: Path) -> None:
    """Paths in a configuration file are relative to the file."""
    places = {
        "data": ("source", "schema", "test", "public", "data_dir", "tokenizer", "words"),
        "model": ("name", "weights"),
    }
    for section, keys in places.items():
        values = record.get(section, {})
        for key in keys:
            if key in values and (folder / values[key]).exists():
                values[key] = str(folder / values[key])


def _flag(option: Option) -> str:
    return option.flag or f"--{option.name.replace('_', '-')}"


def _variable(option: Option) -> str:
    """The name of the parameter: that of the option, as click has it."""
    return _flag(option).split("/")[0].removeprefix("--").replace("-", "_").lower()


def _is_option(parameter: inspect.Parameter) -> bool:
    return not any(
        type(part).__name__ == "ArgumentInfo" for part in getattr(parameter.annotation, "__metadata__", ())
    )


def _parameter(offer: Offer, option: Option) -> inspect.Parameter:
    flag, required = _flag(option), option.name in offer.required
    kind: Any = _type(option)
    default: Any = inspect.Parameter.empty if required else None
    if not flag.startswith("--"):
        info = typer.Argument(help=option.help, metavar=flag, show_default=False)
    else:
        info = typer.Option(
            flag,
            help=_help(option, offer.names, required=required),
            metavar=_metavar(option),
            show_default=False,
            rich_help_panel=f"{offer.section.capitalize()} options",
        )
    annotation: Any = Annotated.__class_getitem__((kind if required else kind | None, info))  # type: ignore[attr-defined]
    return inspect.Parameter(
        _variable(option), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _kinds(option: Option) -> list[Any]:
    return [kind for kind in alternatives(option.kind) if kind is not NoneType]


def _type(option: Option) -> Any:
    """The type that the parser checks; what has several forms is text, and read afterwards."""
    kinds = _kinds(option)
    if len(kinds) > 1 or typing.get_args(kinds[0])[:1] == (float,):
        return str
    (kind,) = kinds
    return list[str] if typing.get_origin(kind) is tuple else str if option.words else kind


def _metavar(option: Option) -> str | None:
    if not option.words or len(option.words) > 3:
        return None
    return "|".join(["FLOAT", *option.words] if float in _kinds(option) else option.words)


def _help(option: Option, names: tuple[str, ...] | None, *, required: bool) -> str:
    text, shown = option.help, option.shown
    if names is not None and option.name == "name":
        text, shown = f"What to train: {', '.join(names)}.", names[0]
    if len(option.words) > 3:
        text = f"{text} One of {', '.join(option.words)}."
    if _type(option) == list[str]:
        text = f"{text.rstrip('.')}; repeatable."
    if (
        shown is None
        and option.default not in (None, MISSING, (), "")
        and not isinstance(option.default, bool)
    ):
        shown = f"{option.default:g}" if isinstance(option.default, float) else str(option.default)
    return text if shown is None or required else f"{text} (default: {shown})"


def _read(option: Option, value: Any) -> Any:
    """What the text of an option of several forms stands for; a list without entries was not given."""
    kinds = _kinds(option)
    several = tuple[float, ...] in kinds
    if not isinstance(value, str) or value in option.words or not (several or float in kinds):
        return None if value == [] else value
    found = numbers(_flag(option), value)
    if len(found) == 1 and float in kinds:
        return found[0]
    if not several:
        raise ArgumentError(f"{_flag(option)} takes one number, got {value!r}.")
    return found


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers in a text such as 0.3,0.3."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"{option} takes numbers separated by commas, got {text!r}.") from None
