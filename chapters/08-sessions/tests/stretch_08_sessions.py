"""Stretch tests of chapter 08: what happens to files that live for years on real machines."""

import errno
import io
import json
import os
import string
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, fail
from mini_agent.main import Repl, main, session_directory
from mini_agent.provider_adapter import ProviderModel
from mini_agent.providers.openai_compatible import OpenAICompatibleTransport
from mini_agent.scripted_model import ScriptedModel
from mini_agent.session import Session, list_sessions, read_content
from mini_agent.session_lines import SessionError, SessionHeader, message_of, to_line
from mini_agent.tools import ToolRegistry
from mini_agent.types import (
    AgentMessage,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    text_of,
)

HEADER = SessionHeader(1, "20261130-120000-0badcafe", "2026-11-30T12:00:00.250Z", "/家/me")
ASKED = UserMessage((TextContent("读取 README.md"),), 1)
CALLED = AssistantMessage(
    (ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}'),), "toolUse"
)
READ = ToolResultMessage("call-1", "read", (TextContent("# Project 😀\n"),), False, 3)
WHOLE = b"".join(to_line(each) for each in (HEADER, ASKED, CALLED, READ))


def refused(action: Callable[[], object], *parts: str) -> None:
    """`action` raises a SessionError whose text has all `parts`."""
    try:
        action()
    except SessionError as error:
        missing = [part for part in parts if part not in str(error)]
        assert_same(missing, [], because=f"the error says what is wrong: {error}")
    else:
        fail(f"this must be refused with a SessionError that says {' and '.join(parts)}")


# Any message


def characters() -> st.SearchStrategy[str]:
    """Any text, halves of surrogate pairs included."""
    return st.text(st.characters(exclude_categories=()), max_size=12)


def as_utf16(value: str) -> str:
    """The text with two halves of a pair that stand together read as their one character.

    JSON's escapes can't tell them apart, and a provider that sends the halves means the character.
    """
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = characters().map(as_utf16)
counts = st.integers(0, 10**12)
arguments = st.dictionaries(
    texts,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
text_blocks = st.builds(TextContent, texts)
blocks = text_blocks | st.builds(ToolCall, texts, texts, st.none() | arguments, st.none() | texts)
usages = st.builds(Usage, counts, counts, counts, counts, counts)
messages: st.SearchStrategy[AgentMessage] = st.one_of(
    st.builds(UserMessage, st.lists(text_blocks, max_size=3).map(tuple), st.integers()),
    st.builds(
        AssistantMessage,
        st.lists(blocks, max_size=3).map(tuple),
        st.sampled_from(["stop", "length", "toolUse", "error", "aborted"]),
        texts,
        texts,
        usages,
        st.integers(),
        st.none() | texts,
    ),
    st.builds(
        ToolResultMessage,
        texts,
        texts,
        st.lists(text_blocks, max_size=3).map(tuple),
        st.booleans(),
        st.integers(),
    ),
)


@settings(deadline=None, max_examples=300, database=None)
@given(messages)
def test_any_message_comes_back_exactly(message: AgentMessage) -> None:
    """Whatever a message holds, its line gives back the same message."""
    line = to_line(message)

    assert_same(line.count(b"\n"), 1, because="a record is one line")
    line.decode()  # valid UTF-8
    assert_same(message_of(line, 2), message, because="reading a line undoes writing it")


@settings(deadline=None, max_examples=200, database=None)
@given(messages, st.binary(max_size=6), st.integers(0, 400))
def test_any_damage_is_an_error_or_a_message(message: AgentMessage, junk: bytes, at: int) -> None:
    """Bytes put anywhere into a line make a SessionError or a right message, nothing else."""
    line = to_line(message)
    damaged = line[: at % len(line)] + junk + line[at % len(line) :]
    try:
        read = message_of(damaged, 2)
    except SessionError as error:
        assert_same("line 2" in str(error), True, because=f"an error names its line: {error}")
    else:
        assert_same(message_of(to_line(read), 2), read, because="what is read is a right message")


def test_a_person_can_read_a_session() -> None:
    """Characters stand in the file as they are, and not as escapes."""
    assert_same(
        "读取 README.md".encode() in to_line(ASKED), True, because="`less` shows what was said"
    )


def test_a_key_order_of_another_writer_is_read() -> None:
    """JSON objects have no order: another program may write the fields in its own."""
    line = '{"timestamp": 1, "content": [{"text": "读取", "type": "text"}], "role": "user"}\r\n'

    assert_same(
        message_of(line.encode(), 2),
        UserMessage((TextContent("读取"),), 1),
        because="order and blanks of a JSON object mean nothing",
    )


def test_an_error_says_what_is_there_and_what_should_be() -> None:
    """The shapes that the chapter gives say both, with the path to the field."""
    user = {"role": "user", "content": [{"type": "text", "text": "x"}], "timestamp": 1}
    usage = {"input": 1, "output": 1, "cache_read": 0, "cache_write": 0, "total": 2}
    reply = {
        "role": "assistant",
        "content": [],
        "stop_reason": "stop",
        "provider": "",
        "model": "",
        "usage": usage,
        "timestamp": 1,
        "error_message": None,
    }
    for data, said in (
        (user | {"timestamp": "1"}, "line 7: timestamp must be an integer, not a string"),
        (user | {"timestamp": 1.5}, "timestamp must be an integer, not a number with a fraction"),
        (user | {"mood": "good"}, "line 7: mood is not a field"),
        (user | {"content": [{"type": "text"}]}, "line 7: content[0].text is missing"),
        (user | {"content": [7]}, "line 7: content[0]"),
        (reply | {"error_message": 5}, "error_message must be a string or null, not an integer"),
        (reply | {"usage": usage | {"total": True}}, "usage.total must be an integer, not true"),
    ):
        refused(lambda data=data: message_of(json.dumps(data).encode(), 7), said)  # type: ignore[misc]


def test_numbers_and_nesting_beyond_measure_are_errors() -> None:
    """A line that Python's parser gives up on is a broken line, not a crash."""
    for text in (
        '{"role":' + "[" * 100_000,
        '{"timestamp":' + "9" * 5_000 + "}",
        '{"role":"\x00"}',
    ):
        refused(lambda text=text: message_of(text.encode(), 9), "line 9")  # type: ignore[misc]
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"": deep}
    refused(lambda: to_line(AssistantMessage((ToolCall("c", "t", deep),), "toolUse")), "JSON")


# A file


def test_every_cut_is_resumed_and_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at every byte, a session goes on: whole lines stay, the next one is a line of its own."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # 500 files: the disk is not the subject
    path = tmp_path / f"{HEADER.id}.jsonl"
    ends = [at + 1 for at, byte in enumerate(WHOLE) if byte == 0x0A]
    for cut in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:cut])
        if cut < ends[0] - 1:
            refused(lambda: Session.resume(path), path.name)
            assert_same(path.read_bytes(), WHOLE[:cut], because="a refused file stays as it was")
            continue
        with Session.resume(path) as session:
            session.append(ASKED)
        kept = max(end for end in ends if end - 1 <= cut)
        assert_same(
            path.read_bytes(), WHOLE[:kept] + to_line(ASKED), because=f"cut after byte {cut}"
        )


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    """A session that is open for writing can't be resumed; once it is closed it can."""
    first = Session.create(tmp_path, "/")
    first.append(ASKED)
    refused(lambda: Session.resume(first.path), first.path.name, "open already")
    first.append(READ)
    first.close()
    with Session.resume(first.path) as second:
        assert_same(second.messages, (ASKED, READ), because="the first writer lost nothing")
        refused(lambda: Session.resume(first.path), "open already")
    Session.resume(first.path).close()


def test_a_line_that_is_being_written_is_not_torn(tmp_path: Path) -> None:
    """Who doesn't hold the lock cuts nothing: the torn line may be another's, on its way."""
    writer = Session.create(tmp_path, "/")
    writer.append(ASKED)
    half = to_line(READ)[:20]
    with writer.path.open("ab") as file:
        file.write(half)
    before = writer.path.read_bytes()
    refused(lambda: Session.resume(writer.path), "open already")
    assert_same(writer.path.read_bytes(), before, because="the lock is taken before the cut")
    writer.close()


def test_a_write_that_takes_a_part_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.write` may take fewer bytes than it was given; the rest follows."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:7]))
    with Session.create(tmp_path, "/") as session:
        session.append(ASKED)
        session.append(READ)
    content = read_content(session.path.read_bytes())
    assert_same(content.messages, (ASKED, READ), because="all bytes of both lines are there")


def test_a_full_disk_takes_the_whole_line_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a write fails half-way, the file ends where it ended, and the next message fits."""
    real = os.write
    full = False

    def write(file: int, data: bytes) -> int:
        if full:
            if len(data) < 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(file, bytes(data)[: len(data) - 10])
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    with Session.create(tmp_path, "/") as session:
        session.append(ASKED)
        before = session.path.read_bytes()
        full = True
        refused(lambda: session.append(CALLED), session.path.name, os.strerror(errno.ENOSPC))
        assert_same(session.path.read_bytes(), before, because="the half line is taken back")
        assert_same(session.messages, (ASKED,), because="it was not acknowledged")
        full = False
        session.append(READ)
    assert_same(
        session.path.read_bytes(), before + to_line(READ), because="the session goes on after it"
    )


def test_a_first_write_that_fails_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header goes with the first message that can be written, once."""
    real = os.write

    def write(file: int, data: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with Session.create(tmp_path, "/") as session:
        monkeypatch.setattr(os, "write", write)
        refused(lambda: session.append(ASKED), "Input/output error")
        monkeypatch.setattr(os, "write", real)
        session.append(READ)
    assert_same(
        session.path.read_bytes(),
        to_line(session.header) + to_line(READ),
        because="one header, then the message",
    )


def test_append_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole line is in the file when it is forced to the disk, and only then acknowledged."""
    forced: list[bytes] = []
    with Session.create(tmp_path, "/") as session:
        monkeypatch.setattr(os, "fsync", lambda file: forced.append(session.path.read_bytes()))
        session.append(ASKED)
        session.append(READ)
    head = to_line(session.header) + to_line(ASKED)
    assert_same(forced, [head, head + to_line(READ)], because="one fsync a message, after its line")


def test_a_closed_session_takes_nothing(tmp_path: Path) -> None:
    """After close() there is no lock any more, so append() refuses; close() may come twice."""
    session = Session.create(tmp_path, "/")
    session.append(ASKED)
    session.close()
    session.close()
    refused(lambda: session.append(READ), "closed")
    unused = Session.create(tmp_path, "/")
    unused.close()
    refused(lambda: unused.append(READ), "closed")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps rights in another way")
def test_a_conversation_is_its_owners(tmp_path: Path) -> None:
    """The file and the folder made for it are readable by their owner only."""
    with Session.create(tmp_path / "sessions", "/") as session:
        session.append(ASKED)
    modes = [path.stat().st_mode & 0o777 for path in (session.path, session.path.parent)]
    assert_same(modes, [0o600, 0o700], because="a conversation may hold what its owner read")


def test_a_path_that_is_no_session_is_an_error(tmp_path: Path) -> None:
    """A missing file, a folder, and somebody's photograph are refused by name."""
    photo = tmp_path / "photo.jsonl"
    photo.write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)))
    refused(lambda: Session.resume(tmp_path / "none.jsonl"), "none.jsonl")
    refused(lambda: Session.resume(tmp_path), tmp_path.name)
    refused(lambda: Session.resume(photo), "photo.jsonl")


def test_a_list_survives_what_it_finds(tmp_path: Path) -> None:
    """A folder, an empty file and a stranger's file are listed with their problem, or left out."""
    (tmp_path / "b.jsonl").mkdir()
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "z.jsonl").write_bytes(string.printable.encode())
    (tmp_path / "half.jsonl").write_bytes(to_line(HEADER) + to_line(ASKED)[:-5])
    infos = {info.path.name: info for info in list_sessions(tmp_path)}
    for name in ("a.jsonl", "z.jsonl"):
        assert_same(bool(infos[name].problem), True, because=f"{name} has a problem, and says it")
    half = infos["half.jsonl"]
    assert_same(
        (half.problem, half.id, half.title),
        (None, HEADER.id, ""),
        because="a session without a whole message has no title yet, and is no problem",
    )
    assert_same(list_sessions(tmp_path / "none"), (), because="no folder, no sessions")


def test_no_key_and_no_header_is_ever_saved(tmp_path: Path) -> None:
    """A session holds what was said. How it travelled, and with which key, is nowhere in it."""
    key = "test-key-0123456789"

    def answer(request: httpx.Request) -> httpx.Response:
        if b"first" in request.content:
            reply = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
            return httpx.Response(200, content=reply, headers={"x-request-id": "secret-header"})
        raise httpx.ConnectError(f"Bearer {key} was refused by {request.headers}")

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    transport = OpenAICompatibleTransport(
        base_url="https://provider.test/v1", api_key=key, client=client
    )
    out: list[str] = []
    repl = Repl(
        ProviderModel(transport, provider="openai", model="m"),
        ToolRegistry(),
        write=out.append,
        session_dir=tmp_path,
    )
    repl.run(["first", "second"])
    repl.close()

    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert_same(len(read_content(data).messages) >= 3, True, because="both prompts were saved")
    leaks = [word for word in (key, "Bearer", "secret-header") if word.encode() in data]
    assert_same(leaks, [], because="neither key nor header is in the file, after an error either")


# The program


class Program:
    """`main()` with a pipe for the keyboard: what it is given, and what it says."""

    def __init__(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("USERPROFILE", str(home))
        for name in ("MINI_AGENT_SESSIONS", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, typed: str, *argv: str) -> tuple[int, str, str]:
        """Its exit code, its output, and its errors."""
        keyboard = io.TextIOWrapper(io.BytesIO(typed.encode()))
        self._monkeypatch.setattr(sys, "stdin", keyboard)
        code = main(list(argv))
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Program:
    return Program(tmp_path / "home", monkeypatch, capsys)


def test_the_folder_is_as_named_then_as_the_environment_says_then_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name on the command line goes first; home only where there is to be a default."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    env = {"MINI_AGENT_SESSIONS": "from-env"}
    home = Path(tmp_path, ".mini-agent", "sessions")
    for named, environment, default, expected in (
        ("named", env, False, Path("named")),
        (None, env, False, Path("from-env")),
        (None, {"MINI_AGENT_SESSIONS": ""}, True, home),
        (None, {}, True, home),
        (None, {}, False, None),
    ):
        got = session_directory(named, environment, default=default)
        assert_same(str(got), str(expected), because=f"named {named}, environment {environment}")


def test_a_pipe_is_saved_only_where_it_is_said(tmp_path: Path, program: Program) -> None:
    """`echo … | python -m mini_agent` leaves nothing at home; a named folder gets its session."""
    code, out, err = program("what is 12*8\n")
    assert_same((code, "12*8 = 96" in out, err), (0, True, ""), because="it answers")
    assert_same((tmp_path / "home").exists(), False, because="nothing was said about saving")

    saved = tmp_path / "saved"
    code, out, _ = program("what is 12*8\n/sessions\n", "--session-dir", str(saved))
    (path,) = saved.iterdir()
    assert_same(f"{path.stem}  what is 12*8\n" in out, True, because=f"it is listed: {out}")
    assert_same(len(read_content(path.read_bytes()).messages), 4, because="and saved")

    code, out, err = program(
        "what is 1+1\n", "--session-dir", str(saved), "--resume", path.stem[-8:]
    )
    assert_same((code, err), (0, ""), because="the end of the id is enough on the command line")
    assert_same(f"[resumed] {path.stem}, 4 messages\n" in out, True, because=f"it is told: {out}")
    content = read_content(path.read_bytes())
    assert_same(len(content.messages), 8, because="the same file goes on")

    code, out, err = program("what is 1+1\n", "--session-dir", str(saved), "--resume", "ffffffff")
    assert_same(
        (code, out, "ffffffff" in err),
        (2, "", True),
        because="an id that nobody has ends it at once",
    )
    code, _, err = program("x\n", "--resume", "ffffffff")
    assert_same(
        (code, str(tmp_path / "home") in err),
        (2, True),
        because="without a folder, --resume looks at home",
    )


def test_the_environment_names_a_folder_for_a_pipe_too(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MINI_AGENT_SESSIONS is a place that was said."""
    monkeypatch.setenv("MINI_AGENT_SESSIONS", str(tmp_path / "env"))
    program("what is 12*8\n")
    assert_same(len(list((tmp_path / "env").iterdir())), 1, because="one run, one session")


def repl_in(directory: Path | None, out: list[str]) -> Repl:
    replies = [f"reply {number}" for number in range(9)]
    model = ScriptedModel(replies, clock=lambda: 7)
    return Repl(model, ToolRegistry(), write=out.append, clock=lambda: 7, session_dir=directory)


def test_a_long_list_shows_the_newest_and_how_many_more(tmp_path: Path) -> None:
    """Twenty lines fit on a screen; the problem of a broken one is shown in its place."""
    for number in range(23):
        name = f"20261130-1200{number:02d}-0badcafe"
        data = WHOLE.replace(HEADER.id.encode(), name.encode())
        (tmp_path / f"{name}.jsonl").write_bytes(data if number != 21 else b"broken\n")
    out: list[str] = []
    repl = repl_in(tmp_path, out)
    assert_same(repl.run(["/sessions"]), True, because="a list is no failure")
    lines = "".join(out).splitlines()
    assert_same(len(lines), 21, because="20 sessions, and a line for the others")
    assert_same(
        (lines[0], "line 1" in lines[1], lines[20]),
        ("20261130-120022-0badcafe  读取 README.md", True, "and 3 older ones"),
        because="the newest is first; a broken one is there with its problem",
    )


def test_an_empty_list_says_so(tmp_path: Path) -> None:
    """An answer that is no line at all looks like a command that was not heard."""
    for directory in (tmp_path / "not-there-yet", None):
        out: list[str] = []
        repl_in(directory, out).run(["/sessions"])
        assert_same("".join(out), "no conversation is saved here\n", because="nothing to list")


def test_a_resume_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The conversation stays the one that it is, and goes on in its own file."""
    out: list[str] = []
    repl = repl_in(tmp_path, out)
    assert repl.session is not None
    own = repl.session.header.id
    repl.run(["one", "/resume none", f"/resume {own}", "/resume", "two"])
    repl.close()
    shown = "".join(out)
    assert_same(shown.count("[not resumed]"), 2, because="nobody has that id; this one is open")
    assert_same("say which" in shown, True, because="/resume alone names no session, and asks")
    assert_same("open already" in shown, True, because="a session can't be resumed into itself")
    (path,) = tmp_path.iterdir()
    assert_same(
        [text_of(message) for message in read_content(path.read_bytes()).messages],
        ["one", "reply 0", "two", "reply 1"],
        because="what was said before and after is in one file",
    )

    unsaved = repl_in(None, out)
    unsaved.run(["one", "/sessions", "/resume x", "two"])
    unsaved.close()
    assert_same(len(unsaved.messages), 4, because="without a folder the REPL works all the same")
    assert_same(
        "nothing is saved here" in "".join(out), True, because="and says why it can't resume"
    )


def test_a_resume_tells_what_was_mended_and_closes_the_old_one(tmp_path: Path) -> None:
    """The user learns that a line is gone; the session that was left can be resumed again."""
    torn = tmp_path / f"{HEADER.id}.jsonl"
    torn.write_bytes(WHOLE[:-9])
    out: list[str] = []
    repl = repl_in(tmp_path, out)
    repl.run(["one", f"/resume {HEADER.id}", "two"])
    shown = "".join(out)
    assert_same("[repaired] " in shown, True, because=f"the repair is told: {shown}")
    assert_same(f"[resumed] {HEADER.id}, 3 messages\n" in shown, True, because=f"told: {shown}")
    (other,) = [path for path in tmp_path.iterdir() if path != torn]
    Session.resume(other).close()
    refused(lambda: Session.resume(torn), "open already")
    repl.close()
    Session.resume(torn).close()


def test_what_cannot_be_saved_is_told_and_talked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write nothing more is saved: the next line would leave a gap."""
    out: list[str] = []
    repl = repl_in(tmp_path, out)
    repl.run(["one"])
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    real = os.write

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert_same(repl.run(["two"]), True, because="the agent answers all the same")
    monkeypatch.setattr(os, "write", real)
    repl.run(["three"])
    shown = "".join(out)
    assert_same(
        shown.count(path.name),
        1,
        because=f"it is told once, with the file: {shown}",
    )
    assert_same(path.read_bytes(), before, because="the file ends where it ended")
    assert_same(len(repl.messages), 6, because="the conversation goes on")
    Session.resume(path).close()
