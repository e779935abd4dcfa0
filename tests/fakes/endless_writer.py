"""A process that writes rates: `python -m fakes.endless_writer PATH [COUNT MAX_BYTES]`.

Without a count it writes for ever, and says each row's number once it is on disk. With one it is a
proxy on a disk that takes files of so many bytes: it learns, closes, and says what came of it.
"""

import itertools
import sys
from pathlib import Path

from fakes.cases import healthy
from fakes.learning import kept_at, rate
from slowtok.proxy.history import tables
from slowtok.proxy.history.database import open_database, run
from slowtok.proxy.history.keys import decode_setup

SETUP = decode_setup(healthy())


def write_for_ever(path: Path) -> None:
    database = open_database(path, tables.STEPS)
    for row in itertools.count():
        run(database, tables.adding_rate(SETUP, rate(row + 1.0)))
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()


def write_on_a_small_disk(path: Path, count: int, most_bytes: int) -> None:
    import resource  # noqa: PLC0415 - POSIX only
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    kept = kept_at(path)
    for row in range(count):
        kept.add_rate(SETUP, rate(row + 1.0, version=str(row)))
    kept.close()
    sys.stdout.write(f"{kept.errors} {len(kept.rates.of(SETUP))} {kept.failure}\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write_for_ever(Path(sys.argv[1]))
    else:
        write_on_a_small_disk(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
