"""Builds the image, looks at it, runs it beside a journal and a driver, and says what it weighs.

Exit status 0: all holds, or this machine cannot tell, which is said; 1: the image fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.image.behavior import runs_the_demo, serves_a_host
from tests.image.built import IMAGE, Builder, BuildError, base_name
from tests.image.contents import holds_nothing_more, largest, says_what_it_is
from tests.image.surroundings import why_not

STOPS_WITHIN_SECONDS = 2.0


def main() -> int:
    """Runs everything in a folder that is gone afterwards."""
    reason = why_not()
    if reason is not None:
        print(f"image-test: skipped, nothing was built: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="sglang-pipeline-image-"))
    folder.chmod(0o755)  # the container's user has to reach what is mounted from here
    tempfile.tempdir = str(folder)
    try:
        _test(folder)
    except BuildError as error:
        print(f"image-test: failed: {error}", file=sys.stderr)
        return 1
    finally:
        _remove(folder)
    return 0


def _test(folder: Path) -> None:
    builder = Builder(folder)
    for step in (builder.make_base, builder.build):
        began = time.monotonic()
        step()
        print(f"image-test: {step.__name__} took {time.monotonic() - began:.0f} s")
    config, root = builder.config(), builder.unpacked()
    says_what_it_is(config)
    holds_nothing_more(root)
    weights = largest(root)
    # The quicker one counts: the machine may have been busy during the other.
    ended = min(serves_a_host(root, config, folder), runs_the_demo(root, config, folder))
    print(f"image-test: all holds; SIGTERM ended it within {ended:.1f} s")
    assert ended < STOPS_WITHIN_SECONDS
    sizes = builder.sizes()
    base, image = (sizes[f"localhost/{name.partition(':')[0]}"] for name in (base_name(), IMAGE))
    print(f"image-test: the image has {image}, of which Debian's base {base}; {weights}")


def _remove(folder: Path) -> None:
    """Deletes the folder, and first what an interrupted program left mounted below it."""
    mounted = [
        line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().split("\n") if line
    ]
    left = [path for path in mounted if path.startswith(f"{folder}{os.sep}")]
    assert not left, f"still mounted, so nothing was deleted: {left}"
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
