"""Feed hostile files to every reader for a bounded time, guided by coverage: ``python -m tools.fuzz --seconds 60``.

One byte chooses the reader, the rest is the file. What makes a reader fail is kept in ``--keep`` and replayed with
``python -m tools.fuzz FILE``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tacit"]):
    from tools.fuzz.mutation import mutated
    from tools.fuzz.readers import attempt, make_readers

_SLOW_SECONDS = 20


def main() -> None:
    """Run until the time or the number of files is over (exit code 0) or a reader fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("replay", nargs="?", help="a file that made a reader fail")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=int, default=60)
    length.add_argument("--runs", type=int, help="so many files instead, whatever time they take")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, corpus = Path(place, "work"), Path(place, "corpus")
        folder.mkdir()
        corpus.mkdir()
        readers = list(make_readers(folder).values())
        for number, reader in enumerate(readers):
            (corpus / f"seed-{number}").write_bytes(bytes([number]) + reader.seed)

        def one_input(data: bytes) -> None:
            if data:
                attempt(readers[data[0] % len(readers)], data[1:], folder)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            """Half of the time one thing in a record, right outside and wrong inside; else bytes."""
            chance = random.Random(seed)
            reader = readers[data[0] % len(readers)] if data else readers[0]
            if reader.record is not None and chance.random() < 0.5:
                record = reader.record
                for _ in range(chance.choice((1, 1, 2, 3))):
                    record = mutated(record, chance)
                return (data[:1] + reader.pack(record))[:most]
            return bytes(data[:1] + atheris.Mutate(data[1:], most - 1))

        given.keep.mkdir(exist_ok=True)
        options = [f"-artifact_prefix={given.keep}/", f"-timeout={_SLOW_SECONDS}", "-rss_limit_mb=4096"]
        if given.replay:
            options.append(given.replay)
        else:
            limit = f"max_total_time={given.seconds}" if given.runs is None else f"runs={given.runs}"
            options += [f"-{limit}", f"-seed={given.seed}", "-max_len=65536"]
            options += ["-print_final_stats=1", "-verbosity=0", str(corpus)]
            print(f"{len(readers)} readers, {limit}, seed {given.seed}", flush=True)
        atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
