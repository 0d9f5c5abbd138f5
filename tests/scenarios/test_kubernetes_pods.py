"""The example's configuration on a node's /var/log/pods, as kubelet and a CRI runtime keep it.

What any followed file does is told by test_files_are_followed.py. Here: kubelet's rotation, pods
and containers that come and go, other namespaces, ranks with and without the host's processes, and
the users of the manifests.
"""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.journal_lives import decode_line, stamped
from tests.manifests import EXAMPLE, MOUNTS, ROOT
from tests.running import EXPORTER, Metrics, RunningExporter

NODE_ARGUMENTS = {"pp_size": 4, "tp_size": 1, "nnodes": 2, "node_rank": 1}
"""Of the second node of two: stages 2 and 3."""
GPUS = 2
NON_ROOT = 65532
LOG_MODE = 0o640
"""containerd 2, internal/cri/server/helpers.go, openLogFile; conmon 2, src/ctr_logging.c."""


class ContainerLog:
    """/var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log, as containerd writes it."""

    def __init__(self, pods: Path, pod: str, container: str = "sglang") -> None:
        self.folder = pods / pod / container
        self.folder.mkdir(parents=True)
        self._restarts = -1
        self._rotations = 0
        self.start()

    @property
    def path(self) -> Path:
        return self.folder / f"{self._restarts}.log"

    def start(self) -> None:
        """The container starts, again with the next number: a file of its own."""
        self._restarts += 1
        self._create()

    def write(self, lines: int, pp_rank: int = 2) -> None:
        """Writes batch lines, no two alike."""
        self.write_text(*(decode_line(pp_rank, queued=number) for number in range(lines)))

    def write_text(self, *lines: str, tag: str = "F") -> None:
        with self.path.open("a") as file:
            file.writelines(
                f"{datetime.now(UTC).isoformat()} stdout {tag} {text}\n" for text in lines
            )

    def rotate(self) -> None:
        """Kubernetes 1.30, pkg/kubelet/logs/container_log_manager.go, rotateLog.

        What was rotated before is compressed, what is rotated now is not.
        """
        for path in self.folder.glob(f"{self.path.name}.*"):
            if path.suffix != ".gz":
                with gzip.open(f"{path}.gz", "wb") as packed:
                    packed.write(path.read_bytes())
                path.unlink()
        self._rotations += 1
        self.path.rename(f"{self.path}.20260101-00000{self._rotations}")
        self._create()

    def _create(self) -> None:
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE))


class Node:
    """A node's pods, and an exporter with the example's configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods = folder / "pods"
        self.pods.mkdir()
        self.state = folder / "state"
        self.state.mkdir()
        self._config = folder / "exporter.yaml"
        text = (EXAMPLE / "exporter.yaml").read_text()
        for mount, path in (("logs", self.pods), ("state", self.state)):
            mounted = MOUNTS[mount]["mountPath"]
            assert mounted in text
            text = text.replace(mounted, str(path))
        self._config.write_text(text)

    def log(self, pod: str) -> ContainerLog:
        return ContainerLog(self.pods, pod)

    def exporter(self, fake: FakeNvml | None = None, run_by: Sequence[str] = ()) -> RunningExporter:
        args = ["serve", f"--config={self._config}", *(["--no-nvml"] if fake is None else [])]
        environment = {} if fake is None else fake.environment()
        return RunningExporter(args, self.folder, environment, (*run_by, *EXPORTER))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def batches(metrics: Metrics) -> float:
    return metrics.total("stage_batches_total", server="kimi")


def counted(exporter: RunningExporter, expected: int) -> Metrics:
    shown = exporter.wait_for(lambda shown: batches(shown) >= expected)
    assert batches(shown) == expected
    return shown


def is_reading(exporter: RunningExporter) -> None:
    exporter.wait_for(lambda shown: shown.value("exporter_source_up", source="files:kimi"))


# --- logs --------------------------------------------------------------------------------------


def test_a_line_counts_once_over_rotation_restart_and_a_new_pod(node: Node) -> None:
    log = node.log("inference_kimi-0_0a1b")
    log.write(5)  # before the exporter's first life
    with node.exporter() as exporter:
        is_reading(exporter)
        log.write(3)
        counted(exporter, 3)
        log.rotate()
        log.write(2)
        counted(exporter, 5)  # kubelet looks every 10 s, the exporter every second
        log.rotate()
        log.write(1)
        counted(exporter, 6)
        log.start()
        log.write(4)
        counted(exporter, 10)
        exporter.kill()
    log.write(2)
    log.rotate()
    log.write(1)
    replacement = node.log("inference_kimi-0_9f8e")
    replacement.write(3)
    with node.exporter() as exporter:
        counted(exporter, 6)
        shutil.rmtree(log.folder.parent)
        replacement.write(1)
        shown = counted(exporter, 7)
    assert shown.total("exporter_journal_gaps_total") == 0


def test_what_kubelet_compressed_before_it_was_read_is_a_gap_and_nothing_is_invented(
    node: Node,
) -> None:
    log = node.log("inference_kimi-0_0a1b")
    with node.exporter() as exporter:
        is_reading(exporter)
        log.write(3)
        counted(exporter, 3)
        exporter.kill()
    log.write(7)
    log.rotate()
    log.rotate()
    log.write(2)
    with node.exporter() as exporter:
        shown = counted(exporter, 2)
    assert shown.total("exporter_journal_gaps_total") == 1


def test_a_line_that_the_runtime_cut_counts_once_it_is_whole(node: Node) -> None:
    log = node.log("inference_kimi-0_0a1b")
    line = decode_line(2)
    with node.exporter() as exporter:
        is_reading(exporter)
        log.write_text(line[:40], tag="P")
        log.write_text(line[40:])
        counted(exporter, 1)


def test_pods_of_the_name_in_another_namespace_and_other_containers_are_not_read(
    node: Node,
) -> None:
    read = node.log("inference_kimi-0_0a1b")
    others = [
        node.log("tenant_kimi-0_0c2d"),
        node.log("tenant-inference_kimi-0_0e3f"),
        node.log("inference_other-kimi-0_0f4a"),
        ContainerLog(node.pods, "inference_kimi-1_0f4b", "sidecar"),
    ]
    with node.exporter() as exporter:
        is_reading(exporter)
        for log in others:
            log.write(2)
        read.write(1)
        shown = counted(exporter, 1)
    assert shown.total("exporter_journal_lines_total") == 1


# --- ranks -------------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", GPUS)


def ranks(metrics: Metrics) -> dict[str, str]:
    """NVML index → pp_rank, of the GPUs that are mapped."""
    labels = [dict(pairs) for _, pairs in metrics.matching("gpu_info", server="kimi")]
    return {one["gpu"]: one["pp_rank"] for one in labels}


@pytest.fixture
def schedulers(fake: FakeNvml) -> Iterator[None]:
    """Processes with SGLang's titles on the GPUs, in another order than the formula's."""
    with ExitStack() as stack:
        for gpu, title in enumerate(("sglang::scheduler_PP3", "sglang::scheduler_PP2")):
            process = stack.enter_context(
                subprocess.Popen([title], executable=shutil.which("cat"), stdin=subprocess.PIPE)
            )
            card = fake.control.gpu[gpu]
            card.pids[0], card.pid_memory[0] = process.pid, 1 << 30
        yield


@pytest.mark.usefixtures("schedulers")
def test_with_the_hosts_processes_ranks_are_told_by_their_titles(
    node: Node, fake: FakeNvml
) -> None:
    node.log("inference_kimi-1_0a1b").write_text(stamped(f"server_args={NODE_ARGUMENTS}"))
    with node.exporter(fake) as exporter:
        shown = exporter.wait_for(lambda shown: len(ranks(shown)) == GPUS)
    assert ranks(shown) == {"0": "3", "1": "2"}


def test_without_the_hosts_processes_ranks_are_told_by_the_formula_of_the_nodes_own_log(
    node: Node, fake: FakeNvml
) -> None:
    log = node.log("inference_kimi-1_0a1b")
    log.write_text(stamped(f"server_args={NODE_ARGUMENTS}"))
    with node.exporter(fake) as exporter:
        shown = exporter.wait_for(lambda shown: len(ranks(shown)) == GPUS)
        log.write(1, pp_rank=2)
        log.write(1, pp_rank=3)
        stages = counted(exporter, 2).label_values("stage_batches_total", "pp_rank")
    assert ranks(shown) == {"0": "2", "1": "3"}
    assert stages >= {"2", "3"}


# --- users -------------------------------------------------------------------------------------


def as_user(user: int) -> list[str]:
    """As the manifests run the container: that user, no capability, and none to gain."""
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *ids, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


def why_not() -> str | None:
    """Why no exporter can be run by another user here; `None` if it can."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return "only root can run the exporter by another user, with setpriv"
    command = [*as_user(NON_ROOT), sys.executable, "-c", "import exporter"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return None if done.returncode == 0 else "other users cannot read the checkout"


runs_as_users = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def open_node() -> Iterator[Node]:
    """A node in a folder that any user may enter, as /var/log is; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="node-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        node = Node(folder)
        yield node


@runs_as_users
def test_root_without_capabilities_reads_the_logs_as_their_owner(open_node: Node) -> None:
    log = open_node.log("inference_kimi-0_0a1b")
    assert log.path.stat().st_mode & 0o777 == LOG_MODE
    with open_node.exporter(run_by=as_user(0)) as exporter:
        is_reading(exporter)
        log.write(2)
        counted(exporter, 2)
        status = Path(f"/proc/{exporter.pid}/status").read_text()
    assert "CapEff:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status
    assert (open_node.state / "positions.json").exists()


@runs_as_users
def test_another_user_is_told_what_to_do_and_reads_once_an_access_list_lets_it(
    open_node: Node,
) -> None:
    open_node.log("inference_kimi-0_0a1b")
    shutil.chown(open_node.state, NON_ROOT, NON_ROOT)
    with open_node.exporter(run_by=as_user(NON_ROOT)) as exporter:
        exporter.wait_until(lambda: "setfacl" in exporter.get("/-/ready").text)
        let_read(open_node.pods)
        log = open_node.log("inference_kimi-1_0c2d")
        is_reading(exporter)
        log.write(2)
        counted(exporter, 2)


def let_read(folder: Path) -> None:
    """`setfacl --modify u:65532:rX,d:u:65532:rX FOLDER`, the default entry: linux/posix_acl_xattr.h."""
    nobody = 0xFFFFFFFF
    owner, user, group, mask, other = 0x01, 0x02, 0x04, 0x10, 0x20
    entries = [(owner, 7, nobody), (user, 5, NON_ROOT), (group, 5, nobody)]
    entries += [(mask, 7, nobody), (other, 5, nobody)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_default", packed)
    except OSError as error:
        pytest.skip(f"the file system of {folder} keeps no access lists: {error}")
