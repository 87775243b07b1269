"""What is read from wrk, /proc and strace."""

from __future__ import annotations

import os

import pytest

from bench import durability, family, large, ready, wrk
from bench.endpoint import Refused

PRINTED = """Running 1s test @ http://127.0.0.1:9000/
  1000 requests in 2.00s, 4.10MB read
  Non-2xx or 3xx responses: 10

BENCH requests=1000 microseconds=2000000 bytes=4300000 status=10 connect=1 read=2 write=3 timeout=4 \
p50=1500 p99=9000 max=20000 wrapped=1
"""


def test_wrks_result_is_read() -> None:
    found = wrk.parse(PRINTED)
    assert found.rate == 495.0
    assert (found.p50, found.p99) == (1.5, 9.0)
    assert (found.errors, found.broken, found.wrapped) == (20, 10, 1)


def test_wrk_without_a_result_is_an_error() -> None:
    with pytest.raises(wrk.WrkFailed, match="unable to connect"):
        wrk.parse("unable to connect to 127.0.0.1:1 Connection refused")


def test_wrks_command_gives_the_script_what_is_set() -> None:
    words = wrk.command("http://h", 32, 0.4, {"host": "h", "gets": None, "share": 10})
    assert words[:4] == ["wrk", "-t1", "-c32", "-d1s"]
    assert words[words.index("--") + 1 :] == ["host=h", "share=10", "threads=1"]


def test_cpu_time_counts_children_that_ended() -> None:
    text = "42 (a ) name) S 7 42 42 0 -1 4194560 1 2 3 4 100 50 30 20 20 0 1 0 99"
    stat = family.parse_stat(text)
    assert stat.parent == 7
    assert stat.seconds == 200 / family.TICK


def test_pss_is_read_in_bytes() -> None:
    assert family.parse_pss("00-ff ---p 0 00:00 0 [rollup]\nRss:  900 kB\nPss:  321 kB\nPss_Anon: 5 kB\n") == 321 * 1024
    assert family.parse_pss("") == 0


def test_a_family_has_its_root_and_its_memory() -> None:
    own = family.Family((os.getpid(),))
    assert os.getpid() in own.members()
    assert own.pss() > 1 << 20
    with own.peak() as highest:
        pass
    assert highest[0] > 1 << 20
    assert family.Family((2**22 + 1,)).members() == {}


def test_syncs_are_counted_per_put() -> None:
    log = "\n".join(
        [
            '7 openat(AT_FDCWD, "x", O_RDWR|O_DSYNC) = 3',
            '7 openat(AT_FDCWD, "y", O_RDONLY) = 4',
            "8 fdatasync(3 <unfinished ...>",
            "8 <... fdatasync resumed>) = 0",
            "8 fsync(3) = 0",
            "9 +++ exited with 0 +++",
        ]
    )
    assert durability.count(log, 2) == "seen per PUT: 0.5 fdatasync, 0.5 fsync, 0.5 open with O_SYNC or O_DSYNC"
    assert durability.count("", 2) == "seen per PUT: nothing is synced"


def test_a_connections_inode_is_found_by_its_ports() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:2328 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 111 1 0\n"
        "   1: 0100007F:D431 0100007F:2328 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0\n"
    )
    assert ready.inode_of(table, local=0x2328, remote=0xD431) == "111"
    assert ready.inode_of(table, local=1, remote=2) is None


def test_the_manifest_is_in_order() -> None:
    text = large.manifest({2: '"b"', 1: '"a"'}).decode()
    assert text.index("<PartNumber>1<") < text.index("<PartNumber>2<")


def test_what_is_missing_in_an_answer_is_refused() -> None:
    assert large.between("<a>1</a>", "<a>", "</a>") == "1"
    with pytest.raises(Refused):
        large.between("<b/>", "<a>", "</a>")
