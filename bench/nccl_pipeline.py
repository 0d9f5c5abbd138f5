"""A real pipeline over NCCL under the exporter: what it says against what truly happened.

    python3 -m bench.nccl_pipeline --output results                   all GPUs of the machine
    python3 -m bench.nccl_pipeline --output results --device cpu --stages 3 --dry-run
    python3 -m bench.nccl_pipeline --output results --judge           judges what lies there

One process a stage loops over slots as SGLang does; each scenario is recorded as `record` would,
beside the truth by CUDA events. Then everything is judged: tables, results.json, picture.svg.
A stage that hangs or fails costs its scenario; the total time is bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.nccl_crew import READY_SECONDS, Crew, CrewError
from bench.nccl_judge import judge
from bench.nccl_scenarios import CALIBRATION, SCENARIOS, Scenario
from bench.nccl_truth import Play
from bench.nccl_witness import Witness
from exporter.records import LoadPhase

LAG_SECONDS = 2.5
"""After the load, until the last samples have arrived."""
DRAIN_SECONDS = 25.0
"""How much later than asked for a stage may answer; above the pauses of NCCL's own start."""
PROBE = "probe"
RECORDINGS, TRUTH = "recordings.tar", "truth.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each part."""

    idle: float
    single: float
    main: float
    probe: float

    @property
    def scenario(self) -> float:
        """All of one scenario."""
        return self.idle + self.single + self.main + LAG_SECONDS + 2.0


FULL, DRY = Times(3.0, 5.0, 20.0, 8.0), Times(0.2, 0.4, 1.2, 0.3)
PROBES = ("idle", "receive", "small_receive", "send", "work")


def log(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Run:
    """One run of all scenarios."""

    def __init__(
        self, output: Path, folder: Path, stages: int, device: str, times: Times, until: float
    ) -> None:
        self._output, self._folder = output, folder
        self._stages, self._device, self._times, self._until = stages, device, times, until
        self._witness = Witness(stages)
        self._crew: Crew | None = None
        self.failed: list[str] = []
        """Scenarios that a hang or a crash cost."""

    async def play_all(self, scenarios: Sequence[Scenario]) -> None:
        """Plays the probe and the calibration, then the scenarios, as far as the time reaches."""
        absent = await self._witness.start()
        if absent is not None:
            log(f"no GPU is sampled: {absent}")
        parts: list[Scenario | None] = [None, CALIBRATION, *scenarios]
        try:
            for scenario in parts:
                name = PROBE if scenario is None else scenario.name
                need = self._need(scenario)
                if time.monotonic() + need > self._until:
                    log(f"{name}: left out, it takes {need:.0f} s and the time is over")
                    continue
                await self._play(name, scenario)
        finally:
            await self._dismiss()
            await self._witness.stop()

    def _need(self, scenario: Scenario | None) -> float:
        start = 25.0 if self._crew is None and self._device == "cuda" else 3.0
        if scenario is None:
            return len(PROBES) * self._times.probe + LAG_SECONDS + start
        return self._times.scenario + (start if self._crew is None else 0.0)

    async def _play(self, name: str, scenario: Scenario | None) -> None:
        play = Play(name, self._stages)
        log(f"{name} …")
        try:
            crew = await self._assembled()
            await crew.tell(10.0, do="begin")
            play.phases["idle"] = (time.time(), time.time())
            path = self._folder / f"{name}.jsonl.gz"
            self._witness.open(path, scenario, play, crew.pids)
            if scenario is None:
                await self._probe(crew, play)
            else:
                await self._phases(crew, scenario, play)
            await asyncio.sleep(LAG_SECONDS if self._witness.gpus else 0.0)
        except Exception as error:  # noqa: BLE001  # one scenario costs itself only
            play.error = f"{type(error).__name__}: {error}"
            self.failed.append(name)
            log(f"{name}: {play.error}")
            if self._crew is not None:
                log(self._crew.last_words())
            await self._dismiss()
        self._witness.close()
        await self._keep(name, play)

    async def _assembled(self) -> Crew:
        if self._crew is None:
            self._crew = Crew(self._stages, self._device, self._folder, self._witness.hear)
            started = time.monotonic()
            await asyncio.wait_for(
                self._crew.start(), max(min(READY_SECONDS, self._until - started), 1.0)
            )
            log(f"{self._stages} stages on {self._crew.name}, {time.monotonic() - started:.0f} s")
        return self._crew

    async def _dismiss(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            await crew.close()

    async def _phases(self, crew: Crew, scenario: Scenario, play: Play) -> None:
        """Idle, then a single stream, then the load."""
        await asyncio.sleep(self._times.idle)
        play.phases["idle"] = (play.phases["idle"][0], time.time())
        requests = sum(scenario.sizes(self._stages))
        if scenario.old_idle:
            await self._part(crew, scenario, play, "main", self._times.main / 2, None)
            return
        tokens, seconds = await self._part(crew, scenario, play, "single", self._times.single, 1)
        self._witness.reference(tokens / seconds)
        await asyncio.sleep(0.5)
        play.tokens, _ = await self._part(crew, scenario, play, "main", self._times.main, requests)

    async def _part(
        self,
        crew: Crew,
        scenario: Scenario,
        play: Play,
        part: str,
        seconds: float,
        requests: int | None,
    ) -> tuple[int, float]:
        start = time.time()
        if requests is not None:
            self._witness.load(start, LoadPhase.START, requests, 0, 0.0)
        answers = await crew.tell(
            seconds + DRAIN_SECONDS, do="play", scenario=scenario.name, part=part, seconds=seconds
        )
        end, tokens = time.time(), int(answers[0]["tokens"])
        play.phases[part] = (start, end)
        if requests is not None:
            self._witness.load(end, LoadPhase.END, requests, tokens, end - start)
        return tokens, end - start

    async def _probe(self, crew: Crew, play: Play) -> None:
        """What each state looks like."""
        for what in PROBES:
            start = time.time()
            seconds = self._times.probe
            await crew.tell(seconds + DRAIN_SECONDS, do="probe", what=what, seconds=seconds)
            play.phases[what] = (start, time.time())

    async def _keep(self, name: str, play: Play) -> None:
        """Adds the truth to the file, and the recording to the archive."""
        with gzip.open(self._output / TRUTH, "at", encoding="ascii") as truths:
            if self._crew is not None:
                try:
                    for answer in await self._crew.tell(40.0, do="truth", scenario=name):
                        truths.write(_text(answer["file"]) + "\n")
                        doubt = 1e3 * answer["doubt_seconds"]
                        log(f"{name}: {answer['passes']} passes, clocks apart by {doubt:.2f} ms")
                except CrewError as error:
                    play.error = f"no truth: {error}"
                    self.failed.append(name)
                    log(f"{name}: {error}\n{self._crew.last_words()}")
                    await self._dismiss()
            truths.write(play.to_json() + "\n")
        recording = self._folder / f"{name}.jsonl.gz"
        if recording.exists():
            with tarfile.open(self._output / RECORDINGS, "a") as archive:
                archive.add(recording, recording.name)


def _text(path: str) -> str:
    return Path(path).read_text(encoding="ascii")


def machine(output: Path) -> None:
    """Notes how the GPUs are linked; prints it too."""
    asked = (["nvidia-smi", "topo", "-m"], ["nvidia-smi", "-L"])
    if shutil.which("nvidia-smi") is None:
        return
    said = [
        subprocess.run(each, capture_output=True, text=True, check=False).stdout for each in asked
    ]
    (output / "machine.txt").write_text("\n".join(said))
    print("\n".join(said), flush=True)


def gpus() -> int:
    """How many GPUs there are; 0 without a driver."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.split("\n"))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for what came out")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument("--stages", type=int, help="default: one a GPU; 2 on a CPU")
    parser.add_argument("--scenarios", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--seconds-total", type=float, default=530.0, help="bound of everything")
    parser.add_argument("--seconds", type=float, help="of the load of one scenario")
    parser.add_argument("--dry-run", action="store_true", help="short: tests the logic")
    parser.add_argument("--judge", action="store_true", help="judge what lies in the folder")
    return parser.parse_args()


def main() -> int:
    """One command, one result; 1 if a scenario was lost."""
    began = time.monotonic()
    arguments = parsed()
    output: Path = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    until = began + arguments.seconds_total
    if arguments.judge:
        judge(output, until=float("inf"))
        return 0
    for name in (RECORDINGS, TRUTH):
        (output / name).unlink(missing_ok=True)
    machine(output)
    device = arguments.device or ("cuda" if gpus() else "cpu")
    stages = arguments.stages or (gpus() if device == "cuda" else 2)
    chosen = [
        each
        for each in SCENARIOS
        if stages >= each.least_stages
        and (not arguments.scenarios or each.name in arguments.scenarios)
    ]
    times = DRY if arguments.dry_run else FULL
    if arguments.seconds:
        times = Times(times.idle, times.single, arguments.seconds, times.probe)
    for each in chosen:
        print(f"{each.name}: expected {' or '.join(each.expected)}: {each.reason}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nccl-pipeline-") as folder:
        run = Run(output, Path(folder), stages, device, times, until)
        asyncio.run(run.play_all(chosen))
    log("judging")
    try:
        judge(output, until=until)
    except Exception:  # noqa: BLE001  # what was recorded stays, and can be judged later
        traceback.print_exc()
    log(f"done in {time.monotonic() - began:.0f} s; lost: {', '.join(run.failed) or 'nothing'}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
