"""Try the package as a user gets it: python -m tools.package_test [--full].

Builds the source distribution, from it the wheel, and a wheel from the checkout; looks at what they hold; installs the
wheel alone into an empty environment and uses it; then tries every extra by itself.

PyTorch is large, so the short form installs the core once. The environment of an extra then reads the core's packages
through a path file and gets what the extra adds, and nothing else: the same files as in an environment of its own, but
where the extra does not allow a version, and pip lays another over it. With --full every environment starts empty.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tools.package_uses import CORE, EXTRAS, Use

ROOT = Path(__file__).parent.parent
_NOT_SOURCE = {".git", ".venv", "build", "dist", "runs", ".mypy_cache", ".ruff_cache", ".hypothesis"}
HELD = (
    "py.typed",
    "report/style.css",
    "report/script.js",
    "data/features/network.safetensors",
    "release/noise.c",
    "raw/exact.c",
    "version.py",
)
_MINUTES = 15


class Failure(Exception):
    """The package is not as it should be; the message is one sentence."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty directory to use it in."""

    name: str
    place: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.place / "env" / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where its packages are."""
        (found,) = (self.place / "env" / "lib").glob("python*/site-packages")
        return found

    def create(self) -> None:
        """Make it, empty: not even pip is in it."""
        (self.place / "work").mkdir(parents=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(self.place / "env")], f"make {self.name}")

    def reads(self, other: Environment) -> None:
        """Let it read what is installed in another one."""
        (self.packages / "core.pth").write_text(f"{other.packages}\n")

    def install(self, *what: str) -> None:
        """Install with the pip that runs this program: an environment without pip has one thing less in it."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "install",
            "--quiet",
            "--no-compile",
        ]
        command += ["--disable-pip-version-check", "--no-input", "-c", str(ROOT / "constraints.txt"), *what]
        _run(command, f"install into {self.name} (is the package index within reach?)")

    def python_runs(self, script: str, code: int = 0) -> str:
        """Run a script with its interpreter."""
        begins = next(line for line in script.splitlines() if line)
        return self._use([str(self.python), "-c", script], f"the script that begins {begins!r}", code)

    def tacit(self, line: str, code: int = 0) -> str:
        """Run a line of the command line."""
        return self._use([str(self.python.parent / "tacit"), *line.split()], f"tacit {line}", code)

    def _use(self, command: list[str], shown: str, code: int) -> str:
        """Run a command as a new user would: an empty home, an empty directory, nothing inherited."""
        home = self.place / "home"
        home.mkdir(exist_ok=True)
        environment = {"PATH": f"{self.python.parent}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
        # What other packages read before they call home.
        environment |= {"HF_HUB_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        # Threads of several processes that wait for each other would take most of the time on a busy machine.
        environment["OMP_NUM_THREADS"] = "1"
        return _run(command, f"run {shown} in {self.name}", environment, self.place / "work", code)


def _run(
    command: list[str], what: str, env: dict[str, str] | None = None, cwd: Path | None = None, code: int = 0
) -> str:
    env = env if env is not None else {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60 * _MINUTES, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"Could not {what}: it took more than {_MINUTES} minutes.") from error
    if done.returncode != code:
        said = (done.stdout + done.stderr).strip()
        print(said[-4000:], file=sys.stderr)
        last = said.splitlines()[-1] if said else f"exit code {done.returncode} and no word"
        raise Failure(f"Could not {what}: {last}")
    return done.stdout + done.stderr


def build(place: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is made from it."""
    source = place / "source"
    shutil.copytree(ROOT, source, ignore=_not_source)
    builder = Environment("the builder's environment", place / "builder")
    builder.create()
    builder.install("build", "pip")
    command = [str(builder.python), "-m", "build"]
    _run([*command, "--outdir", str(place / "dist"), str(source)], "build the distributions")
    _run(
        [*command, "--wheel", "--outdir", str(place / "direct"), str(source)],
        "build a wheel from the checkout",
    )
    (sdist,) = (place / "dist").glob("*.tar.gz")
    (wheel,) = (place / "dist").glob("*.whl")
    (direct,) = (place / "direct").glob("*.whl")
    if odd := sorted(_names(wheel) ^ _names(direct)):
        raise Failure(f"The wheel from the sdist and the one from the checkout differ in {', '.join(odd)}.")
    return sdist, wheel


def _not_source(folder: str, names: list[str]) -> set[str]:
    made = {name for name in names if name == "__pycache__" or name.endswith((".egg-info", ".so"))}
    return made | (_NOT_SOURCE & set(names) if Path(folder) == ROOT else set())


def _names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def check_contents(sdist: Path, wheel: Path) -> None:
    """Raise unless both hold Tacit, and nothing but Tacit."""
    names = _names(wheel)
    about = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    strangers = sorted({name.split("/")[0] for name in names} - {"tacit", about})
    if strangers:
        raise Failure(f"The wheel holds more than Tacit: {', '.join(strangers)}.")
    missing = [f"tacit/{name}" for name in HELD if f"tacit/{name}" not in names]
    missing += [
        name for name in (f"{about}/licenses/LICENSE", f"{about}/entry_points.txt") if name not in names
    ]
    modules = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "tacit").rglob("*.py")}
    missing += sorted(modules - names)
    if missing:
        raise Failure(f"The wheel lacks {', '.join(missing)}.")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    strangers = sorted(
        {name.split("/")[0] for name in inside} & {"tests", "papers", "tools", "benchmarks", "examples"}
    )
    if strangers:
        raise Failure(f"The source distribution holds more than a build needs: {', '.join(strangers)}.")
    needed = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "src/tacit/release/noise.c"}
    if missing := sorted(needed - inside):
        raise Failure(f"The source distribution lacks {', '.join(missing)}.")


def check_core(core: Environment) -> None:
    """Raise unless the wheel alone works, and says what its extras are for."""
    core.python_runs(CORE.script)
    for line in CORE.commands:
        core.tacit(line)
    for module in ("tacit_papers", "tests", "tools", "matplotlib"):
        if (core.packages / module).exists():
            raise Failure(f"Installing the wheel installs {module}.")
    for extra, use in EXTRAS.items():
        said = core.tacit(use.asks, code=2) if use.asks else core.python_runs(use.asks_script, code=1)
        if f"pip install 'tacit-dp[{extra}]'" not in said:
            raise Failure(f"Without the extra {extra!r} nobody is told to install it, but: {said.strip()}")


# One process for all lines: loading PyTorch for each would take longer than what they do.
_LINES = """
from tacit.cli.main import main
for line in {lines!r}:
    try:
        main(line.split())
    except SystemExit as ended:
        if ended.code:
            raise SystemExit(f"tacit {{line}} ended with exit code {{ended.code}}.")
"""


def check_extra(environment: Environment, use: Use) -> None:
    """Raise unless the use of an extra works."""
    environment.python_runs(use.script + _LINES.format(lines=use.commands))


def try_package(place: Path, full: bool, extras: Iterable[str], done: Callable[[str], None]) -> None:
    """Build, install and use everything below ``place``; what works is told to ``done``."""
    sdist, wheel = build(place)
    check_contents(sdist, wheel)
    size = wheel.stat().st_size / 1e6
    done(f"built {sdist.name} and {wheel.name}: {size:.1f} MB, Tacit and nothing else")
    core = Environment("the core's environment", place / "core")
    core.create()
    core.install(str(wheel))
    done(f"installed the wheel alone: {_megabytes(core.packages):,.0f} MB")
    check_core(core)
    done("help, plan, ten lines of Python, demo, verify; every missing extra is asked for")

    def try_extra(extra: str) -> str:
        own = Environment(f"the environment of the extra {extra!r}", place / extra)
        own.create()
        if not full:
            own.reads(core)
        own.install(f"{wheel}[{extra}]")
        size = _megabytes(own.packages)
        check_extra(own, EXTRAS[extra])
        shutil.rmtree(own.place)
        return f"{extra}: {size:,.0f} MB{'' if full else ' more'}"

    # pip and the uses keep one core busy each.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for tried in as_completed([pool.submit(try_extra, extra) for extra in extras]):
                done(tried.result())
        except Failure:
            pool.shutdown(cancel_futures=True)
            raise


def main() -> None:
    """Try everything; the first failure ends it with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every environment starts empty")
    parser.add_argument("--extra", action="append", choices=[*EXTRAS], help="only this one; repeatable")
    given = parser.parse_args()
    started = time.monotonic()

    def done(what: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="tacit-package-") as folder:
        try:
            try_package(Path(folder), given.full, given.extra or EXTRAS, done)
        except Failure as failure:
            raise SystemExit(f"package-test: {failure}") from None
    print("package-test: the package works as it is installed.")


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


if __name__ == "__main__":
    main()
