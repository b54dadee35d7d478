"""Files that are no sound export, and files made to do harm: one line, or nothing happens."""

import os
import random
import sqlite3

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.readers import nsys_export
from peakward.traces.readers.nsys_database import connect

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (5, 6, 16777217, 1, 2);
"""
KERNEL = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, 16777216, 1)"


@pytest.fixture
def build(tmp_path):
    """build(script, n_kernels=…): the path of an export to which the script was added."""

    def make(script="", n_kernels=1, name="made.sqlite", page_bytes=512):
        path = tmp_path / name
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA page_size = {page_bytes}")
            connection.executescript(SCHEMA + script)
            connection.executemany(
                KERNEL, ((1000 * each, 1000 * each + 9, each) for each in range(1, n_kernels + 1))
            )
        connection.close()
        return path

    return make


def refusal(path):
    """What the reader says; it is one line."""
    with pytest.raises(PeakwardError) as caught:
        nsys_export.read(path)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith("expected ")
    assert ", got " in message
    assert ": " in message
    return message


def test_no_file_an_empty_one_a_folder_a_pipe(tmp_path):
    assert "got a path that cannot be opened" in refusal(tmp_path / "none.sqlite")
    assert "got a path that cannot be opened" in refusal(tmp_path / "a\0b")
    (tmp_path / "empty.sqlite").touch()
    assert "got an empty file" in refusal(tmp_path / "empty.sqlite")
    assert "got a folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "got no regular file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize("content", [b"x", b"SQLite format 2\0" * 64, bytes(range(256)) * 16])
def test_what_is_no_database(tmp_path, content):
    path = tmp_path / "other.sqlite"
    path.write_bytes(content)
    assert "no SQLite database (or an encrypted one)" in refusal(path)
    assert "nsys export --type sqlite" in refusal(path)


def test_a_name_with_control_characters_is_told_in_one_line(tmp_path):
    path = tmp_path / "a\nb\x1b[2J.sqlite"
    path.write_bytes(b"x")
    refusal(path)


def test_a_file_cut_short(build, tmp_path):
    whole = build(n_kernels=200).read_bytes()
    path = tmp_path / "cut.sqlite"
    for n_bytes in (16, 50, 99, 100, 512, 700, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:n_bytes])
        assert "the file is cut short" in refusal(path)


def test_names_that_a_uri_must_quote(build):
    for name in ("a?mode=rw&b.sqlite", "a#b.sqlite", "100%41.sqlite", os.fsdecode(b"\xff.sqlite")):
        table = nsys_export.read(build(name=name))
        assert (table.source, len(table.gpu)) == (name, 1)


def test_reading_leaves_no_trace(build, tmp_path):
    path = build()
    before = path.read_bytes()
    path.chmod(0o444)
    nsys_export.read(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_write_ahead_log(build):
    path = build()
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(KERNEL, (1, 2, 3))
    writer.commit()
    assert "got one with made.sqlite-wal beside it" in refusal(path)
    writer.close()  # takes the log into the file, which stays in that mode
    assert path.read_bytes()[18] == 2
    assert len(nsys_export.read(path).gpu) == 2


def test_a_journal_that_was_never_rolled_back(build):
    path = build()
    path.with_name("made.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
    assert "got one with made.sqlite-journal beside it" in refusal(path)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    "script",
    [
        f"CREATE VIEW NVTX_EVENTS AS {ENDLESS} i AS start, i AS end, 59 AS eventType, "
        "'x' AS text, 16777217 AS globalTid FROM n;",
        "CREATE VIRTUAL TABLE NVTX_EVENTS USING rtree(id, start, end);",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END;",
    ],
)
def test_views_virtual_tables_and_triggers_are_no_tables(build, script):
    table = nsys_export.read(build(script))
    assert (len(table.gpu), len(table.host)) == (1, 1)


@pytest.mark.parametrize(
    "lie",
    [
        "UPDATE sqlite_master SET type = 'table', rootpage = 3 WHERE name = 'NVTX_EVENTS'",
        "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) "
        "VALUES ('table', 'NVTX_EVENTS', 'NVTX_EVENTS', 3, 'CREATE TABLE other (x)')",
    ],
)
def test_a_view_that_the_schema_calls_a_table(build, lie):
    path = build(
        f"CREATE VIEW NVTX_EVENTS AS {ENDLESS} i AS start, i AS end, 59 AS eventType, "
        "16777217 AS globalTid FROM n;"
    )
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA writable_schema = ON; {lie};")
    connection.close()
    refusal(path)


def test_computed_columns_are_not_there(build):
    path = build(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, "
        "globalTid INTEGER, text TEXT GENERATED ALWAYS AS (hex(zeroblob(1000))));"
        "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid) VALUES (1, 2, 59, 16777217);"
    )
    table = nsys_export.read(path)
    assert "(unnamed)" in table.names


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM META_DATA_CAPTURE",
        "SELECT * FROM secrets_view",
        "SELECT id FROM StringIds WHERE value = load_extension('x')",
        "SELECT hex(value) FROM StringIds",
        "SELECT * FROM pragma_table_info('StringIds')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "PRAGMA trusted_schema = ON",
        "ATTACH 'other.sqlite' AS other",
        "CREATE TEMP TABLE t (x)",
        "DELETE FROM StringIds",
    ],
)
def test_nothing_but_plain_reads_passes(build, statement):
    path = build(
        "CREATE TABLE META_DATA_CAPTURE (name, value);"
        "CREATE VIEW secrets_view AS SELECT * FROM StringIds;"
    )
    connection = connect(path, path.stat().st_size)
    try:
        with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
            connection.execute(statement)
    finally:
        connection.close()


def test_work_that_the_size_does_not_warrant_is_broken_off(build):
    path = build(n_kernels=300)
    connection = connect(path, path.stat().st_size)
    try:
        crossed = ", ".join(f"CUPTI_ACTIVITY_KIND_KERNEL AS k{each}" for each in range(4))
        never = "k0.start + k1.start + k2.start + k3.start < 0"
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            connection.execute(f"SELECT k0.start FROM {crossed} WHERE {never}").fetchall()
    finally:
        connection.close()


def test_pages_that_several_point_to(build):
    """A chain of inner pages, each of which names the next one many times: 10**20 rows."""
    path = build(n_kernels=20_000)
    pages = bytearray(path.read_bytes())
    inner = [at for at in range(512, len(pages), 512) if pages[at] == 5]
    connection = sqlite3.connect(path)
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
    ).fetchone()
    connection.close()
    top = (root - 1) * 512
    chain = [top, *(at for at in inner if at != top)][:12]
    assert len(chain) == 12
    leaf = next(at for at in range(512 * 20, len(pages), 512) if pages[at] == 13)
    for at, below in zip(chain, [*chain[1:], leaf], strict=True):
        number = (below // 512 + 1).to_bytes(4, "big")
        pages[at + 8 : at + 12] = number
        for cell in range(int.from_bytes(pages[at + 3 : at + 5], "big")):
            pointer = at + 12 + 2 * cell
            place = at + int.from_bytes(pages[pointer : pointer + 2], "big")
            pages[place : place + 4] = number
    path.write_bytes(pages)
    assert "more rows in CUPTI_ACTIVITY_KIND_KERNEL than the file has room for" in refusal(path)


def test_whatever_is_damaged_is_told_in_one_line(build, tmp_path):
    sound = build(n_kernels=30).read_bytes()
    path = tmp_path / "damaged.sqlite"
    draw = random.Random(0)
    n_refused = 0
    for _ in range(150):
        damaged = bytearray(sound)
        for _ in range(draw.choice((1, 3, 30))):
            damaged[draw.randrange(16, len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            nsys_export.read(path)
        except PeakwardError:
            n_refused += 1
    assert n_refused > 10
