"""Saved logs of every format: which lines are taken, with which instants, from whom."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from exporter.admission import Admission
from exporter.records import Batch, LogLine, RefusedLine
from exporter.saved_log.reader import SavedLog, SavedLogError
from exporter.sources.journal.entries import JournalMatch

STAMP = "2026-11-30 12:00:01"
AT = datetime(2026, 11, 30, 12, 0, 1, tzinfo=UTC).timestamp()
SCHEDULER = "sglang::scheduler_PP3"
MAIN = "/usr/bin/python -m sglang.launch_server --pp-size 8"


def decode(stamp: str = STAMP, rank: int = 3, running: int = 8) -> str:
    return (
        f"[{stamp} PP{rank}] Decode batch, #running-req: {running}, #token: 800, token usage: 0.05, "
        "cuda graph: True, gen throughput (token/s): 248.10, #queue-req: 0"
    )


def entry(message: object, cmdline: str = SCHEDULER, **fields: object) -> str:
    """An entry as `journalctl -o json` writes it."""
    known = {
        "__REALTIME_TIMESTAMP": str(round(AT * 1e6) + 250_000),
        "_TRANSPORT": "stdout",
        "_PID": "4242",
        "_CMDLINE": cmdline,
        "_SYSTEMD_UNIT": "sglang.service",
        "MESSAGE": message,
    }
    return json.dumps({**known, **fields})


def saved(folder: Path, *lines: str) -> SavedLog:
    path = folder / "sglang.log"
    path.write_bytes(b"".join(line.encode() + b"\n" for line in lines))
    return SavedLog(path)


def lines_of(log: SavedLog) -> list[LogLine]:
    return [line for _, line in log]


def judged(log: SavedLog) -> Iterator[Batch | str]:
    admission = Admission()
    for line in lines_of(log):
        record = admission.admit(line)
        if isinstance(record, Batch):
            yield record
        elif isinstance(record, RefusedLine):
            yield record.reason.value


# --- formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "at"),
    [
        ("", None),
        ("Nov 30 12:00:01 host sglang[4242]: ", None),
        ("Nov 30 17:30:01.123456 host sglang[4242]: ", AT + 0.123456),
        ("nov. 30 12:00:01.123456 host sglang: ", AT + 0.123456),
        ("Nov 30 12:00:02.001000 host sglang[4242]: ", AT + 1.001),
        ("2026-11-30T12:00:01+0000 host sglang[4242]: ", None),
        ("2026-11-30T13:00:01.5+01:00 host sglang[4242]: ", AT + 0.5),
        ("Mon 2026-11-30 12:00:01 UTC host sglang.service[4242]: ", None),
        ("[ 1234.567890] host sglang[4242]: ", 1234.56789),
        ("1796039201.250000 host sglang[4242]: ", 1796039201.25),
        ("2026-11-30T12:00:01.123456789Z ", AT + 0.123457),
        ("2026-11-30T12:00:01.25Z stdout F ", AT + 0.25),
        ("sglang-1  | ", None),
        ("sglang-1  | 2026-11-30T12:00:01.25Z ", AT + 0.25),
        ("[pod/kimi-0/sglang] ", None),
        ("[pod/kimi-0/sglang] 2026-11-30T12:00:01.25Z ", AT + 0.25),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_a_line_is_found_behind_what_a_log_puts_before_it(
    before: str, at: float | None, tmp_path: Path
) -> None:
    log = saved(tmp_path, *[before + decode()] * 3)
    found = lines_of(log)
    assert [line.message for line in found] == [decode()] * 3
    if at is None:
        assert log.resolution_seconds == 1.0
        assert [line.logged_at - AT for line in found] == pytest.approx([1 / 6, 0.5, 5 / 6])
    else:
        assert log.resolution_seconds == 0.0
        assert found[0].logged_at == pytest.approx(at, abs=1e-5)


@pytest.mark.parametrize("before", ["", "sglang-1  | ", "2026-11-30T12:00:01.25Z stdout F "])
def test_a_line_is_found_whatever_colors_it(before: str, tmp_path: Path) -> None:
    plain, colored = decode(), f"\x1b[36m{decode()}\x1b[0m"
    for line in (f"{before}{colored}", f"\x1b[1;36m{before}\x1b[0m{plain}"):
        assert [found.message for found in lines_of(saved(tmp_path, line))] == [plain]


def test_dockers_own_file_is_read(tmp_path: Path) -> None:
    wrapped = {"log": decode() + "\n", "stream": "stdout", "time": "2026-11-30T12:00:01.25Z"}
    (line,) = lines_of(saved(tmp_path, json.dumps(wrapped)))
    assert line.message == decode()
    assert line.logged_at == pytest.approx(AT + 0.25)


def test_an_export_of_the_journal_keeps_time_process_and_unit(tmp_path: Path) -> None:
    log = saved(tmp_path, entry(decode()), "", entry(list(decode().encode())))
    for line in lines_of(log):
        assert line == LogLine("sglang", AT + 0.25, decode(), 4242, SCHEDULER)
    assert log.summary() is None


def test_lines_of_a_unit_alone_are_picked(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    entries = [entry(decode(), _SYSTEMD_UNIT=f"{name}.service") for name in ("kimi", "qwen")]
    path.write_text("\n".join(entries))
    assert [line.server for line in lines_of(SavedLog(path))] == ["kimi", "qwen"]
    picked = SavedLog(path, pick=JournalMatch(unit="qwen.service"))
    assert [line.server for line in lines_of(picked)] == ["qwen"]
    nobody = SavedLog(path, pick=JournalMatch(unit="other.service"))
    assert lines_of(nobody) == []
    assert "none is of the server" in (nobody.summary() or "")


def test_user_units_and_containers_are_servers_of_their_own(tmp_path: Path) -> None:
    user = entry(decode(), _SYSTEMD_UNIT="user@7.service", _SYSTEMD_USER_UNIT="mine.service")
    container = entry(decode(), _TRANSPORT="journal", CONTAINER_NAME="box", _CMDLINE="dockerd")
    session = entry(decode(), _SYSTEMD_UNIT="session-3.scope", SYSLOG_IDENTIFIER="by-hand")
    found = lines_of(saved(tmp_path, user, container, session))
    assert [line.server for line in found] == ["mine", "box", "by-hand"]


def test_it_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "sglang.log.1.gz"
    path.write_bytes(gzip.compress(f"{decode()}\n".encode()))
    assert len(lines_of(SavedLog(path))) == 1


def test_a_file_cut_short_gives_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "sglang.log.gz"
    lines = "".join(f"{decode(running=n % 7)}\n" for n in range(20_000))
    path.write_bytes(gzip.compress(lines.encode())[:-300])
    log = SavedLog(path)
    assert len(lines_of(log)) > 1000
    assert "ends early" in (log.summary() or "")


# --- times -------------------------------------------------------------------------------------


def test_milliseconds_of_the_server_are_kept(tmp_path: Path) -> None:
    log = saved(tmp_path, decode(f"{STAMP}.987"))
    assert lines_of(log)[0].logged_at == pytest.approx(AT + 0.987)
    assert log.resolution_seconds == 0.0


def test_lines_of_a_second_are_spread_in_their_order(tmp_path: Path) -> None:
    later = "2026-11-30 12:00:02"
    texts = [*(decode(running=n) for n in range(4)), decode(later, running=9)]
    found = lines_of(saved(tmp_path, *texts))
    assert [line.message for line in found] == texts
    assert [line.logged_at - AT for line in found] == pytest.approx(
        [0.125, 0.375, 0.625, 0.875, 1.5]
    )


def test_a_second_of_disorder_is_put_right_and_more_is_counted(tmp_path: Path) -> None:
    stamps = [f"2026-11-30 12:00:{second:02}" for second in (5, 7, 6, 8, 2, 9)]
    log = saved(tmp_path, *[decode(stamp) for stamp in stamps])
    assert [line.logged_at - AT - 4.5 for line in lines_of(log)] == pytest.approx([0, 1, 2, 3, 4])
    assert "1 out of time order" in (log.summary() or "")


def test_a_forged_stamp_in_the_future_costs_itself_alone(tmp_path: Path) -> None:
    texts = [decode(f"2026-11-30 12:00:0{n}") for n in range(5)]
    log = saved(tmp_path, *texts[:2], decode("2099-01-01 00:00:00"), *texts[2:])
    assert len(lines_of(log)) == 5
    assert "1 out of time order" in (log.summary() or "")


def test_each_start_of_a_server_is_told_apart(tmp_path: Path) -> None:
    start = f"[{STAMP}] server_args={{'pp_size': 8}}"
    found = lines_of(saved(tmp_path, start, start, decode(), decode(), start, decode()))
    assert [line.launch for line in found] == ["0", "0", "0", "0", "1", "1"]


def test_arguments_that_a_user_quotes_begin_no_start(tmp_path: Path) -> None:
    quoted = f"[{STAMP}] Receive: text='[{STAMP}] server_args={{}}'"
    found = lines_of(saved(tmp_path, decode(), quoted, decode()))
    assert {line.launch for line in found} == {"0"}


# --- hostile text ------------------------------------------------------------------------------

FORGED = decode(rank=5)


@pytest.mark.parametrize(
    "hostile",
    [
        f"Nov 30 12:00:01 host sglang[4242]: {FORGED}",
        json.dumps({"log": FORGED + "\n", "stream": "stdout", "time": "2026-11-30T12:00:01.25Z"}),
        f"2026-11-30T12:00:01.25Z stdout F {FORGED}",
        f"sglang-1  | {FORGED}",
        entry(FORGED),
        f"text {FORGED}",
        f"\u2028{FORGED}",
    ],
    ids=["short", "docker", "cri", "compose", "journal", "behind text", "separator"],
)
def test_a_plain_line_that_quotes_another_wrapping_is_no_batch(
    hostile: str, tmp_path: Path
) -> None:
    found = list(judged(saved(tmp_path, decode(), decode(), hostile)))
    assert [each.pp_rank for each in found if isinstance(each, Batch)] == [3, 3]
    assert found[2:] == ["glued"]


@pytest.mark.parametrize("inner", [f"Nov 30 12:00:01 host sglang[1]: {FORGED}", f"   {FORGED}"])
def test_a_message_that_imitates_another_entry_is_no_batch(inner: str, tmp_path: Path) -> None:
    before = "Nov 30 12:00:01 host sglang[4242]: "
    found = list(judged(saved(tmp_path, before + decode(), before + decode(), before + inner)))
    assert [each.pp_rank for each in found if isinstance(each, Batch)] == [3, 3]
    assert found[2:] == ["glued"]


def test_a_line_without_the_files_wrapping_is_counted_and_not_taken(tmp_path: Path) -> None:
    before = "Nov 30 12:00:01 host sglang[4242]: "
    log = saved(tmp_path, before + decode(), before + decode(), FORGED)
    assert len(lines_of(log)) == 2
    assert "1 wrapped unlike the others" in (log.summary() or "")


@pytest.mark.parametrize(
    ("message", "cmdline"),
    [
        (f"user text\n{FORGED}", SCHEDULER),
        (FORGED, SCHEDULER),
        (FORGED, MAIN),
        ([f"user text {FORGED}", FORGED], SCHEDULER),
        (list(f"user text\n{FORGED}".encode()), SCHEDULER),
    ],
    ids=["newline", "rank of another", "main process", "two messages", "bytes"],
)
def test_an_exported_entry_is_believed_as_far_as_its_process_is_known(
    message: object, cmdline: str, tmp_path: Path
) -> None:
    found = list(judged(saved(tmp_path, entry(decode()), entry(message, cmdline))))
    assert isinstance(found[0], Batch)
    assert found[0].verified
    assert not any(isinstance(each, Batch) for each in found[1:])
    assert len(found) == 2, "it is counted as refused"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no object"),
        (entry(decode(), __REALTIME_TIMESTAMP="soon"), "no time"),
        (entry({"a": 1}), "no text and no bytes"),
        (entry([1, 999]), "no text and no bytes"),
    ],
)
def test_a_bad_entry_costs_itself_and_is_counted(bad: str, said: str, tmp_path: Path) -> None:
    log = saved(tmp_path, entry(decode()), entry(decode()), bad, entry(decode()))
    assert len(lines_of(log)) == 3
    assert f"1 {said}" in (log.summary() or "") or said in (log.summary() or "")


def test_text_that_journalctl_left_out_is_told_with_the_remedy(tmp_path: Path) -> None:
    log = saved(tmp_path, entry(decode()), entry(None, MAIN))
    assert len(lines_of(log)) == 1
    assert "--all" in (log.summary() or "")


def test_made_up_servers_are_bounded(tmp_path: Path) -> None:
    entries = [entry(decode(), _SYSTEMD_UNIT=f"u{n}.service") for n in range(80)]
    log = saved(tmp_path, *entries)
    assert len({line.server for line in lines_of(log)}) == 64
    assert "16 of more than 64 servers" in (log.summary() or "")


# --- what is no log ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (bytes(range(256)) * 20, "no text"),
        (b"LPKSHHRH" + bytes(100), "journalctl --file"),
        (b"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1\n", "-o json --all"),
        (b"__REALTIME_TIMESTAMP=1\n_BOOT_ID=a\nMESSAGE\n\1\0\0\0\0\0\0\0a\n", "-o json --all"),
        (b'{\n\t"MESSAGE" : "x"\n}\n', "-o json --all"),
        (b"\x28\xb5\x2f\xfd\x00", "zstd"),
        (b'{"type":"header","format":"sglang-pipeline-recording","version":1}\n', "--recording"),
        ("\ufeff[2026".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8bnot really", "cannot"),
    ],
    ids=[
        *("empty", "binary", "journal", "export", "binary export"),
        *("pretty", "zstd", "recording", "utf16", "gzip"),
    ],
)
def test_what_is_no_log_is_named_with_a_remedy(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(content)
    with pytest.raises(SavedLogError, match=r"^cannot (read|use) ") as error:
        SavedLog(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_unit_cannot_be_picked_from_a_text(tmp_path: Path) -> None:
    path = tmp_path / "sglang.log"
    path.write_text(decode() + "\n")
    with pytest.raises(SavedLogError, match="only an export of the journal names units"):
        SavedLog(path, pick=JournalMatch(unit="sglang.service"))
