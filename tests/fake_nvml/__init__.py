"""The fake driver library: built here, controlled from here, loaded by the real pynvml.

In this process: `with fake.loaded(): NvmlDriver()…`. In a whole exporter process: start it with
`fake.environment()` added to its environment. Every write to `fake.control` acts on the very next
call, whichever process makes it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

MAX_GPUS = 64
MAX_PROCESSES = 4
ALL = MAX_GPUS
"""The row of faults, hangs and call counts that stands for every GPU."""

CODES = {
    name.removeprefix("NVML_ERROR_"): value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
"""NVML's return codes by name, as errors are labeled."""

_SOURCE = Path(__file__).with_name("fake_nvml.c")


@functools.cache
def library() -> Path:
    """Builds the library once per test process; its directory is for LD_LIBRARY_PATH."""
    directory = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    built = directory / "libnvidia-ml.so.1"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", str(built), str(_SOURCE), "-lm"], check=True)
    return built


@functools.cache
def _loaded_library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library()))
    loaded.fake_nvml_function_name.restype = ctypes.c_char_p
    return loaded


@functools.cache
def functions() -> tuple[str, ...]:
    """The functions the fake driver has, in the order of its control tables."""
    loaded = _loaded_library()
    return tuple(
        loaded.fake_nvml_function_name(number).decode()
        for number in range(loaded.fake_nvml_function_count())
    )


class GpuControl(ctypes.Structure):
    """`struct gpu_control` of the C file."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("period_seconds", "duty", "phase_seconds")),
        *((name, ctypes.c_double) for name in ("idle_watts", "busy_watts", "limit_watts")),
        *((name, ctypes.c_double) for name in ("sm", "occupancy", "dram", "tensor", "graphics")),
        *((name, ctypes.c_uint64) for name in ("memory_used", "memory_total", "event_reasons")),
        *((name, ctypes.c_uint64 * MAX_PROCESSES) for name in ("pids", "pid_memory")),
        ("answers_from_generation", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("lost_code", "gpm_supported", "gpm_in_use")),
        *((name, ctypes.c_uint32) for name in ("rings_supported", "persistence_mode")),
        *((name, ctypes.c_uint32) for name in ("corrupt_every", "xid", "xid_sequence")),
        *((name, ctypes.c_uint32) for name in ("pcie_code", "absent", "serial")),
    )


@functools.cache
def _control_type() -> type[ctypes.Structure]:
    number = len(functions())

    class Control(ctypes.Structure):
        """`struct control` of the C file."""

        _fields_ = (
            *((name, ctypes.c_uint32) for name in ("layout", "size", "gpu_count")),
            ("measured_costs", ctypes.c_uint32),
            *((name, ctypes.c_uint64) for name in ("virtual_now_us", "generation")),
            *((name, ctypes.c_uint32) for name in ("utilization_us", "utilization_kept")),
            *((name, ctypes.c_uint32) for name in ("power_us", "power_kept")),
            *((name, ctypes.c_uint32) for name in ("gpm_nan", "xid_nap_ms")),
            ("fault", ctypes.c_uint32 * number * (MAX_GPUS + 1)),
            ("hang_ms", ctypes.c_uint32 * number * (MAX_GPUS + 1)),
            ("calls", ctypes.c_uint64 * number * (MAX_GPUS + 1)),
            ("gpu", GpuControl * MAX_GPUS),
        )

    return Control


class FakeNvml:
    """A machine with `gpus` GPUs, each busy in its own rhythm, described by a shared file.

    Attributes:
        control: The file as a structure; see the C file for what each field does.
        path: Where it lies, for `FAKE_NVML_CONTROL`.
    """

    def __init__(self, path: Path, gpus: int = 1) -> None:
        layout = _control_type()
        size = ctypes.sizeof(layout)
        assert size == _loaded_library().fake_nvml_control_size()
        self.path = path
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), size)
        self.control = layout.from_buffer(self._shared)
        self.control.layout = _loaded_library().fake_nvml_layout()
        self.control.size = size
        self.control.gpu_count = gpus
        self.control.utilization_us, self.control.utilization_kept = 200_000, 71
        self.control.power_us, self.control.power_kept = 20_000, 119
        self.control.xid_nap_ms = 10
        for gpu in range(MAX_GPUS):
            self._furnish(gpu)

    def _furnish(self, gpu: int) -> None:
        card = self.control.gpu[gpu]
        card.period_seconds, card.duty, card.phase_seconds = 0.37 + gpu / 100, 0.5, gpu / 7
        card.idle_watts, card.busy_watts, card.limit_watts = 80.0, 600.0, 700.0
        card.sm, card.occupancy, card.dram, card.tensor, card.graphics = 90, 12, 60, 3, 99
        card.memory_used, card.memory_total = (100 + gpu % 16) << 30, 141 << 30
        card.gpm_supported = card.rings_supported = card.persistence_mode = 1
        card.serial = gpu

    def environment(self, *, measured_costs: bool = False) -> dict[str, str]:
        """What a process needs in its environment to find this driver."""
        costs = {"FAKE_NVML_COSTS": "measured"} if measured_costs else {}
        return {
            "LD_LIBRARY_PATH": str(library().parent),
            "FAKE_NVML_CONTROL": str(self.path),
            **costs,
        }

    @contextmanager
    def loaded(self) -> Iterator[FakeNvml]:
        """Makes this process's pynvml use the fake driver until the block ends."""
        before = os.environ.get("FAKE_NVML_CONTROL")
        os.environ["FAKE_NVML_CONTROL"] = str(self.path)
        pynvml.nvmlLib = ctypes.CDLL(str(library()))
        pynvml._nvmlGetFunctionPointer_cache.clear()
        try:
            yield self
        finally:
            pynvml.nvmlLib = None
            pynvml._nvmlGetFunctionPointer_cache.clear()
            os.environ.pop("FAKE_NVML_CONTROL")
            if before is not None:
                os.environ["FAKE_NVML_CONTROL"] = before

    def fault(self, function: str, code: str | None, gpu: int = ALL) -> None:
        """From now on `function` answers `code` for that GPU; `None` heals it."""
        self.control.fault[gpu][functions().index(function)] = CODES[code] if code else 0

    def lose(self, gpu: int, code: str | None = "GPU_IS_LOST") -> None:
        """From now on every call about that GPU answers `code`; `None` brings it back."""
        self.control.gpu[gpu].lost_code = CODES[code] if code else 0

    def lose_until_restart(self, gpu: int) -> None:
        """That GPU is lost until the library is initialized once more."""
        self.control.gpu[gpu].answers_from_generation = self.control.generation + 1

    def hang(self, function: str, seconds: float, gpu: int = ALL) -> None:
        """The next call of `function` for that GPU does not return for so long."""
        self.control.hang_ms[gpu][functions().index(function)] = int(seconds * 1000)

    def calls(self, function: str, gpu: int = ALL) -> int:
        """How often `function` was called."""
        return int(self.control.calls[gpu][functions().index(function)])

    def report_xid(self, gpu: int, xid: int) -> None:
        """The driver reports an XID."""
        self.control.gpu[gpu].xid = xid
        self.control.gpu[gpu].xid_sequence += 1

    def busy_seconds(self, gpu: int, start: float, end: float) -> float:
        """How long that GPU was busy between two instants, from its rhythm alone."""

        def until(at: float) -> float:
            card = self.control.gpu[gpu]
            busy = card.duty * card.period_seconds
            cycles = math.floor((at - card.phase_seconds) / card.period_seconds)
            return cycles * busy + min(busy, at - card.phase_seconds - cycles * card.period_seconds)

        return until(end) - until(start)

    def ring(self, gpu: int, signal: str, start_us: int, end_us: int) -> list[tuple[int, float]]:
        """Every entry the ring ever held with a timestamp in (start, end]: µs, percent or mW."""
        step = self.control.utilization_us if signal == "utilization" else self.control.power_us
        shift = gpu * step // MAX_GPUS
        entries = []
        for tick in range((start_us - shift) // step + 1, (end_us - shift) // step + 1):
            at = tick * step + shift
            share = self.busy_seconds(gpu, (at - step) / 1e6, at / 1e6) / (step / 1e6)
            card = self.control.gpu[gpu]
            watts = card.idle_watts + (card.busy_watts - card.idle_watts) * share
            entries.append((at, share * 100 if signal == "utilization" else watts * 1000))
        return entries
