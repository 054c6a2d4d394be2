"""The checking process: repeatedly reads a schema and a value, and answers with what is wrong with the value.

It has no secrets, and no files except its two pipes. The kernel limits the processor time of each check and ends the
process when it is used up: the library that checks cannot be interrupted in any other way.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from functools import partial

from counterfoil.checking.frames import frame, read_frame
from counterfoil.domain.steps.values import compiled, schema_problem

MAX_MEMORY_BYTES = 2 * 1024**3
NICENESS = 5
"""Lower priority than the engine: a command with a slow check can wait."""


def main() -> None:
    """``python -m counterfoil.checking.child <milliseconds of processor time for each check>``."""
    limit_seconds = int(sys.argv[1]) / 1000
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles it and closes the pipe
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.nice(NICENESS)
    with contextlib.suppress(ValueError, OSError):  # not every system supports this limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    read = partial(os.read, sys.stdin.fileno())
    with contextlib.suppress(BrokenPipeError):  # the engine has ended
        while (head := read_frame(read)) is not None and (value := read_frame(read)) is not None:
            signal.setitimer(signal.ITIMER_PROF, limit_seconds)
            answer = memoryview(frame(json.dumps(_problem(head, value)).encode()))
            signal.setitimer(signal.ITIMER_PROF, 0)
            while answer:
                answer = answer[os.write(sys.stdout.fileno(), answer) :]


def _problem(head: bytes, value: bytes) -> str | None:
    schema = compiled(json.loads(head[1:]))
    return schema_problem(schema, json.loads(value), each=head[:1] == b"e")


if __name__ == "__main__":
    main()
